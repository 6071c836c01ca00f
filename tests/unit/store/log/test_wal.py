import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock.model.batch import BatchKind, Op
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.store.log.wal import WriteAheadLog, read_resolved
from penstock.store.log.wal_segment import RecordKind, Replayed, WalRecord
from penstock.store.settings import StoreSettings
from testing.checks.change_batches import Row, change_batch, rows_of

WAIT_S = 120
SPAN_ID = 42


def no_head() -> Sequence[WalRecord]:
    return []


def open_log(directory: Path, settings: StoreSettings | None = None) -> tuple[WriteAheadLog, list[Replayed]]:
    log = WriteAheadLog(directory, settings or StoreSettings(resolved_max_delay_s=0.0), SystemClock(), no_head)
    found = list(log.replay())
    log.start()
    return log, found


def record(rows: Sequence[Row]) -> WalRecord:
    return WalRecord.of_batch(change_batch(SPAN_ID, rows, BatchKind.DATA))


def write(log: WriteAheadLog, *rows: Row) -> None:
    durable = threading.Event()
    log.submit([record(rows)], durable.set)
    assert durable.wait(WAIT_S)


def rows_in(replayed: Sequence[Replayed]) -> list[Row]:
    return [row for r in replayed if r.batch is not None for row in rows_of(r.batch.records)]


def row(ts: int) -> Row:
    return (ts, Op.INSERT, ts, f"value {ts}")


def last_segment(directory: Path, holding: bytes = b"value") -> Path:
    return max(p for p in directory.glob("*.wal") if holding in p.read_bytes())


def test_what_was_acknowledged_is_there_in_order(tmp_path: Path) -> None:
    log, found = open_log(tmp_path)
    assert found == []
    write(log, row(1), row(2))
    log.advance_resolved_ts(SPAN_ID, 2)
    write(log, row(3))
    log.close()
    log, found = open_log(tmp_path)
    log.close()
    assert rows_in(found) == [row(1), row(2), row(3)]
    resolved = [entry for r in found if r.kind is RecordKind.RESOLVED for entry in read_resolved(r.payload)]
    assert resolved == [(SPAN_ID, 2)]
    header = next(r.batch for r in found if r.batch is not None).header
    assert (header.span_id, header.table_id, header.schema_version, header.min_ts, header.max_ts, header.rows) == (SPAN_ID, 7, 1, 1, 2, 2)


