"""The storage engine as a whole: acknowledgements, back-pressure, order under concurrency, cuts by the clock, drains, reports."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from penstock.feed.window.delivery import deliver
from penstock.feed.window.steps import WorkEnd, WorkStep
from penstock.model import failpoints
from penstock.model.batch import Op
from penstock.model.clock import Clock
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent
from penstock.sink.storage.cut_records import CUTS_DIR
from penstock.sink.storage.sink import EngineSettings, StorageSink
from penstock.sink.storage.spool.spool import SpoolSettings
from penstock.sink.storage.writer import WriterSettings
from penstock.sink.wake_gate import WakeGate, WakeGateSettings
from penstock.target.settings import StorageSinkSettings, from_uri
from testing.paths.storage_target import ScriptedTarget
from testing.twins.clock import SimulatedClock
from testing.twins.object_store import Fault, FaultRule

WAIT_S = 10
T0 = compose_ts(1_700_000_000_000)
COLUMNS = (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "note", ColumnType(TypeKind.VARCHAR, length=400)))
D = DispatcherId(7)
NUMBER = re.compile(r"(\d+)\.csv\Z")


def table_of(table_id: int, version: int = T0) -> TableSchema:
    return TableSchema(table_id, "shop", f"t{table_id}", version, COLUMNS)


def rows(start: int, count: int, width: int = 40, ts: int | None = None) -> pa.RecordBatch:
    columns = [
        pa.array([T0 + 1 + (ts if ts is not None else start + i) for i in range(count)], pa.uint64()),
        pa.array([Op.INSERT] * count, pa.uint8()),
        pa.array(range(start, start + count), pa.int64()),
        pa.array([f"{i:0{width}d}" for i in range(start, start + count)]),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["_ts", "_op", "c1", "c2"])


def settings_of(query: str = "file-size=4096") -> StorageSinkSettings:
    return from_uri(f"memory:///?{query}")[1]


class Acks:
    """What an event's callbacks said, in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._changed = threading.Condition()

    def note(self, text: str) -> Callable[[], None]:
        def append() -> None:
            with self._changed:
                self.seen.append(text)
                self._changed.notify_all()

        return append

    def event(self, name: int, records: pa.RecordBatch, dispatcher: DispatcherId = D) -> DmlEvent:
        return DmlEvent(dispatcher, table_of(dispatcher.table_id), records, self.note(f"enqueued {name}"), self.note(f"flushed {name}"))

    def count(self, kind: str) -> int:
        return sum(text.startswith(kind) for text in self.seen)

    def wait(self, kind: str, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.count(kind) >= count, WAIT_S)


@pytest.fixture
def made() -> Iterator[list[StorageSink]]:
    sinks: list[StorageSink] = []
    yield sinks
    failpoints.arm("")
    for sink in sinks:
        sink.close()


def open_sink(
    made: list[StorageSink], target: ScriptedTarget, settings: StorageSinkSettings, clock: Clock | None = None, **engine: object
) -> StorageSink:
    sink = StorageSink(target, settings, clock, EngineSettings(**engine))  # type: ignore[arg-type]
    made.append(sink)
    return sink


def work(dispatcher: DispatcherId = D, from_ts: int = T0) -> DispatcherWork:
    return DispatcherWork(dispatcher, table_of(dispatcher.table_id), from_ts, T0 + 10**9)


def test_events_are_woken_while_the_target_hangs_and_flushed_when_it_answers(made: list[StorageSink]) -> None:
    target, acks = ScriptedTarget(), Acks()
    hang = target.script(FaultRule("create", Fault.HOLD, "CDC", times=1000))
    sink = open_sink(made, target, settings_of())
    sink.open_dispatcher(work())
    for n in range(100):
        sink.add_dml_event(acks.event(n, rows(n * 20, 20)))
    assert acks.wait("enqueued", 100)
    assert acks.count("flushed") == 0
    assert hang.held.wait(WAIT_S)
    hang.times = 0
    hang.release.set()
    result = sink.close_dispatcher(D)
    assert acks.seen == [f"enqueued {n}" for n in range(100)] + [f"flushed {n}" for n in range(100)]
    assert result.rows == sum(f.rows for f in result.files) == 2000


