"""Every target behind ``penstock.sink.contract`` passes this suite."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent
from testing.targets.database_kit import MYSQL
from testing.targets.kit import Kit
from testing.targets.kits import FILE_KITS, KITS

T0 = compose_ts(1_700_000_000_000)
TABLE = TableSchema(
    7,
    "shop",
    "orders",
    T0,
    (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "note", ColumnType(TypeKind.VARCHAR, length=40))),
)
WHOLE = DispatcherId(7)


@pytest.fixture(params=[MYSQL if name == "mysql" else name for name in sorted(KITS)])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    with KITS[request.param](tmp_path) as kit:
        yield kit


@pytest.fixture(params=sorted(FILE_KITS))
def files_kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    with FILE_KITS[request.param](tmp_path) as kit:
        yield kit


def rows_of(changes: list[tuple[int, Op, int, str | None]], table: TableSchema = TABLE) -> pa.RecordBatch:
    ts, ops, ids, notes = zip(*changes, strict=True)
    columns = [pa.array(ts, pa.uint64()), pa.array(ops, pa.uint8()), pa.array(ids, pa.int64()), pa.array(notes, pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=["_ts", "_op", *(c.field_name for c in table.columns)])


def inserts(count: int, start: int = 0) -> pa.RecordBatch:
    return rows_of([(T0 + 1 + i, Op.INSERT, i, f"note {i}") for i in range(start, start + count)])


END = T0 + 1_000_000


def run_window(
    kit: Kit, events: list[pa.RecordBatch], position: dict[str, int] | None = None, from_ts: int = T0, to_ts: int = END
) -> DispatcherResult:
    sink = kit.open_sink()
    try:
        sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, from_ts, to_ts, position or {}))
        for records in events:
            sink.add_dml_event(DmlEvent(WHOLE, TABLE, records))
        return sink.close_dispatcher(WHOLE)
    finally:
        sink.close()


def publish(kit: Kit, checkpoint_ts: int, *results: DispatcherResult, from_ts: int = T0, to_ts: int = END) -> None:
    maintainer = kit.open_maintainer()
    maintainer.record_window(from_ts, to_ts, results)
    maintainer.publish_checkpoint(checkpoint_ts)


def test_rows_are_in_the_target_when_a_dispatcher_closes(kit: Kit) -> None:
    changes = [(T0 + 1, Op.INSERT, 1, "a"), (T0 + 2, Op.INSERT, 2, None), (T0 + 3, Op.UPDATE, 1, "b"), (T0 + 4, Op.DELETE, 2, None)]
    result = run_window(kit, [rows_of(changes)])
    publish(kit, T0 + 10, result)
    assert kit.state("shop", "orders") == {1: "b"}
    if kit.changes is not None:
        assert kit.changes("shop", "orders") == [(ts, int(op), key, note) for ts, op, key, note in changes], "each under its commit ts"
    assert (result.rows, result.dispatcher) == (4, WHOLE)
    assert result.nbytes > 0


def test_files_tell_their_rows_and_bytes(files_kit: Kit) -> None:
    result = run_window(files_kit, [inserts(40)])
    assert sum(f.rows for f in result.files) == 40
    assert sum(f.nbytes for f in result.files) == result.nbytes > 0


def test_windows_follow_each_other_by_position(kit: Kit) -> None:
    between = T0 + 100
    first = run_window(kit, [inserts(100)], to_ts=between)
    publish(kit, between, first, to_ts=between)
    second = run_window(kit, [inserts(100, 100)], first.position, from_ts=between)
    assert not {f.path for f in first.files} & {f.path for f in second.files}, "no file has rows of two windows"
    publish(kit, T0 + 1_000, second, from_ts=between)
    assert kit.state("shop", "orders") == {i: f"note {i}" for i in range(200)}
    assert len(second.position) <= 2


def test_a_repeated_attempt_does_the_same(kit: Kit) -> None:
    first = run_window(kit, [inserts(300)])
    again = run_window(kit, [inserts(120), inserts(180, 120)])
    assert again == first
    publish(kit, T0 + 1_000, first)
    publish(kit, T0 + 1_000, again)
    assert kit.state("shop", "orders") == {i: f"note {i}" for i in range(300)}


def test_different_rows_under_the_same_names_are_a_conflict(files_kit: Kit) -> None:
    run_window(files_kit, [inserts(10)])
    with pytest.raises(PenstockError, match="SINK_CONFLICT"):
        run_window(files_kit, [inserts(11)])


def test_an_empty_window_leaves_the_position(kit: Kit) -> None:
    position = run_window(kit, [inserts(10)], to_ts=T0 + 500).position
    result = run_window(kit, [], position, from_ts=T0 + 500)
    assert (result.position, result.rows, result.files, result.nbytes) == (position, 0, (), 0)


def test_enqueued_then_flushed_once_each(kit: Kit) -> None:
    sink = kit.open_sink()
    seen: list[str] = []
    woken = threading.Semaphore(0)

    def enqueued(name: str) -> None:
        seen.append(f"{name} enqueued")
        woken.release()

    sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, T0, T0 + 1_000))
    for name, records in (("a", inserts(5)), ("b", inserts(0 + 5, 5)), ("empty", inserts(1).slice(0, 0))):
        sink.add_dml_event(DmlEvent(WHOLE, TABLE, records, lambda n=name: enqueued(n), lambda n=name: seen.append(f"{n} flushed")))
    assert all(woken.acquire(timeout=120) for _ in range(3))
    assert seen == ["a enqueued", "b enqueued", "empty enqueued"]
    sink.close_dispatcher(WHOLE)
    sink.close()
    assert seen[3:] == ["a flushed", "b flushed", "empty flushed"]


def test_a_block_event_drains_its_dispatcher(kit: Kit) -> None:
    sink = kit.open_sink()
    flushed: list[int] = []
    other = DispatcherId(8)
    added = TableSchema(7, "shop", "orders", T0 + 50, TABLE.columns)
    ddl = DdlEvent(T0 + 50, DdlType.TABLE_COMMENT, "ALTER TABLE orders COMMENT 'x'", "shop", (added,))
    sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, T0, T0 + 1_000))
    sink.open_dispatcher(DispatcherWork(other, TableSchema(8, "shop", "other", T0, TABLE.columns), T0, T0 + 1_000))
    sink.add_dml_event(DmlEvent(WHOLE, TABLE, inserts(5), post_flush=lambda: flushed.append(1)))
    sink.pass_block_event(WHOLE, ddl)
    sink.pass_block_event(other, ddl)
    assert flushed == [1]
    maintainer = kit.open_maintainer()
    paths = maintainer.write_block_event(ddl)
    assert list(maintainer.write_block_event(ddl)) == list(paths)
    sink.add_dml_event(DmlEvent(WHOLE, added, rows_of([(T0 + 60, Op.UPDATE, 3, "after")])))
    results = [sink.close_dispatcher(WHOLE), sink.close_dispatcher(other)]
    assert [r.rows for r in results] == [6, 0]
    sink.close()
    publish(kit, T0 + 100, *results, to_ts=T0 + 1_000)
    assert kit.state("shop", "orders") == {0: "note 0", 1: "note 1", 2: "note 2", 3: "after", 4: "note 4"}


def test_split_tables_go_side_by_side(kit: Kit) -> None:
    sink = kit.open_sink()
    parts = [DispatcherId(7, span, 3) for span in range(3)]
    for part in parts:
        sink.open_dispatcher(DispatcherWork(part, TABLE, T0, T0 + 1_000))
    for i in range(30):
        sink.add_dml_event(DmlEvent(parts[i % 3], TABLE, inserts(1, i)))
    for i in range(30):
        sink.add_dml_event(DmlEvent(parts[i % 3], TABLE, rows_of([(T0 + 100 + i, Op.UPDATE, i, f"new {i}")])))
    results = [sink.close_dispatcher(part) for part in parts]
    sink.close()
    assert [r.rows for r in results] == [20, 20, 20]
    publish(kit, T0 + 1_000, *results, to_ts=T0 + 1_000)
    assert kit.state("shop", "orders") == {i: f"new {i}" for i in range(30)}


def test_rows_beyond_the_checkpoint_do_not_count(files_kit: Kit) -> None:
    run_window(files_kit, [inserts(10)])
    files_kit.open_maintainer().publish_checkpoint(T0 + 4)
    assert sorted(files_kit.state("shop", "orders")) == [0, 1, 2, 3]


def test_the_checkpoint_never_goes_back(kit: Kit) -> None:
    publish(kit, T0 + 100, run_window(kit, [inserts(10)]))
    kit.open_maintainer().publish_checkpoint(T0 + 2)
    assert (kit.published_ts or kit.open_maintainer().published_ts)() == T0 + 100
    assert len(kit.state("shop", "orders")) == 10


def test_a_target_belongs_to_one_feed_or_to_none(kit: Kit) -> None:
    maintainer = kit.open_maintainer()
    maintainer.check("mine")
    maintainer.claim("mine")
    maintainer.claim("mine")
    kit.open_maintainer().check("mine")
    for call in (kit.open_maintainer().check, kit.open_maintainer().claim):
        if not kit.owned:
            call("other")
            continue
        with pytest.raises(PenstockError, match="SINK_OCCUPIED"):
            call("other")


def test_a_target_with_foreign_objects_is_refused(files_kit: Kit) -> None:
    run_window(files_kit, [inserts(10)])
    with pytest.raises(PenstockError, match="SINK_OCCUPIED"):
        files_kit.open_maintainer().check("mine")


def test_unordered_rows_are_a_bug(kit: Kit) -> None:
    sink = kit.open_sink()
    sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, T0, T0 + 1_000))
    sink.add_dml_event(DmlEvent(WHOLE, TABLE, inserts(1, 5)))
    with pytest.raises(PenstockError, match=r"INTERNAL.*commit order"):
        sink.add_dml_event(DmlEvent(WHOLE, TABLE, inserts(1, 4)))
    with pytest.raises(PenstockError, match="INTERNAL"):
        sink.add_dml_event(DmlEvent(DispatcherId(99), TABLE, inserts(1)))
    sink.close()
