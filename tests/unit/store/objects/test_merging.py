"""Merged objects: states from them, tails past them, tombstones that commit meanwhile, doubled tombstones, and what may be collected."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.batch import BatchKind, Op
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.timestamp import compose_ts
from penstock.store.event_store import ColumnarEventStore
from penstock.store.objects.bulk import write_bulk
from penstock.store.objects.merging import MergeSettings
from penstock.store.objects.object_file import ObjectKind, ObjectMeta
from penstock.store.objects.objects import ObjectSpace, ObstoreBackend
from penstock.store.settings import StoreSettings
from penstock.store.upkeep import MERGE_DUE_MAX
from testing.checks.change_batches import TABLE, Row, both_sides, change_batch, read_rows, read_steps
from testing.twins.clock import SimulatedClock, SimulatedTimeOfDay
from testing.twins.object_store import Fault, FaultRule, FaultyObjects

SPAN = Span(TABLE.table_id)
SPAN_ID = SPAN.span_id
WAIT_S = 120


class Rig:
    """A store on a faulty backend, and shorthand for what tests do with it."""

    def __init__(self, root: Path, settings: StoreSettings | None = None) -> None:
        self.root = root
        self.settings = settings or StoreSettings()
        self.faults = FaultyObjects(ObstoreBackend((root / "objects").as_uri()))
        self.clock = SimulatedClock()
        self.store = self.open()
        for span in (SPAN, DDL_SPAN):
            self.store.register_span(span.span_id, span, 0)
        self.store.put_schemas([TABLE])

    def open(self) -> ColumnarEventStore:
        space = ObjectSpace("faulty:///", backend=self.faults)
        return ColumnarEventStore(self.root / "store", self.settings, SimulatedTimeOfDay(self.clock), space)

    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    def append(self, rows: list[Row], resolved_ts: int, flush: bool = True) -> None:
        durable = threading.Event()
        self.store.append(SPAN_ID, both_sides(SPAN_ID, rows), durable.set)
        assert durable.wait(WAIT_S)
        for span in (SPAN, DDL_SPAN):
            self.store.advance_resolved_ts(span.span_id, resolved_ts)
        if flush:
            self.store.flush(SPAN_ID)

    def tail(self, from_ts: int, to_ts: int) -> list[Row]:
        return read_rows(self.store.collect_changes(SPAN_ID, from_ts, to_ts))

    def state(self, ts: int) -> dict[int, str]:
        return {row[2]: row[3] for row in read_rows(self.store.collect_changes(SPAN_ID, 0, ts))}

    def objects(self, kind: ObjectKind | None = None, live: bool = True) -> list[ObjectMeta]:
        found = self.store.view(SPAN_ID).state.objects
        return [o for o in found if (kind is None or o.object_kind is kind) and (not live or o.delete_ts == 0)]

    def merge_with(self, rows: list[Row], resolved_ts: int, flush: bool) -> None:
        """Merge while rows commit: the merge has read the state and is writing it when they come."""
        held = self.faults.script(FaultRule("put", Fault.HOLD, "-data.arrow"))
        merge = threading.Thread(target=self.store.merge, args=(SPAN_ID,))
        merge.start()
        assert held.held.wait(WAIT_S)
        self.append(rows, resolved_ts, flush)
        held.release.set()
        merge.join(WAIT_S)
        assert not merge.is_alive()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.store.close()


def inserted(ts: int, keys: range) -> list[Row]:
    return [(ts, Op.INSERT, key, f"{key}@{ts}") for key in keys]


def test_a_merge_changes_no_state_and_no_tail(rig: Rig) -> None:
    first = inserted(10, range(20))
    second = [(20, Op.DELETE, 3, "3@10"), (20, Op.BEFORE, 4, "4@10"), (20, Op.UPDATE, 4, "4@20")]
    rig.append(first, 15)
    rig.append(second, 25)
    states = {ts: rig.state(ts) for ts in (9, 10, 15, 19, 20, 25)}
    assert rig.store.merge(SPAN_ID) == 3
    merged = rig.objects(ObjectKind.MERGED)
    assert sum(o.rows for o in merged) == 19
    assert rig.objects() == merged, "a reader of the state opens nothing else"
    for _ in range(2):
        assert {ts: rig.state(ts) for ts in states} == states
        assert rig.tail(5, 25) == [*first, *second]
        assert rig.tail(10, 20) == second
        rig.reopen()
    assert rig.store.merge(SPAN_ID) == 0, "nothing came since"


@pytest.mark.parametrize("flush", [True, False])
def test_tombstones_transferred_by_a_merge_are_never_delivered(rig: Rig, flush: bool) -> None:
    """The update commits between the merge's start and its commit; its key must not be deleted once more after it."""
    first = inserted(10, range(20))
    rig.append(first, 15)
    during: list[Row] = [(30, Op.BEFORE, 4, "4@10"), (30, Op.UPDATE, 4, "4@30"), (31, Op.DELETE, 5, "5@10")]
    rig.merge_with(during, 40, flush)
    transfer = [o for o in rig.objects() if rig.store.view(SPAN_ID).state.transferred(o)]
    assert [(o.rows, o.min_ts, o.create_ts) for o in transfer] == [(2, 40, 40)]
    replaced = [o for o in rig.objects(live=False) if o.delete_ts]
    assert {o.delete_ts for o in replaced} == {40}, "recognised by the delete ts of what the merge replaced"
    after = [(50, Op.DELETE, 6, "6@10")]
    rig.append(after, 60)
    everything = [*first, *sorted(during, key=lambda r: (r[0], r[2], r[1] != Op.BEFORE)), *after]
    for _ in range(2):
        assert rig.tail(5, 60) == everything
        for ts in (29, 30, 31, 39, 40, 41):
            assert rig.tail(ts, 60) == [r for r in everything if r[0] > ts]
        assert rig.state(40)[4] == "4@30"
        assert set(rig.state(40)) == set(range(20)) - {5}
        assert set(rig.state(60)) == set(range(20)) - {5, 6}
        rig.reopen()
    assert rig.store.merge(SPAN_ID) > 0
    assert set(rig.state(60)) == set(range(20)) - {5, 6}
    assert rig.tail(5, 60) == everything


