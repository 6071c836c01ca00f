"""The storage engine as a whole: acknowledgements, back-pressure, order under concurrency, cuts by the clock, drains, reports."""

import contextlib
import re
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.contract import DispatcherId, DmlEvent
from penstock.sink.storage.cut_records import CUTS_DIR
from penstock.sink.storage.sink import StorageSink
from penstock.sink.storage.spool.spool import SpoolSettings
from penstock.sink.storage.writer import WriterSettings
from testing.paths.sink_rig import T0, WAIT_S, Acks, D, closing_sinks, open_sink, rows, settings_of, table_of, work
from testing.paths.storage_target import ScriptedTarget
from testing.servers.waiting import wait_until
from testing.twins.object_store import Fault, FaultRule

NUMBER = re.compile(r"(\d+)\.csv\Z")


@pytest.fixture
def made() -> Iterator[list[StorageSink]]:
    with closing_sinks() as sinks:
        yield sinks


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
    wait_until(lambda: sink.engine.spool.level.nbytes > 200 * 1500, "not everything is in the spool", WAIT_S)
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
    after = TableSchema(7, "shop", "t7", T0 + 500, (*table_of(7).columns, Column(3, "n", ColumnType(TypeKind.INT))))
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
