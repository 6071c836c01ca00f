"""The event store on an object store that fails: an error with its own code, never an empty or wrong result, and nothing lost."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.store.event_store import ColumnarEventStore
from penstock.store.objects.objects import ObjectSpace, ObstoreBackend
from penstock.store.settings import StoreSettings
from testing.checks.change_batches import TABLE, both_sides, read_rows
from testing.checks.looked_inside import object_rows
from testing.twins.object_store import Fault, FaultRule, FaultyObjects

SPAN = Span(TABLE.table_id)
SPAN_ID = SPAN.span_id
WAIT_S = 120
ROWS = [(ts, Op.INSERT, ts, f"row {ts}") for ts in range(10, 60)]


class Rig:
    """A store whose objects go through scripted faults, opened again at will."""

    def __init__(self, root: Path, settings: StoreSettings | None = None) -> None:
        self._root = root
        self._settings = settings or StoreSettings()
        self.faults = FaultyObjects(ObstoreBackend((root / "objects").as_uri()))
        self.store = self._open()
        self.store.register_span(SPAN_ID, SPAN, 0)
        self.store.register_span(DDL_SPAN.span_id, DDL_SPAN, 0)
        self.store.put_schemas([TABLE])

    def _open(self) -> ColumnarEventStore:
        space = ObjectSpace("faulty:///", backend=self.faults)
        return ColumnarEventStore(self._root / "store", self._settings, objects=space)

    def reopen(self) -> None:
        self.store.close()
        self.store = self._open()

    def append(self, rows: list[tuple[int, Op, int, str]], resolved_ts: int) -> None:
        durable = threading.Event()
        self.store.append(SPAN_ID, both_sides(SPAN_ID, rows), durable.set)
        assert durable.wait(WAIT_S)
        self.store.advance_resolved_ts(SPAN_ID, resolved_ts)

    def rows(self, to_ts: int = 100) -> list[tuple[object, ...]]:
        return read_rows(self.store.collect_changes(SPAN_ID, 5, to_ts))

    def objects(self) -> int:
        return sum(object_rows(self.store, s).get("appendable", 0) for s in self.store.span_ids())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    rig.append(ROWS, 100)
    yield rig
    rig.store.close()


@pytest.mark.parametrize("part", ["objects/0", "manifest"])
def test_a_failed_write_keeps_everything_in_memory_and_is_repeated(rig: Rig, part: str) -> None:
    rig.faults.script(FaultRule("put", Fault.FAIL, part))
    with pytest.raises(PenstockError, match=r"\[STORE_FAILED\]"):
        rig.store.flush(SPAN_ID)
    assert rig.rows() == ROWS
    rig.reopen()
    assert rig.rows() == ROWS
    assert rig.store.flush(SPAN_ID)
    assert rig.rows() == ROWS
    rig.reopen()
    assert (rig.rows(), rig.objects()) == (ROWS, len(ROWS))


@pytest.mark.parametrize("part", ["objects/0", "manifest"])
@pytest.mark.parametrize("reopen", [False, True])
def test_a_write_whose_answer_was_lost_changes_no_content(rig: Rig, part: str, reopen: bool) -> None:
    rig.faults.script(FaultRule("put", Fault.FAIL_AFTER_WRITE, part))
    with pytest.raises(PenstockError, match=r"\[STORE_FAILED\]"):
        rig.store.flush(SPAN_ID)
    assert rig.rows() == ROWS
    if reopen:
        rig.reopen()
    assert rig.rows() == ROWS
    rig.append([(200, Op.INSERT, 200, "later")], 210)
    assert rig.store.flush(SPAN_ID)
    assert rig.rows(210) == [*ROWS, (200, Op.INSERT, 200, "later")]
    rig.reopen()
    assert (rig.rows(210), rig.objects()) == ([*ROWS, (200, Op.INSERT, 200, "later")], len(ROWS) + 1)


def test_a_missing_object_and_a_failing_store_are_different_errors(rig: Rig) -> None:
    rig.store.flush(SPAN_ID)
    for fault, code in [(Fault.MISSING, "OBJECT_MISSING"), (Fault.FAIL, "OBJECT_UNAVAILABLE")]:
        rig.faults.script(FaultRule("get", fault, "-data.arrow"))
        with pytest.raises(PenstockError, match=rf"\[{code}\]"):
            rig.rows()
    assert rig.rows() == ROWS


@pytest.mark.parametrize("fault", [Fault.FLIP_BIT, Fault.SHORTEN])
def test_a_damaged_object_is_corrupt(rig: Rig, fault: Fault) -> None:
    rig.store.flush(SPAN_ID)
    rig.faults.script(FaultRule("get", fault, "-data.arrow"))
    with pytest.raises(PenstockError, match=r"\[OBJECT_CORRUPT\]"):
        rig.rows()
    assert rig.rows() == ROWS
    rig.faults.script(FaultRule("get", fault, "-data.arrow"))
    with pytest.raises(PenstockError, match=r"\[OBJECT_CORRUPT\]"):
        rig.rows()


@pytest.mark.parametrize(("fault", "code"), [(Fault.FLIP_BIT, "OBJECT_CORRUPT"), (Fault.SHORTEN, "OBJECT_CORRUPT")])
def test_a_damaged_manifest_stops_recovery(rig: Rig, fault: Fault, code: str) -> None:
    rig.store.flush(SPAN_ID)
    rig.faults.script(FaultRule("get", fault, "manifest"))
    with pytest.raises(PenstockError, match=rf"\[{code}\]"):
        rig.reopen()


def test_reads_and_appends_go_on_while_a_flush_is_slow(rig: Rig) -> None:
    held = rig.faults.script(FaultRule("put", Fault.HOLD, "-data.arrow"))
    flush = threading.Thread(target=rig.store.flush, args=(SPAN_ID,))
    flush.start()
    assert held.held.wait(WAIT_S)
    more = [(ts, Op.INSERT, ts, "more") for ts in range(101, 120)]
    rig.append(more, 150)
    assert rig.rows(150) == [*ROWS, *more]
    held.release.set()
    flush.join(WAIT_S)
    assert rig.rows(150) == [*ROWS, *more]
    rig.reopen()
    assert (rig.rows(150), rig.objects()) == ([*ROWS, *more], len(ROWS))


def test_another_owner_of_the_span_is_noticed(rig: Rig, tmp_path: Path) -> None:
    other = ColumnarEventStore(tmp_path / "other", objects=ObjectSpace((tmp_path / "objects").as_uri()))
    other.register_span(SPAN_ID, SPAN, 0)
    durable = threading.Event()
    other.append(SPAN_ID, both_sides(SPAN_ID, ROWS[:3]), durable.set)
    assert durable.wait(WAIT_S)
    other.advance_resolved_ts(SPAN_ID, 90)
    assert other.flush(SPAN_ID)
    other.close()
    with pytest.raises(PenstockError, match=r"\[FENCED\]"):
        rig.store.flush(SPAN_ID)


def test_appends_report_a_flush_that_keeps_failing_and_recover_with_it(tmp_path: Path) -> None:
    faults = FaultyObjects(ObstoreBackend((tmp_path / "objects").as_uri()))
    rule = faults.script(FaultRule("put", Fault.FAIL, times=1_000_000))
    with ColumnarEventStore(tmp_path, StoreSettings(flush_bytes=2_000), objects=ObjectSpace("faulty:///", backend=faults)) as store:
        store.register_span(SPAN_ID, SPAN, 0)
        accepted: list[tuple[int, Op, int, str]] = []
        with pytest.raises(PenstockError, match=r"\[STORE_FAILED\]"):
            append_until_refused(store, accepted)
        rule.times = 0
        # The flusher may have come first, then there is nothing left to do.
        store.flush(SPAN_ID)
        assert not store.flush(SPAN_ID), "everything is in objects"
        store.append(SPAN_ID, both_sides(SPAN_ID, [(9_000, Op.INSERT, 1, "again")]), lambda: None)
        assert read_rows(store.collect_changes(SPAN_ID, 5, accepted[-1][0])) == accepted


def append_until_refused(store: ColumnarEventStore, accepted: list[tuple[int, Op, int, str]]) -> None:
    for ts in range(10, 5_000):
        durable = threading.Event()
        rows = [(ts, Op.INSERT, ts * 10 + n, "x" * 30) for n in range(10)]
        store.append(SPAN_ID, both_sides(SPAN_ID, rows), durable.set)
        assert durable.wait(WAIT_S)
        accepted += rows
        store.advance_resolved_ts(SPAN_ID, ts)


KEPT = StoreSettings(history_seconds=0, checkpoint_seconds=10**10)


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Rig]:
    """A rig with merged objects, whose sources are about to leave for a checkpoint."""
    rig = Rig(tmp_path, KEPT)
    rig.append(ROWS, 100)
    rig.store.flush(SPAN_ID)
    rig.store.merge(SPAN_ID)
    rig.append([(200, Op.DELETE, 10, "row 10")], 210)
    rig.store.flush(SPAN_ID)
    yield rig
    rig.store.close()


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.FAIL_AFTER_WRITE])
@pytest.mark.parametrize("part", ["checkpoint", "manifest"])
@pytest.mark.parametrize("reopen", [False, True])
def test_history_that_fails_to_leave_stays_readable(old: Rig, fault: Fault, part: str, reopen: bool) -> None:
    old.faults.script(FaultRule("put", fault, part))
    with pytest.raises(PenstockError, match=r"\[STORE_FAILED\]"):
        old.store.expire_history({SPAN_ID: 210})
    if reopen:
        old.reopen()
    everything = [*ROWS, (200, Op.DELETE, 10, "row 10")]
    assert old.rows(210) == everything
    old.store.expire_history({SPAN_ID: 210})
    assert old.store.view(SPAN_ID).state.history_start_ts >= 100
    for _ in range(2):
        assert old.rows(210) == everything
        assert len(read_rows(old.store.collect_changes(SPAN_ID, 0, 210))) == len(ROWS) - 1
        old.reopen()


@pytest.mark.parametrize("fault", [Fault.FLIP_BIT, Fault.SHORTEN])
def test_a_damaged_checkpoint_stops_recovery(old: Rig, fault: Fault) -> None:
    old.store.expire_history({SPAN_ID: 210})
    old.faults.script(FaultRule("get", fault, "checkpoint"))
    with pytest.raises(PenstockError, match=r"\[OBJECT_CORRUPT\]"):
        old.reopen()


@pytest.mark.parametrize(
    ("fault", "code"), [(Fault.MISSING, "OBJECT_MISSING"), (Fault.FAIL, "OBJECT_UNAVAILABLE"), (Fault.FLIP_BIT, "OBJECT_CORRUPT")]
)
def test_a_state_and_a_merge_never_leave_out_an_object_that_cannot_be_read(old: Rig, fault: Fault, code: str) -> None:
    for read in (lambda: read_rows(old.store.collect_changes(SPAN_ID, 0, 210)), lambda: old.store.merge(SPAN_ID)):
        old.faults.script(FaultRule("get", fault, "-data.arrow"))
        with pytest.raises(PenstockError, match=rf"\[{code}\]"):
            read()
    assert len(read_rows(old.store.collect_changes(SPAN_ID, 0, 210))) == len(ROWS) - 1
    assert old.store.merge(SPAN_ID) > 0
    assert len(read_rows(old.store.collect_changes(SPAN_ID, 0, 210))) == len(ROWS) - 1


def test_an_object_that_could_not_be_deleted_is_removed_on_opening(tmp_path: Path) -> None:
    rig = Rig(tmp_path, StoreSettings(history_seconds=0, checkpoint_seconds=0))
    rig.append(ROWS, 100)
    rig.store.flush(SPAN_ID)
    rig.store.merge(SPAN_ID)
    rig.append([(200, Op.DELETE, 10, "row 10")], 210)
    rig.store.flush(SPAN_ID)
    rig.faults.script(FaultRule("delete", Fault.FAIL, ".arrow"))
    with pytest.raises(PenstockError, match=r"\[OBJECT_UNAVAILABLE\]"):
        rig.store.expire_history({SPAN_ID: 210})
    rig.reopen()
    named = {o.path for o in rig.store.view(SPAN_ID).state.objects}
    assert set(rig.store.objects.list_names(f"spans/{SPAN_ID}/objects/")) == named
    with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
        rig.rows(210)
    rig.store.close()
