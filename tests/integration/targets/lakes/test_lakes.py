"""Feeds whose target is a lake, from the data server to tables that other libraries read, without Spark."""

import contextlib
import datetime as dt
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.failpoints import FAILPOINTS
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.catalog import kind_of
from penstock.sink.contract import DispatcherResult, DispatcherWork, DmlEvent
from penstock.sink.lake.columns import LakeShape
from penstock.sink.lake.settings import LakeSettings
from penstock.sink.lake.upkeep import Upkeep
from penstock.target.dispatcher import DispatcherId
from penstock.target.kind import SinkRun
from penstock.target.storage import unfenced
from testing.paths.local_feed import LocalFeed
from testing.paths.whole_path import WholePath, read_state
from testing.targets.lake_kit import LAKES, Lake
from tests.contract.test_sink import END, T0, TABLE, WHOLE, inserts, rows_of
from tests.unit.sink.lake.test_columns import RECORDS as KINDS_RECORDS
from tests.unit.sink.lake.test_columns import TABLE as KINDS_TABLE

TABLES = ["CREATE DATABASE d", *(f"CREATE TABLE d.{name} (id INT PRIMARY KEY, v VARCHAR(20))" for name in "ab")]


@pytest.fixture(params=sorted(LAKES))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    # polars 2.1 finds no Delta file below a folder whose name has a blank.
    return LAKES[request.param](tmp_path / ("lake" if request.param == "delta" else "a lake"))


@pytest.fixture
def path(tmp_path: Path, lake: Lake) -> Iterator[WholePath]:
    opened = WholePath(tmp_path, TABLES, target_uri=lake.uri, splits={"d.a": [5]}, spans_per_table=2)
    try:
        yield opened
    finally:
        FAILPOINTS.arm("")
        opened.close()


def assert_same(path: WholePath, lake: Lake, *names: str) -> None:
    for name in names:
        want = read_state(path.upstream, path.table(name), path.upstream.current_ts()).sort("id")
        found = lake.read(*name.split(".")).sort("id")
        assert found.columns == want.columns
        assert found.rows() == want.rows(), name


def test_tables_of_a_lake_follow_their_upstream_through_ddls(path: WholePath, lake: Lake) -> None:
    path.write({"d.a": {i: f"a{i}" for i in range(10)}, "d.b": {1: "x"}})
    path.drain()
    assert_same(path, lake, "d.a", "d.b")
    path.write({"d.a": {3: "new", 20: "y"}, "d.b": {1: "z", 2: None}}, {"d.a": [4]})
    path.drain()
    path.write({"d.b": {2: "early"}})
    path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN w INT DEFAULT 7")
    path.upstream.execute_ddl("ALTER TABLE d.b ADD COLUMN w INT")
    path.write({"d.b": {9: "q"}}, {"d.b": [1]})
    path.drain()
    assert_same(path, lake, "d.a", "d.b")
    path.upstream.execute_ddl("ALTER TABLE d.b DROP COLUMN w")
    path.upstream.execute_ddl("ALTER TABLE d.a MODIFY COLUMN w BIGINT")
    path.drain()
    assert_same(path, lake, "d.a", "d.b")
    path.upstream.execute_ddl("TRUNCATE TABLE d.b")
    path.write({"d.b": {5: "after"}})
    path.drain()
    assert_same(path, lake, "d.b")
    path.upstream.execute_ddl("RENAME TABLE d.b TO d.c")
    path.write({"d.c": {6: "renamed"}})
    path.drain()
    assert_same(path, lake, "d.a", "d.c")
    path.upstream.execute_ddl("DROP TABLE d.c")
    path.upstream.execute_ddl("CREATE TABLE d.c (id INT PRIMARY KEY, v VARCHAR(20), u INT)")
    path.write({"d.c": {7: "again"}})
    path.drain()
    assert_same(path, lake, "d.c")
    checkpoint = lake.read("penstock", "checkpoint").row(0, named=True)
    assert (checkpoint["checkpoint_ts"], checkpoint["not_covered"]) == (path.feed.checkpoint_ts(), "{}")


POINTS = (
    *("data-put:after=raise@2", "lake-commit:before=raise@1", "lake-commit:before=raise@2", "lake-commit:after=raise@1"),
    *("lake-commit:after=raise@2", "metadata:before=raise@1", "progress:before=raise@1"),
)