def test_a_merge_never_commits_at_the_ts_of_a_change(rig: Rig) -> None:
    """A real delete at the merge's ts would be taken for a transferred one."""
    rig.append(inserted(10, range(5)), 15)
    rig.merge_with([(40, Op.DELETE, 1, "1@10"), (39, Op.DELETE, 2, "2@10"), (30, Op.DELETE, 3, "3@10")], 40, flush=True)
    assert rig.store.view(SPAN_ID).state.transfer_ts == (38,)
    rig.append([], 50)
    assert rig.tail(15, 50) == [(30, Op.DELETE, 3, "3@10"), (39, Op.DELETE, 2, "2@10"), (40, Op.DELETE, 1, "1@10")]
    assert set(rig.state(50)) == {0, 4}


def test_a_merge_in_dense_time_transfers_nothing(rig: Rig) -> None:
    rig.append(inserted(10, range(200)), 10)
    rig.merge_with([(ts, Op.DELETE, ts - 11, f"{ts - 11}@10") for ts in range(11, 111)], 110, flush=True)
    assert {o.create_ts for o in rig.objects(ObjectKind.MERGED)} == {10}
    assert len(rig.tail(10, 110)) == 100
    assert set(rig.state(110)) == set(range(100, 200))


@pytest.mark.parametrize("rows_max", [7, 16_384])
def test_duplicated_tombstones_of_a_large_delete_come_once(tmp_path: Path, rows_max: int) -> None:
    """A large delete was written as bulk objects; a part of it comes again with the log, under the same ts."""
    rig = Rig(tmp_path, StoreSettings(batch_rows_min=min(3, rows_max), batch_rows_max=rows_max))
    rig.append(inserted(10, range(300)), 15)
    large = [(30, Op.DELETE, key, f"{key}@10") for key in range(240)]
    parts = [large[120:], large[:120]]
    metas = [
        write_bulk(rig.store.objects, SPAN_ID, f"task-{n}", [change_batch(SPAN_ID, part, BatchKind.TOMBSTONE)], 30, [TABLE])
        for n, part in enumerate(parts)
    ]
    rig.store.commit_changes(SPAN_ID, metas, 30)
    rig.store.commit_changes(SPAN_ID, metas, 30)
    rig.append(large[50:170:3], 20, flush=False)
    rig.append([(30, Op.DELETE, 250, "250@10")], 40)
    assert rig.tail(15, 40) == [*large, (30, Op.DELETE, 250, "250@10")]
    steps = read_steps(rig.store.collect_changes(SPAN_ID, 15, 40))
    assert max(sum(b.header.rows for b in s.tombstones) for s in steps) <= rows_max
    assert set(rig.state(40)) == set(range(240, 300)) - {250}
    with pytest.raises(PenstockError, match=r"\[RESOLVED_TS_VIOLATED\]"):
        rig.store.commit_changes(
            SPAN_ID, [write_bulk(rig.store.objects, SPAN_ID, "late", [change_batch(SPAN_ID, large, BatchKind.TOMBSTONE)], 30)], 30
        )
    rig.store.close()