def test_callbacks_come_once_each_in_order_and_outside_the_lock(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    calls: list[tuple[int, int]] = []
    done = threading.Semaphore(0)

    def called(writer: int, number: int) -> Callable[[], None]:
        def call() -> None:
            assert log.queue_fill >= 0
            log.advance_resolved_ts(SPAN_ID, 1)  # would deadlock if the writer held its lock
            calls.append((writer, number))
            done.release()

        return call

    def submit(writer: int) -> None:
        for number in range(50):
            log.submit([record([row(writer * 100 + number + 1)])], called(writer, number))

    writers = [threading.Thread(target=submit, args=(w,)) for w in range(4)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join(WAIT_S)
    for _ in range(200):
        assert done.acquire(timeout=WAIT_S)
    log.close()
    assert sorted(calls) == [(w, n) for w in range(4) for n in range(50)]
    for writer in range(4):
        assert [n for w, n in calls if w == writer] == list(range(50))
    _, found = open_log(tmp_path)
    assert sorted(rows_in(found)) == sorted(row(w * 100 + n + 1) for w in range(4) for n in range(50))


def test_one_sync_serves_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = open_log(tmp_path)
    syncs: list[int] = []
    first_sync, go_on = threading.Event(), threading.Event()
    real = os.fdatasync

    def slow_sync(handle: int) -> None:
        syncs.append(handle)
        first_sync.set()
        assert go_on.wait(WAIT_S)
        real(handle)

    monkeypatch.setattr(os, "fdatasync", slow_sync)
    done = threading.Semaphore(0)
    log.submit([record([row(1)])], done.release)
    assert first_sync.wait(WAIT_S)
    for ts in range(2, 30):
        log.submit([record([row(ts)])], done.release)
    go_on.set()
    for _ in range(29):
        assert done.acquire(timeout=WAIT_S)
    assert len(syncs) == 2
    log.close()


@pytest.mark.parametrize("cut", [1, 7, 8, 39, 40, 41, 100])
def test_a_torn_tail_is_cut_and_the_log_goes_on(tmp_path: Path, cut: int) -> None:
    log, _ = open_log(tmp_path)
    write(log, row(1))
    write(log, row(2))
    log.close()
    segment = last_segment(tmp_path)
    os.truncate(segment, segment.stat().st_size - cut)
    log, found = open_log(tmp_path)
    kept = rows_in(found)
    assert kept == [row(1), row(2)][: len(kept)]
    assert len(kept) >= 1
    write(log, row(3))
    log.close()
    _, found = open_log(tmp_path)
    assert rows_in(found) == [*kept, row(3)]


def test_a_tail_of_zeros_is_cut(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    write(log, row(1))
    log.close()
    segment = last_segment(tmp_path)
    with segment.open("ab") as file:
        file.write(bytes(4096))
    size = segment.stat().st_size
    _, found = open_log(tmp_path)
    assert rows_in(found) == [row(1)]
    assert segment.stat().st_size == size - 4096


def test_a_new_segment_that_was_never_synced_is_dropped(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    write(log, row(1))
    log.close()
    number = int(last_segment(tmp_path).stem) + 1
    for torn in (b"", b"PENST"):
        (tmp_path / f"{number:012d}.wal").write_bytes(torn)
        log, found = open_log(tmp_path)
        log.close()
        assert rows_in(found) == [row(1)]
        (tmp_path / f"{number:012d}.wal").unlink()


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


def test_any_flipped_bit_before_the_last_group_is_corruption(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    write(log, row(1))
    end_of_first = last_segment(tmp_path).stat().st_size
    write(log, row(2))
    log.close()
    segment = last_segment(tmp_path)
    whole = segment.read_bytes()
    padding = 0
    codes: set[str] = set()
    for offset in range(0, end_of_first, 13):
        flip(segment, offset)
        try:
            log, found = open_log(tmp_path)
        except PenstockError as error:
            codes.add(error.code)
        else:
            log.close()
            padding += 1  # a pad byte carries nothing
            assert rows_in(found) == [row(1), row(2)]
            max(tmp_path.glob("*.wal")).unlink()
        segment.write_bytes(whole)
    assert codes == {"WAL_CORRUPT"}
    assert padding < end_of_first // 13 // 8


def test_damage_in_an_older_segment_is_corruption(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, StoreSettings(wal_segment_bytes=1))
    write(log, row(1))
    write(log, row(2))
    log.close()
    first = min(p for p in tmp_path.glob("*.wal") if b"value 1" in p.read_bytes())
    os.truncate(first, first.stat().st_size - 3)
    with pytest.raises(PenstockError, match=r"\[WAL_CORRUPT\]"):
        open_log(tmp_path)


def test_a_missing_segment_is_corruption(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, StoreSettings(wal_segment_bytes=1))
    for ts in range(1, 5):
        write(log, row(ts))
    log.close()
    sorted(tmp_path.glob("*.wal"))[2].unlink()
    with pytest.raises(PenstockError, match=r"\[WAL_CORRUPT\]"):
        open_log(tmp_path)


def test_segments_go_when_everything_in_them_is_in_objects(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, StoreSettings(wal_segment_bytes=1))
    for ts in range(1, 6):
        write(log, row(ts))
    assert log.forget({SPAN_ID: 0}) <= 1  # the empty one at the beginning at most
    assert log.holders() == {SPAN_ID}
    assert log.forget({SPAN_ID: 3}) >= 3
    log.close()
    _, found = open_log(tmp_path)
    assert rows_in(found) == [row(4), row(5)]


def test_a_failed_sync_stops_the_log_and_acknowledges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = open_log(tmp_path)
    failed = threading.Event()

    def broken(handle: int) -> None:
        failed.set()
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "fdatasync", broken)
    called = threading.Event()
    log.submit([record([row(1)])], called.set)
    assert failed.wait(WAIT_S)
    log.close()
    assert not called.is_set()
    with pytest.raises(PenstockError, match=r"\[STORE_FAILED\]"):
        log.submit([record([row(2)])], called.set)


def test_a_full_queue_makes_submitters_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = record([row(1)])
    log, _ = open_log(tmp_path, StoreSettings(queue_bytes_max=one.nbytes * 2))
    syncing, go_on = threading.Event(), threading.Event()
    real = os.fdatasync

    def held_sync(handle: int) -> None:
        syncing.set()
        assert go_on.wait(WAIT_S)
        real(handle)

    monkeypatch.setattr(os, "fdatasync", held_sync)
    done = threading.Semaphore(0)
    log.submit([one], done.release)
    assert syncing.wait(WAIT_S)
    entered = threading.Event()

    def submit_many() -> None:
        for _ in range(5):
            log.submit([one], done.release)
        entered.set()

    thread = threading.Thread(target=submit_many)
    thread.start()
    assert not entered.wait(0.1)
    go_on.set()
    assert entered.wait(WAIT_S)
    thread.join(WAIT_S)
    for _ in range(6):
        assert done.acquire(timeout=WAIT_S)
    log.close()