def test_a_window_that_breaks_anywhere_is_one_version_of_each_table(path: WholePath, lake: Lake) -> None:
    path.write({"d.a": {1: "first"}, "d.b": {1: "first"}})
    path.drain()
    points = POINTS if lake.uri.startswith("delta") else POINTS[1:4]
    for at, script in enumerate(points):
        ts = path.write({"d.a": {1: f"a{at}", 10 + at: "more"}, "d.b": {1: f"b{at}"}}, {"d.a": [9 + at]})
        path.wait_resolved(ts)
        FAILPOINTS.arm(script)
        with pytest.raises(PenstockError, match="FAILPOINT"):
            path.drain()
        FAILPOINTS.arm("")
        path.drain()
        assert_same(path, lake, "d.a", "d.b")
    for name in "ab":
        windows = lake.windows("d", name)
        assert len(windows) == len(set(windows)) >= len(points), "one version for each window, and none twice"


def test_upkeep_beside_a_feed_leaves_every_row(path: WholePath, lake: Lake) -> None:
    for at in range(2):
        path.write({"d.a": {at: "x", 10 + at: "y"}, "d.b": {at: "z"}})
        path.drain()
    upkeep = Upkeep.open(lake.uri, {})
    assert {k.table: k.removed > k.added for k in upkeep.compact(["d.*"])} == {"d.a": True, "d.b": True}
    assert [k.removed for k in upkeep.compact(["d.a"])] == [0], "there is nothing more to do"
    path.write({"d.a": {0: "after", 10: "too"}}, {"d.b": [1], "d.a": [11]})
    path.drain()
    assert_same(path, lake, "d.a", "d.b")
    gone = {k.table: k.removed for k in upkeep.expire([], 0)}
    assert gone["d.a"] > 0
    assert gone["d.b"] > 0
    assert {k.removed for k in upkeep.expire([], 0)} == {0}
    path.write({"d.a": {5: "last"}, "d.b": {0: "last"}})
    path.drain()
    assert_same(path, lake, "d.a", "d.b")


def test_an_owner_that_was_overtaken_changes_nothing(path: WholePath, lake: Lake) -> None:
    path.write({"d.a": {1: "first"}, "d.b": {1: "first"}})
    path.drain()
    old = path.take_over()
    path.write({"d.a": {1: "second"}})
    path.drain()
    before = lake.windows("d", "a")
    path.write({"d.a": {1: "third"}})
    with pytest.raises(PenstockError, match="FENCED"):
        LocalFeed(old).drain(path.upstream.current_ts(), 30)
    assert lake.windows("d", "a") == before
    path.drain()
    assert_same(path, lake, "d.a", "d.b")


def window_result(lake: Lake, run: SinkRun, dispatcher: DispatcherId = WHOLE) -> DispatcherResult:
    sink = kind_of(lake.uri).make_sink(lake.uri, {}, None, run)
    try:
        table = msgspec.structs.replace(TABLE, table_id=dispatcher.table_id, table=f"orders{dispatcher.table_id}")
        sink.open_dispatcher(DispatcherWork(dispatcher, table, T0, END))
        sink.add_dml_event(DmlEvent(dispatcher, table, inserts(50)))
        return sink.close_dispatcher(dispatcher)
    finally:
        sink.close()


def test_a_lower_epoch_is_refused_by_the_table_itself(lake: Lake) -> None:
    late = kind_of(lake.uri).make_maintainer(lake.uri, {}, unfenced, SinkRun("f", 1))
    result = window_result(lake, SinkRun("f", 1))
    kind_of(lake.uri).make_maintainer(lake.uri, {}, unfenced, SinkRun("f", 2)).record_window(T0, END - 1, [result])
    (lake.root / ".penstock/lake.json").unlink()
    with pytest.raises(PenstockError, match=r"FENCED.*epoch 2"):
        late.record_window(T0, END, [result])
    assert lake.windows("shop", "orders7") == [END - 1]