def test_what_readers_of_states_go_through_is_bounded(tmp_path: Path) -> None:
    """The merger keeps up in the background: what is not merged never outgrows its share."""
    rig = Rig(tmp_path, StoreSettings(merge_bytes_min=20_000, merge_ratio=0.5, merge_lull_s=0.0))
    merging = MergeSettings(20_000, 0.5)
    for round_ in range(30):
        ts = 10 + round_ * 10
        old = [(ts, Op.BEFORE, key, f"{key}@{ts - 10}") for key in range(50)] if round_ else []
        rig.append([*old, *[(ts, Op.UPDATE if round_ else Op.INSERT, key, f"{key}@{ts}") for key in range(50)]], ts + 5)
        if merging.due(rig.objects()) >= 1:
            rig.store.upkeep.merger.wait_idle(WAIT_S)
            assert merging.due(rig.objects()) < 1
    assert rig.state(305) == {key: f"{key}@300" for key in range(50)}
    assert len(rig.objects(ObjectKind.MERGED, live=False)) >= 3
    rig.store.close()


def test_a_merge_waits_while_the_span_is_being_filled(tmp_path: Path) -> None:
    """Until the span is quiet, or four times as much is due."""
    rig = Rig(tmp_path, StoreSettings(merge_bytes_min=20_000, merge_ratio=0.5, merge_lull_s=3600.0))
    merging = MergeSettings(20_000, 0.5)
    largest, ts = 0.0, 0
    while not rig.objects(ObjectKind.MERGED, live=False):
        ts += 10
        rig.append([(ts, Op.INSERT, ts * 1000 + key, f"{key}@{ts}") for key in range(50)], ts + 5)
        rig.store.upkeep.merger.wait_idle(WAIT_S)
        largest = max(largest, merging.due(rig.objects()))
        assert largest < MERGE_DUE_MAX + 1
    assert largest > MERGE_DUE_MAX - 1
    rig.store.close()


def test_a_merge_that_waited_comes_when_the_span_is_quiet(tmp_path: Path) -> None:
    rig = Rig(tmp_path, StoreSettings(merge_bytes_min=2_000, merge_ratio=0.5, merge_lull_s=0.2))
    rig.append([(10, Op.INSERT, key, f"{key}") for key in range(200)], 15)
    assert MergeSettings(2_000, 0.5).due(rig.objects()) >= 1
    clock, never = SystemClock(), threading.Event()
    deadline_s = clock.monotonic_s() + WAIT_S
    while not rig.objects(ObjectKind.MERGED, live=False):
        assert clock.monotonic_s() < deadline_s
        clock.wait(never, 0.02)
    rig.store.close()


