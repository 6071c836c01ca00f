"""Bulk objects, retention, and what recovery cleans up."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.batch import BatchKind, Op
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.timestamp import compose_ts
from penstock.store.event_store import ColumnarEventStore
from penstock.store.objects.bulk import write_bulk
from penstock.store.settings import StoreSettings
from testing.checks.change_batches import TABLE, append_durably, change_batch, read_rows
from testing.twins.clock import SimulatedClock, SimulatedTimeOfDay

SPAN = Span(TABLE.table_id)
SPAN_ID = SPAN.span_id


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ColumnarEventStore]:
    with ColumnarEventStore(tmp_path) as opened:
        opened.register_span(SPAN_ID, SPAN, 100)
        opened.register_span(DDL_SPAN.span_id, DDL_SPAN, 100)
        opened.put_schemas([TABLE])
        yield opened


def test_a_span_that_began_later_has_no_state_until_bulk_objects_are_committed(store: ColumnarEventStore, tmp_path: Path) -> None:
    append_durably(store, SPAN_ID, [(110, Op.DELETE, 2, "two"), (110, Op.INSERT, 7, "seven")], 120)
    with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
        store.collect_changes(SPAN_ID, 0, 120)
    parts = [[(100, Op.INSERT, 1, "one"), (100, Op.INSERT, 2, "two")], [(100, Op.INSERT, 5, "five")]]
    for attempt in range(2):
        metas = [
            write_bulk(store.objects, SPAN_ID, f"task-{n}", [change_batch(SPAN_ID, rows, BatchKind.DATA)], 100, [TABLE])
            for n, rows in enumerate(parts)
        ]
        store.commit_bulk(SPAN_ID, metas, 100)
        store.commit_bulk(SPAN_ID, metas, 100)
        assert len(metas) == 2, attempt
    expected = [(120, Op.INSERT, 1, "one"), (120, Op.INSERT, 5, "five"), (120, Op.INSERT, 7, "seven")]
    assert read_rows(store.collect_changes(SPAN_ID, 0, 120)) == expected
    assert read_rows(store.collect_changes(SPAN_ID, 0, 105))[1] == (105, Op.INSERT, 2, "two")
    assert read_rows(store.collect_changes(SPAN_ID, 100, 120)) == [(110, Op.DELETE, 2, "two"), (110, Op.INSERT, 7, "seven")]
    with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
        store.collect_changes(SPAN_ID, 99, 120)
    store.close()
    with ColumnarEventStore(tmp_path) as again:
        assert read_rows(again.collect_changes(SPAN_ID, 0, 120)) == expected


def test_bulk_objects_of_another_ts_are_refused(store: ColumnarEventStore) -> None:
    rows = change_batch(SPAN_ID, [(100, Op.INSERT, 1, "one")], BatchKind.DATA)
    with pytest.raises(PenstockError, match=r"\[INTERNAL\]"):
        write_bulk(store.objects, SPAN_ID, "x", [rows], 101)
    meta = write_bulk(store.objects, SPAN_ID, "x", [rows], 100)
    with pytest.raises(PenstockError, match=r"\[WINDOW_INVALID\]"):
        store.commit_bulk(SPAN_ID, [meta], 101)


def test_history_that_is_old_and_not_pinned_goes(tmp_path: Path) -> None:
    clock = SimulatedClock()
    start = compose_ts(clock.now_ms())
    hours = [compose_ts(clock.now_ms() + hour * 3_600_000) for hour in range(6)]
    rows = [(ts, Op.INSERT, n, f"hour {n}") for n, ts in enumerate(hours)]
    store = ColumnarEventStore(tmp_path)
    store.register_span(SPAN_ID, SPAN, start - 1)
    store.register_span(DDL_SPAN.span_id, DDL_SPAN, start - 1)
    for row in rows:
        append_durably(store, SPAN_ID, [row], row[0])
        store.flush(SPAN_ID)
    store.close()
    clock.advance(5 * 3600 + 1)
    with ColumnarEventStore(tmp_path, clock=SimulatedTimeOfDay(clock)) as store:
        assert store.expire_history({}) == 0
        assert store.expire_history({SPAN_ID: hours[1]}) == 2
        assert store.view(SPAN_ID).state.history_start_ts == hours[1]
        assert read_rows(store.collect_changes(SPAN_ID, hours[1], hours[5])) == rows[2:]
        assert read_rows(store.collect_changes(SPAN_ID, hours[1] - 1, hours[5])) == rows[1:], "older history comes from checkpoints"
        assert store.expire_history({SPAN_ID: hours[5]}) == 3
        assert read_rows(store.collect_changes(SPAN_ID, hours[4], hours[5])) == rows[5:]
        assert read_rows(store.collect_changes(SPAN_ID, start - 1, hours[5])) == rows
        clock.advance(21 * 3600)
        assert store.collect_garbage() == 1
        with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
            store.collect_changes(SPAN_ID, hours[2] - 1, hours[5])
        assert read_rows(store.collect_changes(SPAN_ID, hours[2], hours[5])) == rows[3:]


def test_objects_without_a_manifest_are_removed_on_opening(store: ColumnarEventStore, tmp_path: Path) -> None:
    append_durably(store, SPAN_ID, [(110, Op.INSERT, 7, "seven")], 120)
    store.flush(SPAN_ID)
    left = f"spans/{SPAN_ID}/objects/000000000002-00000000-data.arrow"
    store.objects.put_new(left, [b"half an object"])
    store.close()
    with ColumnarEventStore(tmp_path) as again:
        assert left not in again.objects.list_names("spans/")
        assert read_rows(again.collect_changes(SPAN_ID, 100, 120)) == [(110, Op.INSERT, 7, "seven")]


def test_a_log_that_does_not_belong_to_its_objects_is_refused(tmp_path: Path) -> None:
    """A directory that is copied piece by piece while a server works: older objects, or a log from which a segment was let go meanwhile."""
    settings = StoreSettings(wal_segment_bytes=1_000)
    store = ColumnarEventStore(tmp_path / "one", settings)
    store.register_span(SPAN_ID, SPAN, 100)
    rows = [(ts, Op.INSERT, ts, "x" * 50) for ts in range(101, 151)]
    append_durably(store, SPAN_ID, rows[:20], 120)
    store.flush(SPAN_ID)
    shutil.copytree(tmp_path / "one", tmp_path / "before")
    for at in (20, 25, 30, 35):
        append_durably(store, SPAN_ID, rows[at : at + 5], rows[at + 4][0])
    store.flush(SPAN_ID)
    for at in (40, 45):
        append_durably(store, SPAN_ID, rows[at : at + 5], rows[at + 4][0])
    store.close()
    shutil.copytree(tmp_path / "one", tmp_path / "after")
    for name, objects, log in (("old-objects", "before", "after"), ("old-log", "after", "before")):
        shutil.copytree(tmp_path / objects / "objects", tmp_path / name / "objects")
        shutil.copytree(tmp_path / log / "wal", tmp_path / name / "wal")
    with pytest.raises(PenstockError, match=r"\[WAL_CORRUPT\].*relies on objects up to ts 1(35|40), and those here reach to ts 120"):
        ColumnarEventStore(tmp_path / "old-objects", settings)
    shutil.copytree(tmp_path / "after", tmp_path / "gap")
    min((tmp_path / "gap" / "wal").glob("*.wal")).unlink()
    with pytest.raises(PenstockError, match=r"\[WAL_CORRUPT\] write-ahead log segment \d+ is missing"):
        ColumnarEventStore(tmp_path / "gap", settings)
    # An older log is right as far as it goes, and objects are.
    for name in ("old-log", "after", "before"):
        with ColumnarEventStore(tmp_path / name, settings) as again:
            reached = again.resolved_ts(SPAN_ID)
            assert reached == {"old-log": 140, "after": 150, "before": 120}[name]
            assert read_rows(again.collect_changes(SPAN_ID, 100, reached)) == rows[: reached - 100]


def test_a_large_flush_writes_several_objects_in_order(tmp_path: Path) -> None:
    rows = [(101 + n // 30_000, Op.INSERT, n, "x" * 5) for n in range(70_000)]
    with ColumnarEventStore(tmp_path, StoreSettings(object_bytes=400_000)) as store:
        store.register_span(SPAN_ID, SPAN, 100)
        append_durably(store, SPAN_ID, rows, 200)
        assert store.flush(SPAN_ID)
        objects = store.view(SPAN_ID).state.objects
        assert len(objects) >= 5
        assert max(o.nbytes for o in objects) <= 800_000
        assert read_rows(store.collect_changes(SPAN_ID, 100, 200)) == rows
        assert read_rows(store.collect_changes(SPAN_ID, 101, 102)) == [r for r in rows if r[0] == 102]