def test_of_two_attempts_at_once_one_commits(lake: Lake) -> None:
    run = SinkRun("f", 1)
    tables = [DispatcherId(7), DispatcherId(8), DispatcherId(9)]
    results = [[window_result(lake, run, table) for table in tables] for _ in range(2)]
    assert results[0] == results[1], "an attempt with the same rows finds its files there"
    failures: list[PenstockError] = []
    gate = threading.Barrier(2)

    def attempt(own: list[DispatcherResult]) -> None:
        try:
            maintainer = kind_of(lake.uri).make_maintainer(lake.uri, {}, unfenced, run)
            gate.wait()
            maintainer.record_window(T0, END, own)
        except PenstockError as error:
            failures.append(error)

    threads = [threading.Thread(target=attempt, args=(own,)) for own in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [e for e in failures if e.kind is not ErrorKind.TRANSIENT] == []
    assert len(failures) < 2, "one may find the files of its window gone, because the other has committed them"
    for table in tables:
        assert lake.windows("shop", f"orders{table.table_id}") == [END]
        assert lake.read("shop", f"orders{table.table_id}").sort("id").rows() == [(i, f"note {i}") for i in range(50)]


def deliver(lake: Lake, table: TableSchema, records: pa.RecordBatch, from_ts: int, to_ts: int) -> None:
    kind, run = kind_of(lake.uri), SinkRun("f", 1)
    sink = kind.make_sink(lake.uri, {}, None, run)
    try:
        sink.open_dispatcher(DispatcherWork(WHOLE, table, from_ts, to_ts))
        sink.add_dml_event(DmlEvent(WHOLE, table, records))
        result = sink.close_dispatcher(WHOLE)
    finally:
        sink.close()
    kind.make_maintainer(lake.uri, {}, unfenced, run).record_window(from_ts, to_ts, [result])


def test_values_of_every_kind_are_read_by_another_library(lake: Lake) -> None:
    deliver(lake, KINDS_TABLE, KINDS_RECORDS.combine_chunks().to_batches()[0], TS_ZERO, END)
    found = lake.read("d", "t").to_arrow()
    shape = LakeShape(LakeSettings(), has_small_ints=lake.uri.startswith("delta"))
    assert shape.records(KINDS_TABLE, found).to_pydict() == KINDS_RECORDS.drop_columns(["_ts", "_op"]).to_pydict()
    assert found.column("ubig").to_pylist()[1] == Decimal(18446744073709551615)
    assert found.column("dt").to_pylist()[1] == dt.datetime(2024, 2, 29, 23, 59, 59)  # noqa: DTZ001 - a DATETIME has no zone
    assert found.column("ts6").to_pylist()[0] == dt.datetime(2024, 2, 29, 23, 59, 59, 1, dt.UTC)


def test_rows_that_nothing_names_are_counted(lake: Lake) -> None:
    table = msgspec.structs.replace(TABLE, columns=tuple(msgspec.structs.replace(c, primary_key=False) for c in TABLE.columns))
    first = [(T0 + 1, Op.INSERT, 1, "a"), (T0 + 1, Op.INSERT, 1, "a"), (T0 + 2, Op.INSERT, 1, "a"), (T0 + 3, Op.INSERT, 2, None)]
    then = [(T0 + 11, Op.DELETE, 1, "a"), (T0 + 12, Op.BEFORE, 2, None), (T0 + 12, Op.UPDATE, 2, "b"), (T0 + 13, Op.INSERT, 2, "b")]
    deliver(lake, table, rows_of(first), TS_ZERO, T0 + 10)
    deliver(lake, table, rows_of(then), T0 + 10, T0 + 20)
    assert sorted(lake.read("shop", "orders").rows()) == [(1, "a"), (1, "a"), (2, "b"), (2, "b")]


def column(number: int, name: str, kind: TypeKind, key: bool = False, **told: Any) -> Column:
    return Column(number, name, ColumnType(kind), not key, key, **told)


ID, NOTE = column(1, "id", TypeKind.BIGINT, key=True), column(2, "note", TypeKind.TEXT)
SMALL, WORD = column(1, "id", TypeKind.SMALLINT, key=True), column(1, "id", TypeKind.TEXT, key=True)
VERSIONS: list[tuple[tuple[Column, ...], DdlType, list[tuple[object, ...]]]] = [
    ((column(3, "n", TypeKind.INT), ID, NOTE), DdlType.ADD_COLUMN, [(None, 1, "12"), (None, 2, "x"), (None, 300, None)]),
    ((ID, column(2, "text", TypeKind.TEXT)), DdlType.MULTI_SCHEMA_CHANGE, [(1, "12"), (2, "x"), (300, None)]),
    ((ID, column(2, "text", TypeKind.INT)), DdlType.MODIFY_COLUMN, [(1, 12), (2, None), (300, None)]),
    ((ID, column(2, "text", TypeKind.BIGINT)), DdlType.MODIFY_COLUMN, [(1, 12), (2, None), (300, None)]),
    (
        (column(1, "id", TypeKind.SMALLINT, key=True), column(2, "text", TypeKind.BIGINT)),
        DdlType.MODIFY_COLUMN,
        [(1, 12), (2, None), (300, None)],
    ),
    (
        (column(1, "id", TypeKind.TEXT, key=True), column(2, "text", TypeKind.TEXT)),
        DdlType.MODIFY_COLUMN,
        [("1", "12"), ("2", None), ("300", None)],
    ),
    (
        (column(1, "id", TypeKind.TEXT), column(2, "text", TypeKind.TEXT), column(4, "n", TypeKind.INT, initial_default="7")),
        DdlType.ADD_COLUMN,
        [("1", "12", 7), ("2", None, 7), ("300", None, 7)],
    ),
]


def test_columns_types_and_keys_change_in_one_version_each(lake: Lake) -> None:
    deliver(
        lake, TABLE, rows_of([(T0 + 1, Op.INSERT, 1, "12"), (T0 + 1, Op.INSERT, 2, "x"), (T0 + 1, Op.INSERT, 300, None)]), TS_ZERO, T0 + 10
    )
    maintainer = kind_of(lake.uri).make_maintainer(lake.uri, {}, unfenced, SinkRun("f", 1))
    for at, (columns, kind, want) in enumerate(VERSIONS, 1):
        ts = T0 + 10 + at
        after = msgspec.structs.replace(TABLE, columns=columns, version=ts)
        for _ in range(2):
            maintainer.write_block_event(DdlEvent(ts, kind, "ALTER TABLE shop.orders …", "shop", (after,)))
        found = lake.read("shop", "orders")
        assert found.columns == [c.name for c in columns]
        assert sorted(found.rows(), key=str) == sorted(want, key=str), (at, kind)
    # The key went: rows are counted from here on.
    values = [
        pa.array([T0 + 30], pa.uint64()),
        pa.array([Op.DELETE], pa.uint8()),
        ["2"],
        pa.nulls(1, pa.string()),
        pa.array([7], pa.int32()),
    ]
    gone = pa.RecordBatch.from_arrays([pa.array(v) for v in values], names=["_ts", "_op", *(c.field_name for c in after.columns)])
    deliver(lake, after, gone, T0 + 20, T0 + 40)
    assert sorted(lake.read("shop", "orders").rows()) == [("1", "12", 7), ("300", None, 7)]


def test_a_key_that_is_renamed_and_widened_inside_a_window_still_names_rows(lake: Lake) -> None:
    before = msgspec.structs.replace(TABLE, columns=(column(1, "id", TypeKind.INT, key=True), NOTE))
    after = msgspec.structs.replace(before, columns=(column(1, "number", TypeKind.BIGINT, key=True), NOTE), version=T0 + 12)

    def changes(table: TableSchema, *rows: tuple[int, Op, int, str | None]) -> pa.RecordBatch:
        kinds = [pa.uint64(), pa.uint8(), table.columns[0].type.arrow(), pa.string()]
        arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=["_ts", "_op", *(c.field_name for c in table.columns)])

    deliver(lake, before, changes(before, *((T0 + 1, Op.INSERT, i, "first") for i in range(4))), TS_ZERO, T0 + 10)
    kind, run = kind_of(lake.uri), SinkRun("f", 1)
    with contextlib.closing(kind.make_sink(lake.uri, {}, None, run)) as sink:
        sink.open_dispatcher(DispatcherWork(WHOLE, before, T0 + 10, T0 + 20))
        sink.add_dml_event(DmlEvent(WHOLE, before, changes(before, (T0 + 11, Op.DELETE, 1, None), (T0 + 11, Op.UPDATE, 2, "early"))))
        event = DdlEvent(T0 + 12, DdlType.MULTI_SCHEMA_CHANGE, "ALTER …", "shop", (after,))
        sink.pass_block_event(WHOLE, event)
        sink.write_block_event(WHOLE, event)
        sink.add_dml_event(DmlEvent(WHOLE, after, changes(after, (T0 + 13, Op.UPDATE, 3, "late"), (T0 + 13, Op.INSERT, 1 << 40, "wide"))))
        result = sink.close_dispatcher(WHOLE)
    kind.make_maintainer(lake.uri, {}, unfenced, run).record_window(T0 + 10, T0 + 20, [result])
    found = lake.read("shop", "orders")
    assert found.columns == ["number", "note"]
    assert sorted(found.rows()) == [(0, "first"), (2, "early"), (3, "late"), (1 << 40, "wide")]