def test_wakes_stop_when_the_spool_is_full_and_go_on_in_order(made: list[StorageSink]) -> None:
    target, acks = ScriptedTarget(), Acks()
    hang = target.script(FaultRule("create", Fault.HOLD, "CDC", times=1000))
    sink = open_sink(made, target, settings_of(), spool=SpoolSettings(quota_bytes=64 << 10, memory_ratio=0.2))
    sink.open_dispatcher(work())
    for n in range(200):
        sink.add_dml_event(acks.event(n, rows(n * 20, 20)))
    # 20 rows are some 1.6 KB encoded: about 30 events are below 0.8 of the quota.
    assert acks.wait("enqueued", 25)
    drained = threading.Thread(target=lambda: sink.pass_block_event(D, DdlEvent(T0 + 10**8, DdlType.TABLE_COMMENT, "", "shop")))
    drained.start()
    assert hang.held.wait(WAIT_S)
    # Everything is encoded and in the spool, most of it on disk; most events are not woken.
    pause = threading.Event()
    for _ in range(1000):
        if sink.engine.spool.level.nbytes > 200 * 1500:
            break
        pause.wait(0.01)
    assert sink.engine.spool.level.memory_bytes <= 64 << 10
    assert acks.count("enqueued") < 50
    assert acks.count("flushed") == 0
    hang.times = 0
    hang.release.set()
    drained.join(WAIT_S)
    assert acks.wait("enqueued", 200)
    assert [text for text in acks.seen if text.startswith("enqueued")] == [f"enqueued {n}" for n in range(200)]
    assert [text for text in acks.seen if text.startswith("flushed")] == [f"flushed {n}" for n in range(200)]
    sink.close_dispatcher(D)
    counters = sink.report().counters
    assert counters["wake_calls_total"] == 200
    assert 150 <= counters["wake_suppressed_total"] < 200
    assert counters["spool_spilled_bytes_total"] > 100_000
    assert sink.engine.spool.level.nbytes == sink.engine.spool.level.items == 0


@pytest.mark.parametrize(("operation", "part"), [("create", "CDC"), ("write", "index"), ("create", "schema_"), ("list", ".penstock")])
@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.FAIL_AFTER_WRITE])
def test_a_failure_fires_nothing_and_reaches_the_caller(made: list[StorageSink], operation: str, part: str, fault: Fault) -> None:
    target, acks = ScriptedTarget(), Acks()
    target.script(FaultRule(operation, fault, part))
    sink = open_sink(made, target, settings_of("file-size=1048576"))
    failed = threading.Event()
    sink.on_failure(failed.set)
    sink.open_dispatcher(work())
    sink.add_dml_event(acks.event(0, rows(0, 20)))
    with contextlib.suppress(PenstockError):
        sink.seal_dispatcher(D)
    assert failed.wait(WAIT_S)
    for call in (
        lambda: sink.close_dispatcher(D),
        lambda: sink.add_dml_event(acks.event(1, rows(90, 1))),
        lambda: sink.open_dispatcher(work()),
    ):
        with pytest.raises(PenstockError, match="SINK_UNAVAILABLE"):
            call()
    assert acks.count("flushed") == 0


def test_files_of_one_dispatcher_go_in_order_and_an_index_may_stand_for_several(made: list[StorageSink]) -> None:
    target, acks = ScriptedTarget(), Acks()
    held = target.script(FaultRule("write", Fault.HOLD, "index"))
    sink = open_sink(made, target, settings_of())
    sink.open_dispatcher(work())
    for n in range(40):
        sink.add_dml_event(acks.event(n, rows(n * 20, 20)))
    sink.seal_dispatcher(D)
    pause = threading.Event()
    for _ in range(1000):
        if sum("CDC0" in path for _, path in target.calls) >= 5:
            break
        pause.wait(0.01)
    assert held.held.wait(WAIT_S)
    assert not any("index" in path for _, path in target.calls)
    assert acks.count("flushed") == 0
    held.release.set()
    result = sink.close_dispatcher(D)
    data = [int(NUMBER.search(path)[1]) for verb, path in target.calls if "CDC0" in path]  # type: ignore[index]
    assert data == [int(NUMBER.search(f.path)[1]) for f in result.files] == list(range(1, len(result.files) + 1))  # type: ignore[index]
    assert 1 <= sum("index" in path for _, path in target.calls) < len(result.files)
    assert [text for text in acks.seen if text.startswith("flushed")] == [f"flushed {n}" for n in range(40)]