def test_objects_that_a_merge_replaced_are_collected_and_the_state_stays(rig: Rig) -> None:
    hour = [compose_ts(rig.clock.now_ms() + h * 3_600_000) for h in range(40)]
    for h in range(3):
        rig.append(inserted(hour[h], range(h * 10, h * 10 + 10)), hour[h] + 5)
    rig.clock.advance(3 * 3600)
    assert rig.store.collect_garbage() == 0, "nothing is replaced yet, and states need it"
    assert rig.store.merge(SPAN_ID) == 3
    rig.append(inserted(hour[3], range(90, 95)), hour[3] + 5)
    rig.clock.advance(1800)
    rig.store.needs.pin(SPAN_ID, "slow feed", hour[1])
    assert rig.store.collect_garbage() == 0
    rig.store.needs.unpin("slow feed")
    lease = rig.store.collect_changes(SPAN_ID, hour[0], hour[2])
    assert rig.store.collect_garbage() == 0
    lease.close()
    assert rig.store.collect_garbage() == 3
    assert len(rig.objects(live=False)) == 2
    for _ in range(2):
        assert len(rig.state(hour[3])) == 35
        assert len(rig.state(hour[2])) == 30, "from checkpoints"
        assert len(rig.tail(hour[0] - 1, hour[3])) == 35, "from checkpoints"
        rig.reopen()
    rig.clock.advance(30 * 3600)
    assert rig.store.collect_garbage() == 0
    assert len(rig.state(hour[3])) == 35
    with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
        rig.tail(hour[0], hour[3])
    with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
        rig.state(hour[1])
    assert len(rig.store.objects.list_names(f"spans/{SPAN_ID}/objects/")) == 2


def test_a_pin_holds_history_for_gc_ttl_and_no_longer(rig: Rig) -> None:
    start = compose_ts(rig.clock.now_ms())
    rig.append(inserted(start + 1, range(5)), start + 10)
    rig.store.merge(SPAN_ID)
    rig.append(inserted(start + 20, range(10, 12)), start + 30)
    rig.store.needs.pin(SPAN_ID, "stuck feed", start)
    rig.clock.advance(23 * 3600)
    assert rig.store.collect_garbage() == 0
    assert len(rig.tail(start, start + 30)) == 7
    rig.clock.advance(2 * 3600)
    assert rig.store.collect_garbage() == 1
    with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
        rig.tail(start, start + 30)


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.FAIL_AFTER_WRITE])
@pytest.mark.parametrize("part", ["-tombstone.arrow", "manifest"])
def test_a_merge_that_fails_changes_nothing_and_is_repeated(rig: Rig, fault: Fault, part: str) -> None:
    first = inserted(10, range(20))
    rig.append(first, 15)
    during: list[Row] = [(30, Op.DELETE, 5, "5@10")]
    held = rig.faults.script(FaultRule("put", Fault.HOLD, "-data.arrow"))
    failed: list[PenstockError] = []

    def merge() -> None:
        try:
            rig.store.merge(SPAN_ID)
        except PenstockError as error:
            failed.append(error)

    thread = threading.Thread(target=merge)
    thread.start()
    assert held.held.wait(WAIT_S)
    rig.append(during, 40, flush=False)
    rig.faults.script(FaultRule("put", fault, part))
    held.release.set()
    thread.join(WAIT_S)
    assert [e.code for e in failed] == ["STORE_FAILED"]
    for _ in range(2):
        assert rig.tail(5, 40) == [*first, *during]
        assert set(rig.state(40)) == set(range(20)) - {5}
        rig.reopen()
    rig.append([(50, Op.INSERT, 77, "77@50")], 60)
    rig.store.merge(SPAN_ID)
    assert rig.tail(5, 60) == [*first, *during, (50, Op.INSERT, 77, "77@50")]
    assert set(rig.state(60)) == set(range(20)) - {5} | {77}
    assert {o.path for o in rig.objects(live=False)} == set(rig.store.objects.list_names(f"spans/{SPAN_ID}/objects/"))