@pytest.mark.parametrize("kind", [DdlType.DROP_PARTITION, DdlType.TRUNCATE_PARTITION, DdlType.REORGANIZE_PARTITION])
def test_rows_of_a_partition_that_went_leave_with_the_changes_that_tell_so(lake: Lake, kind: DdlType) -> None:
    deliver(lake, TABLE, inserts(5), TS_ZERO, T0 + 10)
    maintainer = kind_of(lake.uri).make_maintainer(lake.uri, {}, unfenced, SinkRun("f", 1))
    after = msgspec.structs.replace(TABLE, version=T0 + 11)
    maintainer.write_block_event(DdlEvent(T0 + 11, kind, "ALTER TABLE …", "shop", (after,)))
    assert lake.read("shop", "orders").height == 5, "the source reads the table as one, and tells what went"
    deliver(lake, after, rows_of([(T0 + 12, Op.DELETE, i, None) for i in (0, 1)]), T0 + 11, T0 + 20)
    assert sorted(lake.read("shop", "orders").get_column("id").to_list()) == [2, 3, 4]


def test_names_that_mean_something_elsewhere(lake: Lake) -> None:
    names = ("a.b", "unit price", "select", "x,;{}()=\t`'\"", "ünï", "_commit_ts", "_Count")
    columns = tuple(column(at, name, TypeKind.TEXT, key=at == 1) for at, name in enumerate(names, 1))
    table = msgspec.structs.replace(TABLE, schema="My.Db", table="T.x y", columns=columns)
    for at, key in enumerate("klk"):
        values = [pa.array([T0 + 10 * at + 1], pa.uint64()), pa.array([Op.UPDATE if at else Op.INSERT], pa.uint8())]
        values += [pa.array([key], pa.string()), *(pa.array([f"{at} {name}"], pa.string()) for name in names[1:])]
        batch = pa.RecordBatch.from_arrays(values, names=["_ts", "_op", *(c.field_name for c in columns)])
        deliver(lake, table, batch, T0 + 10 * at if at else TS_ZERO, T0 + 10 * at + 10)
    found = lake.read(*("My.Db", "T.x~20~y") if lake.uri.startswith("delta") else ("My~2e~Db", "T~2e~x~20~y"))
    assert found.columns == [*names[:-2], "__commit_ts", "__Count"]
    assert sorted(found.rows()) == [("k", *(f"2 {name}" for name in names[1:])), ("l", *(f"1 {name}" for name in names[1:]))]