def test_what_is_under_way_is_bounded(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    sink = open_sink(made, target, settings_of(), writers=WriterSettings(flush_concurrency=3))
    hang = target.script(FaultRule("create", Fault.HOLD, "CDC", times=3))
    parts = [DispatcherId(n) for n in range(1, 11)]
    for part in parts:
        sink.open_dispatcher(work(part))
        sink.add_dml_event(DmlEvent(part, table_of(part.table_id), rows(0, 20)))
        sink.seal_dispatcher(part)
    pause = threading.Event()
    for _ in range(1000):
        if target.under_way_max >= 3:
            break
        pause.wait(0.01)
    hang.release.set()
    for part in parts:
        sink.close_dispatcher(part)
    assert 3 <= target.under_way_max <= 4  # Three writers, and the encoder that lists recorded cuts.
    alone = ScriptedTarget()
    sink = open_sink(made, alone, settings_of(), writers=WriterSettings(under_way_bytes_max=1000))
    sink.open_dispatcher(work())
    for n in range(40):
        sink.add_dml_event(DmlEvent(D, table_of(7), rows(n * 20, 20)))
    assert len(sink.close_dispatcher(D).files) > 10
    assert alone.under_way_max <= 3


def test_files_come_close_to_the_wanted_size(made: list[StorageSink]) -> None:
    sink = open_sink(made, ScriptedTarget(), settings_of("file-size=1048576"))
    sink.open_dispatcher(work())
    for n in range(60):
        sink.add_dml_event(DmlEvent(D, table_of(7), rows(n * 2000, 2000)))
    sizes = [f.nbytes for f in sink.close_dispatcher(D).files]
    assert len(sizes) > 5
    assert all(1048576 <= size <= 1048576 * 1.1 for size in sizes[:-1])
    histogram = sink.report().histograms["flush_file_size_bytes"]
    assert (sum(histogram.counts), histogram.total) == (len(sizes), sum(sizes))


def test_many_dispatchers_flush_side_by_side(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    sink = open_sink(made, target, settings_of("file-size=1048576"))
    parts = [DispatcherId(n) for n in range(1, 101)]
    for part in parts:
        sink.open_dispatcher(work(part))
        sink.add_dml_event(DmlEvent(part, table_of(part.table_id), rows(part.table_id, 3)))
        sink.seal_dispatcher(part)
    results = [sink.close_dispatcher(part) for part in parts]
    assert [(r.dispatcher, r.rows, len(r.files)) for r in results] == [(part, 3, 1) for part in parts]
    for part in parts:
        assert target.get(results[part.table_id - 1].files[0].path).count(b"\r\n") == 3
    assert sink.report().counters["flush_count{reason=close}"] == 100
    assert sink._dispatchers == {}


def test_a_table_whose_encoding_is_slow_delays_nobody_else(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    # Before its first row is encoded, an encoder reads the recorded cuts of its dispatcher: here one that hangs.
    target.put(f"{CUTS_DIR}/{DispatcherId(1)}/{T0}/000000", b'{"rows":5,"file":0}')
    slow = target.script(FaultRule("read", Fault.HOLD, CUTS_DIR))
    sink = open_sink(made, target, settings_of(), encoder_threads=2)
    parts = [DispatcherId(n) for n in range(1, 21)]
    for part in parts:
        sink.open_dispatcher(work(part))
        for n in range(5):
            sink.add_dml_event(DmlEvent(part, table_of(part.table_id), rows(n * 20, 20)))
        sink.seal_dispatcher(part)
    assert slow.held.wait(WAIT_S)
    for part in parts[1:]:
        assert sink.close_dispatcher(part).rows == 100
    slow.release.set()
    assert next(f.rows for f in sink.close_dispatcher(parts[0]).files) == 5


# A task's way into the sink


def steps(parts: list[DispatcherId], events: int, rows_each: int = 20) -> Iterator[WorkStep]:
    for part in parts:
        yield work(part)
        for n in range(events):
            yield rows(n * rows_each, rows_each)
        yield WorkEnd()


def test_a_task_delivers_dispatchers_one_after_the_other_and_waits_at_the_end(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    held = target.script(FaultRule("create", Fault.HOLD, "/t1/", times=100))
    sink = open_sink(made, target, settings_of())
    parts = [DispatcherId(n) for n in range(1, 6)]
    results: list[DispatcherResult] = []
    task = threading.Thread(target=lambda: results.extend(deliver(sink, steps(parts, 10))))
    task.start()
    pause = threading.Event()
    for _ in range(1000):
        if sum("/t5/" in path and "index" in path for _, path in target.calls):
            break
        pause.wait(0.01)
    # The first dispatcher hangs, the last one has files already.
    assert held.held.is_set()
    assert task.is_alive()
    held.times = 0
    held.release.set()
    task.join(WAIT_S)
    assert [(r.dispatcher, r.rows) for r in results] == [(part, 200) for part in parts]


def test_a_task_is_held_up_by_a_full_spool_and_not_by_a_failed_one(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    held = target.script(FaultRule("create", Fault.HOLD, "CDC"))
    target.script(FaultRule("create", Fault.FAIL, "CDC"))
    sink = open_sink(made, target, settings_of(), spool=SpoolSettings(quota_bytes=16 << 10))
    read: list[int] = []
    errors: list[BaseException] = []

    def counted() -> Iterator[WorkStep]:
        for number, row in enumerate(steps([D], 2000)):
            read.append(number)
            yield row

    def run() -> None:
        try:
            deliver(sink, counted())
        except PenstockError as error:
            errors.append(error)

    task = threading.Thread(target=run)
    task.start()
    assert held.held.wait(WAIT_S)
    pause = threading.Event()
    before = -1
    while before != len(read):
        before = len(read)
        pause.wait(0.3)
    # What is in the spool and what the gate lets wait, and no more.
    assert 60 < len(read) < 200
    # The held file is put now, the next one fails: the task sees it although nobody wakes it any more.
    held.release.set()
    task.join(WAIT_S)
    assert [error.code for error in errors] == ["SINK_UNAVAILABLE"]  # type: ignore[attr-defined]


# Cuts by the clock


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


# Block events


def test_a_drain_that_fails_stops_before_the_schema_file(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    target.script(FaultRule("write", Fault.FAIL, "CDC.index"))
    sink = open_sink(made, target, settings_of())
    after = table_of(7, T0 + 500)
    ddl = DdlEvent(T0 + 500, DdlType.ADD_COLUMN, "ALTER TABLE t7 ADD n INT", "shop", (after,))
    sink.open_dispatcher(work())
    sink.add_dml_event(DmlEvent(D, table_of(7), rows(0, 10)))
    with pytest.raises(PenstockError, match="SINK_UNAVAILABLE"):
        sink.pass_block_event(D, ddl)
    with pytest.raises(PenstockError, match="SINK_UNAVAILABLE"):
        sink.write_block_event(D, ddl)
    assert [path for path in target.paths() if f"schema_{T0 + 500}" in path] == []


def test_a_ddl_of_one_dispatcher_inside_a_window(made: list[StorageSink]) -> None:
    target = ScriptedTarget()
    sink = open_sink(made, target, settings_of())
    other = DispatcherId(8)
    after = TableSchema(7, "shop", "t7", T0 + 500, (*COLUMNS, Column(3, "n", ColumnType(TypeKind.INT))))
    ddl = DdlEvent(T0 + 500, DdlType.ADD_COLUMN, "ALTER TABLE t7 ADD n INT", "shop", (after,))
    sink.open_dispatcher(work())
    sink.open_dispatcher(work(other))
    sink.add_dml_event(DmlEvent(other, table_of(8), rows(0, 10)))
    sink.add_dml_event(DmlEvent(D, table_of(7), rows(0, 10)))
    sink.pass_block_event(D, ddl)
    before = [path for path in target.paths() if "/t7/" in path]
    (schema,) = sink.write_block_event(D, ddl)
    assert schema not in before
    assert any("CDC" in path for path in before)
    assert not any("CDC" in path for path in target.paths() if "/t8/" in path)
    more = rows(600, 10).append_column("c3", pa.array([1] * 10, pa.int32()))
    sink.add_dml_event(DmlEvent(D, after, more))
    assert [f.rows for f in sink.close_dispatcher(D).files] == [10, 10]
    with pytest.raises(PenstockError, match="INTERNAL"):
        sink.write_block_event(D, ddl)
    report = sink.report()
    assert report.counters["ddl_affected_dispatchers"] == 1
    for name in ("ddl_drain_duration_seconds", "ddl_drain_wait_encode_seconds", "ddl_drain_wait_remote_seconds"):
        assert sum(report.histograms[name].counts) == 1


def test_a_sealed_dispatcher_takes_nothing_more(made: list[StorageSink]) -> None:
    sink = open_sink(made, ScriptedTarget(), settings_of())
    sink.open_dispatcher(work())
    sink.seal_dispatcher(D)
    with pytest.raises(PenstockError, match="sealed"):
        sink.add_dml_event(DmlEvent(D, table_of(7), rows(0, 1)))
