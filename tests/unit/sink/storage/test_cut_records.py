"""Cuts by the clock: recorded before their file, obeyed by every replay."""

import re
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.model import failpoints
from penstock.model.errors import PenstockError
from penstock.sink.contract import DispatcherResult, DispatcherWork, DmlEvent
from penstock.sink.storage.cut_records import CUTS_DIR
from penstock.sink.storage.sink import StorageSink
from penstock.sink.storage.spool.spool import SpoolSettings
from penstock.sink.wake_gate import WakeGate, WakeGateSettings
from testing.paths.sink_rig import T0, WAIT_S, Acks, D, closing_sinks, open_sink, rows, settings_of, table_of, work
from testing.paths.storage_target import ScriptedTarget
from testing.twins.clock import SimulatedClock
from testing.twins.object_store import Fault, FaultRule

NUMBER = re.compile(r"(\d+)\.csv\Z")


@pytest.fixture
def made() -> Iterator[list[StorageSink]]:
    with closing_sinks() as sinks:
        yield sinks


class ClockRig:
    """A sink on a simulated clock, whose window lasts longer than its flush interval."""

    def __init__(self, made: list[StorageSink], target: ScriptedTarget, query: str = "file-size=1048576") -> None:
        self.clock = SimulatedClock()
        self.acks = Acks()
        self.sink = open_sink(made, target, settings_of(query + "&flush-interval=5s"), self.clock)
        self.sink.open_dispatcher(work())
        self._number = 0

    def add(self, records: pa.RecordBatch) -> None:
        self._number += 1
        self.sink.add_dml_event(self.acks.event(self._number, records))
        assert self.acks.wait("enqueued", self._number)

    def pass_interval(self, flushed: int) -> None:
        self.clock.wait_for_waiters(1)
        self.clock.advance(5)
        assert self.acks.wait("flushed", flushed)

    def close(self) -> DispatcherResult:
        result = self.sink.close_dispatcher(D)
        self.sink.close()
        return result


def long_window(made: list[StorageSink], target: ScriptedTarget, query: str = "file-size=1048576") -> DispatcherResult:
    rig = ClockRig(made, target, query)
    rig.add(rows(0, 30))
    rig.add(rows(30, 30))
    rig.pass_interval(2)
    rig.add(rows(60, 50))
    rig.pass_interval(3)
    rig.add(rows(110, 10))
    return rig.close()


def replayed(made: list[StorageSink], target: ScriptedTarget, sizes: tuple[int, ...], query: str = "file-size=1048576") -> DispatcherResult:
    rig = ClockRig(made, target, query)
    at = 0
    for size in sizes:
        rig.add(rows(at, size))
        at += size
    return rig.close()