def test_a_table_that_somebody_deleted_is_not_made_again_without_its_rows(lake: Lake) -> None:
    deliver(lake, TABLE, inserts(5), TS_ZERO, T0 + 10)
    lake.forget("shop", "orders")
    with pytest.raises(PenstockError, match=r"SINK_CONFLICT.*shop.orders is gone"):
        deliver(lake, TABLE, rows_of([(T0 + 11, Op.INSERT, 9, "x")]), T0 + 10, T0 + 20)


def read_changes(lake: Lake) -> pl.DataFrame:
    return lake.read("d", "b").sort("_commit_ts", "id").drop("_commit_ts")


def test_changes_stand_one_below_the_other(tmp_path: Path, lake: Lake) -> None:
    path = WholePath(tmp_path, TABLES, target_uri=lake.uri, sink_options={"mode": "append", "partition": "day"})
    try:
        path.write({"d.b": {1: "a"}})
        path.drain()
        first = path.write({"d.b": {1: "b", 2: "c"}})
        path.drain()
        path.upstream.execute_ddl("ALTER TABLE d.b ADD COLUMN w INT DEFAULT 7")
        path.write({}, {"d.b": [1]})
        path.drain()
        path.upstream.execute_ddl("TRUNCATE TABLE d.b")
        path.drain()
        found = read_changes(lake)
        want = [("I", 1, "a", None), ("U", 1, "b", None), ("I", 2, "c", None), ("D", 1, "b", 7), ("T", None, None, None)]
        assert found.select("_op", "id", "v", "w").rows() == want
        assert first in lake.read("d", "b").get_column("_commit_ts")
        assert found.get_column("_commit_date").null_count() == 0
    finally:
        path.close()


def test_delta_keeps_the_checkpoint_as_an_application_transaction(tmp_path: Path) -> None:
    lake = LAKES["delta"](tmp_path / "lake")
    result = window_result(lake, SinkRun("f", 3))
    kind_of(lake.uri).make_maintainer(lake.uri, {}, unfenced, SinkRun("f", 3)).record_window(T0, END, [result])
    table = DeltaTable(str(lake.root / "shop" / "orders7"))
    assert (table.transaction_version("penstock/f"), table.transaction_version("penstock-epoch/f")) == (END, 3)