def test_the_clock_cuts_a_long_window_and_a_replay_cuts_at_the_same_rows(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    result = long_window(made, target)
    assert [f.rows for f in result.files] == [60, 50, 10]
    records = sorted(p for p in target.paths(CUTS_DIR))
    assert len(records) == 2
    before = target.contents()
    for sizes in ((120,), (59, 1, 60), (60, 60), (7, 113)):
        assert replayed(made, target, sizes) == result
        assert target.contents() == before
    # The record of a cut is there before its file.
    for number, record in enumerate(records, 1):
        order = [path for verb, path in target.calls if verb == "create"]
        assert order.index(record) < next(i for i, path in enumerate(order) if path.endswith(f"{number}.csv"))


@pytest.mark.parametrize("point", ["cut-record:before", "cut-record:after", "data-put:before", "data-put:after", "index-put:before"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_crash_around_a_cut_by_the_clock_leaves_one_outcome(made: list[StorageSink], point: str, number: int) -> None:
    target = ScriptedTarget()
    failpoints.arm(f"{point}=raise@{number}")
    rig = ClockRig(made, target)
    failed = threading.Event()
    rig.sink.on_failure(failed.set)
    rig.add(rows(0, 60))
    if number == 1:
        rig.clock.wait_for_waiters(1)
        rig.clock.advance(5)
    else:
        rig.pass_interval(1)
        rig.add(rows(60, 50))
        rig.clock.wait_for_waiters(1)
        rig.clock.advance(5)
    assert failed.wait(WAIT_S)
    with pytest.raises(PenstockError, match="FAILPOINT"):
        rig.close()
    failpoints.arm("")
    published = target.contents()
    result = replayed(made, target, (120,))
    after = target.contents()
    assert {path: after[path] for path in published if "index" not in path} == {p: c for p, c in published.items() if "index" not in p}
    assert [int(NUMBER.search(f.path)[1]) for f in result.files] == list(range(1, len(result.files) + 1))  # type: ignore[index]
    assert sum(f.rows for f in result.files) == 120
    assert replayed(made, target, (50, 70)) == result


def test_an_attempt_that_does_not_know_of_another_s_cut_is_tried_again(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    first = ClockRig(made, target)
    first.add(rows(0, 40))
    second = ClockRig(made, target)
    second.add(rows(0, 70))
    first.pass_interval(1)
    # The second attempt listed the records before the first one wrote its own.
    with pytest.raises(PenstockError, match="CUT_CONFLICT"):
        second.close()
    first.add(rows(40, 80))
    result = first.close()
    assert [f.rows for f in result.files] == [40, 80]
    assert replayed(made, target, (120,)) == result


def test_a_record_that_lost_against_a_file_is_withdrawn(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    quick = ClockRig(made, target)
    quick.add(rows(0, 60))
    slow = ClockRig(made, target)
    slow.add(rows(0, 40))
    held = target.script(FaultRule("create", Fault.HOLD, "CDC"))
    slow.clock.wait_for_waiters(1)
    slow.clock.advance(5)
    assert held.held.wait(WAIT_S)
    # It recorded its cut and has not published the file. Another attempt, which looked for records before that, publishes by its rows.
    quick.add(rows(60, 60))
    result = quick.close()
    held.release.set()
    with pytest.raises(PenstockError, match="CUT_CONFLICT"):
        slow.close()
    (record,) = target.paths(CUTS_DIR)
    assert target.get(record) == b'{"rows":0,"file":0}'
    assert replayed(made, target, (120,)) == result
    # However slow an attempt is, it does not cut this file by the clock again.
    slow = ClockRig(made, target)
    slow.add(rows(0, 40))
    for _ in range(3):
        slow.clock.wait_for_waiters(1)
        slow.clock.advance(5)
    slow.add(rows(40, 80))
    assert slow.close() == result


def test_a_slow_replay_waits_for_the_recorded_cuts(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    result = long_window(made, target)
    slow = ClockRig(made, target)
    for n in range(12):
        slow.add(rows(n * 10, 10))
        slow.clock.wait_for_waiters(1)
        slow.clock.advance(6)
    assert slow.close() == result


def test_foreign_bytes_stay_a_conflict(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    target.put(f"shop/t7/{T0}/2023-11-14/CDC00000000000000000001.csv", b"foreign")
    with pytest.raises(PenstockError, match="SINK_CONFLICT"):
        replayed(made, target, (120,))


def test_records_of_earlier_windows_are_deleted(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    result = long_window(made, target)
    sink = open_sink(made, target, settings_of())
    sink.open_dispatcher(changed(work(), from_ts=T0 + 500, position=result.position))
    sink.add_dml_event(DmlEvent(D, table_of(7), rows(600, 5)))
    sink.close_dispatcher(D)
    assert list(target.paths(CUTS_DIR)) == []


def changed(given: DispatcherWork, **changes: object) -> DispatcherWork:
    return DispatcherWork(**{**{f: getattr(given, f) for f in given.__struct_fields__}, **changes})  # type: ignore[arg-type]


def test_a_cut_by_size_comes_before_the_clock(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    rig = ClockRig(made, target, "file-size=4096")
    rig.add(rows(0, 40))
    rig.clock.wait_for_waiters(1)
    rig.clock.advance(4)
    # This fills the file; what is left of it came one second before the interval ends.
    rig.add(rows(40, 40))
    rig.clock.wait_for_waiters(1)
    rig.clock.advance(1)
    rig.clock.wait_for_waiters(1)
    assert list(target.paths(CUTS_DIR)) == []
    rig.pass_interval(2)
    assert len(list(target.paths(CUTS_DIR))) == 1
    rig.close()


def test_transactions_stay_whole_when_the_clock_cuts(made: list[StorageSink]) -> None:
    target, query = ScriptedTarget(), "file-size=1048576&transaction-atomicity=table"

    def attempt() -> DispatcherResult:
        rig = ClockRig(made, target, query)
        rig.add(rows(0, 10, ts=5))
        if not list(target.paths(CUTS_DIR)):
            rig.clock.wait_for_waiters(1)
            rig.clock.advance(5)
        rig.add(rows(10, 10, ts=5))
        rig.add(pa.concat_batches([rows(20, 10, ts=5), rows(30, 10, ts=6)]))
        return rig.close()

    result = attempt()
    assert [f.rows for f in result.files] == [30, 10]
    assert attempt() == result


def fed_through_a_small_spool(sink: StorageSink, clock: SimulatedClock, events: list[pa.RecordBatch]) -> DispatcherResult:
    """Hand events over as a task does, while time passes whenever the spool holds their wakes back."""
    gate = WakeGate(WakeGateSettings(events_max=2))
    sink.open_dispatcher(work())
    ended = threading.Event()

    def feed() -> None:
        for records in events:
            sink.add_dml_event(DmlEvent(D, table_of(7), records, gate.enter(1)))
        ended.set()

    feeder = threading.Thread(target=feed)
    feeder.start()
    for _ in range(500):
        if ended.wait(0.02):
            break
        if sink.engine.spool.wakes.waiting:
            clock.wait_for_waiters(1)
            clock.advance(5)
    feeder.join(WAIT_S)
    assert sink.report().counters["wake_suppressed_total"] > 5
    return sink.close_dispatcher(D)


def test_a_whole_transaction_larger_than_the_spool_gets_through(made: list[StorageSink]) -> None:
    clock = SimulatedClock()
    settings = settings_of("file-size=4096&transaction-atomicity=table&flush-interval=5s")
    sink = open_sink(made, ScriptedTarget(), settings, clock, spool=SpoolSettings(quota_bytes=16 << 10))
    result = fed_through_a_small_spool(sink, clock, [rows(n * 1000, 1000, 5, ts=5) for n in range(30)])
    assert [f.rows for f in result.files] == [30_000]


def test_a_recorded_cut_beyond_what_the_spool_holds_is_reached(made: list[StorageSink]) -> None:
    """Until then the replay's own clock rests, so nothing is written that would make room."""
    target, query = ScriptedTarget(), "file-size=65536"
    rig = ClockRig(made, target, query)
    for n in range(7):
        rig.add(rows(n * 100, 100))
    rig.pass_interval(7)
    result = rig.close()
    assert [f.rows for f in result.files] == [700]
    clock = SimulatedClock()
    again = open_sink(made, target, settings_of(query + "&flush-interval=5s"), clock, spool=SpoolSettings(quota_bytes=16 << 10))
    assert fed_through_a_small_spool(again, clock, [rows(n * 25, 25) for n in range(28)]) == result
