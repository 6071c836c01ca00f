"""Lakes whose tables are partitioned by columns: files are apart, and every reader sees the rows, whatever moves them."""

import contextlib
import datetime as dt
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.catalog import kind_of, open_tables, settings_of
from penstock.sink.contract import DispatcherWork, DmlEvent
from penstock.sink.iceberg.catalogs import open_catalog
from penstock.sink.lake.settings import LakeSettings
from penstock.sink.lake.upkeep import Upkeep
from penstock.target.kind import SinkRun
from penstock.target.storage import unfenced
from testing.targets.lake_kit import LAKES, Lake
from tests.contract.test_sink import T0, TABLE, WHOLE

ID = Column(1, "id", ColumnType(TypeKind.BIGINT), False, True)
REGION = Column(2, "region", ColumnType(TypeKind.VARCHAR, length=40), True)
MADE = Column(3, "made_at", ColumnType(TypeKind.DATETIME), True)
NOTE = Column(4, "note", ColumnType(TypeKind.TEXT), True)
ORDERS = msgspec.structs.replace(TABLE, columns=(ID, REGION, MADE, NOTE))
RULES = "shop.orders: region, day(made_at)"
Row = tuple[int, str | None, str | None, str | None]


@pytest.fixture(params=sorted(LAKES))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return LAKES[request.param](tmp_path / "lake")


class Writer:
    """Delivers windows to a lake, and keeps what should be there."""

    def __init__(self, lake: Lake, rules: str = RULES, table: TableSchema = ORDERS, **options: str) -> None:
        self.lake, self.table, self.options = lake, table, {"partition-by": rules, **options}
        self.ts, self.rows = T0, dict[int, Row]()
        self.kind = kind_of(lake.uri)

    def maintainer(self) -> Any:
        return self.kind.make_maintainer(self.lake.uri, self.options, unfenced, SinkRun("f", 1))

    def write(self, *changes: tuple[Op, Row], table: TableSchema | None = None) -> None:
        table = table or self.table
        first, self.ts = self.ts == T0, self.ts + 10
        with contextlib.closing(self.kind.make_sink(self.lake.uri, self.options, None, SinkRun("f", 1))) as sink:
            sink.open_dispatcher(DispatcherWork(WHOLE, table, TS_ZERO if first else self.ts - 10, self.ts))
            sink.add_dml_event(DmlEvent(WHOLE, table, self.records(table, changes)))
            result = sink.close_dispatcher(WHOLE)
        self.maintainer().record_window(TS_ZERO if first else self.ts - 10, self.ts, [result])
        for op, row in changes:
            self.rows.pop(row[0], None)
            if op in {Op.INSERT, Op.UPDATE}:
                self.rows[row[0]] = row

    def records(self, table: TableSchema, changes: Sequence[tuple[Op, Row]]) -> pa.RecordBatch:
        columns = list(zip(*(row for _, row in changes), strict=True))
        arrays = [pa.array([self.ts - 5] * len(changes), pa.uint64()), pa.array([op for op, _ in changes], pa.uint8())]
        arrays += [pa.array(values, c.type.arrow()) for c, values in zip(table.columns, columns, strict=False)]
        return pa.RecordBatch.from_arrays(arrays, names=["_ts", "_op", *(c.field_name for c in table.columns)])

    def ddl(self, kind: DdlType, *columns: Column) -> None:
        self.ts += 10
        table = msgspec.structs.replace(self.table, columns=columns, version=self.ts)
        self.maintainer().write_block_event(DdlEvent(self.ts, kind, "ALTER …", "shop", (table,)))
        self.table = table

    def want(self) -> list[tuple[object, ...]]:
        return sorted((i, r, None if m is None else dt.datetime.fromisoformat(m), n) for i, r, m, n in self.rows.values())

    def held(self, name: str = "orders") -> list[tuple[object, ...]]:
        """Return what polars reads, after another reader has read the same."""
        found = self.lake.read("shop", name)
        other = self.by_its_own_library(name)
        assert sorted(found.rows(), key=str) == sorted(other.select(found.columns).rows(), key=str)
        return sorted(found.select(lake_columns(self.table)).rows(), key=lambda row: row[0])

    def by_its_own_library(self, name: str) -> pl.DataFrame:
        if self.lake.uri.startswith("delta"):
            return pl.DataFrame(DeltaTable(str(self.lake.root / "shop" / name)).to_pyarrow_table())
        return pl.DataFrame(opened(self.lake, name).scan().to_arrow())


def lake_columns(table: TableSchema) -> list[str]:
    return [c.name for c in table.columns]


def opened(lake: Lake, name: str = "orders") -> Any:
    return open_catalog(lake.root.as_uri(), "", f"file://{lake.root}").load_table(("shop", name))


def partitions(lake: Lake, name: str = "orders") -> dict[tuple[object, ...], set[int]]:
    """Return the ids of rows by what the table says of the partition of their file, as DuckDB reads each file by itself."""
    known = {path: values for values, path in files(lake, name)}
    found: dict[tuple[object, ...], set[int]] = {}
    with duckdb.connect() as connection:
        query = "SELECT filename, id FROM read_parquet(?, hive_partitioning=false, filename=true, union_by_name=true)"
        for path, number in connection.execute(query, [list(known)]).fetchall():
            found.setdefault(known[path], set()).add(number)
    return found


def files(lake: Lake, name: str) -> Iterator[tuple[tuple[object, ...], str]]:
    if lake.uri.startswith("delta"):
        table = DeltaTable(str(lake.root / "shop" / name))
        added = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        for row, uri in zip(added, table.file_uris(), strict=True):
            yield tuple(row[f"partition.{column}"] for column in table.metadata().partition_columns), uri
    else:
        for task in opened(lake, name).scan().plan_files():
            yield tuple(task.file.partition), task.file.file_path.removeprefix("file://")


FIRST: list[Row] = [
    (1, "eu", "2024-02-29 23:59:59", "a"),
    (2, "eu", "2024-03-01 00:00:00", "b"),
    (3, "us/ea=st 50% ü", "2024-02-29 12:00:00", None),
    (4, None, None, "c"),
    (5, "eu", "2024-02-29 00:00:00", "d"),
]


def day(lake: Lake, text: str | None) -> object:
    """Return a day as a table says it: Iceberg counts them."""
    found = None if text is None else dt.date.fromisoformat(text)
    return found if found is None or lake.uri.startswith("delta") else (found - dt.date(1970, 1, 1)).days


def test_rows_stand_in_the_files_of_their_partition_and_move_with_their_values(lake: Lake) -> None:
    writer = Writer(lake)
    writer.write(*((Op.INSERT, row) for row in FIRST))
    assert writer.held() == writer.want()
    early, late = day(lake, "2024-02-29"), day(lake, "2024-03-01")
    odd = "us/ea=st 50% ü"
    assert partitions(lake) == {("eu", early): {1, 5}, ("eu", late): {2}, (odd, early): {3}, (None, None): {4}}
    # A row comes out of NULL, one goes there, one moves by its day, one stays, one goes.
    moved: list[Row] = [(4, "eu", "2024-02-29 01:00:00", "c"), (3, None, None, "x"), (2, "eu", "2024-02-29 02:00:00", "b")]
    writer.write(*((Op.UPDATE, row) for row in moved), (Op.UPDATE, (5, "eu", "2024-02-29 00:00:00", "e")), (Op.DELETE, FIRST[0]))
    assert writer.held() == writer.want()
    assert partitions(lake) == {("eu", early): {2, 4, 5}, (None, None): {3}}
    # And back and forth inside one window.
    writer.write((Op.UPDATE, (5, "us", None, "e")), (Op.UPDATE, (5, "eu", None, "e")), (Op.INSERT, (6, "us", None, "f")))
    assert writer.held() == writer.want()
    assert partitions(lake) == {("eu", early): {2, 4}, ("eu", None): {5}, ("us", None): {6}, (None, None): {3}}
    writer.write((Op.INSERT, (7, "us", None, "g")))
    assert [(k.removed, k.added) for k in Upkeep.open(lake.uri, {}).compact([])] == [(2, 1)]
    assert partitions(lake) == {("eu", early): {2, 4}, ("eu", None): {5}, ("us", None): {6, 7}, (None, None): {3}}
    list(Upkeep.open(lake.uri, {}).expire([], 0))
    assert writer.held() == writer.want()
    with contextlib.closing(open_tables(lake.uri, writer.options)) as tables, tables.read([writer.table]) as standing:
        assert sorted(pl.concat(standing.rows).get_column(ID.field_name).to_list()) == sorted(writer.rows)


def test_readers_open_only_the_files_that_they_need(lake: Lake) -> None:
    writer = Writer(lake)
    writer.write(*((Op.INSERT, row) for row in FIRST))
    if lake.uri.startswith("delta"):
        table = DeltaTable(str(lake.root / "shop" / "orders"))
        assert table.schema().to_json().count("made_at_day") == 1
        assert len(table.file_uris(file_pruning_predicate="region = 'eu' AND made_at_day = '2024-03-01'")) == 1
        chosen = pl.scan_delta(str(lake.root / "shop" / "orders")).filter(pl.col("made_at_day") == dt.date(2024, 3, 1))
    else:
        assert len(list(opened(lake).scan("region = 'eu'").plan_files())) == 2
        assert len(list(opened(lake).scan("region = 'eu' AND made_at >= '2024-03-01T00:00:00'").plan_files())) == 1
        late = dt.datetime(2024, 3, 1)  # noqa: DTZ001 - a DATETIME has no zone
        chosen = pl.scan_iceberg(opened(lake)).filter(pl.col("made_at") >= late)
    assert chosen.select("id").collect().to_series().to_list() == [2]


def test_rows_that_nothing_names_are_counted_in_their_partitions(lake: Lake) -> None:
    table = msgspec.structs.replace(ORDERS, columns=tuple(msgspec.structs.replace(c, primary_key=False) for c in ORDERS.columns))
    writer = Writer(lake, "*.*: region, bucket(3, id), month(made_at)", table)
    row, other = FIRST[0], FIRST[3]
    writer.write(*((Op.INSERT, r) for r in (row, row, row, other, other)))
    writer.write((Op.DELETE, row), (Op.BEFORE, row), (Op.UPDATE, (1, None, None, "moved")), (Op.DELETE, other))
    want = [(1, "eu", dt.datetime(2024, 2, 29, 23, 59, 59), "a"), (1, None, None, "moved"), (4, None, None, "c")]  # noqa: DTZ001 - as above
    assert sorted(writer.held(), key=str) == sorted(want, key=str)


def test_changes_stand_in_partitions_too(lake: Lake) -> None:
    writer = Writer(lake, mode="append", partition="day")
    writer.write(*((Op.INSERT, row) for row in FIRST))
    writer.write((Op.UPDATE, (1, None, None, "x")), (Op.DELETE, FIRST[1]))
    writer.ddl(DdlType.TRUNCATE_TABLE, *ORDERS.columns)
    found = lake.read("shop", "orders").sort("_commit_ts", "id", nulls_last=True)
    assert found.get_column("_op").to_list() == ["I"] * 5 + ["U", "D", "T"]
    assert found.get_column("region").to_list() == ["eu", "eu", "us/ea=st 50% ü", None, "eu", None, "eu", None]
    assert writer.by_its_own_library("orders").get_column("_commit_date").null_count() == 0
    assert {values[1]: ids for values, ids in partitions(lake).items() if values[1] not in {"eu", None}} == {"us/ea=st 50% ü": {3}}


def test_ddls_on_a_partitioned_table(lake: Lake) -> None:
    writer = Writer(lake)
    writer.write(*((Op.INSERT, row) for row in FIRST))
    more = Column(5, "more", ColumnType(TypeKind.INT), True, initial_default="7")
    writer.ddl(DdlType.ADD_COLUMN, *ORDERS.columns, more)
    assert [row[:4] for row in writer.held()] == writer.want()
    assert {row[4] for row in writer.held()} == {7}
    writer.ddl(DdlType.DROP_COLUMN, *ORDERS.columns)
    assert writer.held() == writer.want()
    # The columns of partitions change their types: what they divide stays apart.
    writer.ddl(
        DdlType.MODIFY_COLUMN,
        ID,
        msgspec.structs.replace(REGION, type=ColumnType(TypeKind.TEXT)),
        msgspec.structs.replace(MADE, type=ColumnType(TypeKind.DATETIME, scale=6)),
        NOTE,
    )
    assert len(partitions(lake)) == 4
    assert writer.held() == writer.want()
    before = partitions(lake)
    for lost in ((ID, MADE, NOTE), (ID, msgspec.structs.replace(REGION, name="area"), MADE, NOTE)):
        there, ts = writer.table, writer.ts
        with pytest.raises(PenstockError, match=r"SINK_DDL_REFUSED.*no column 'region'.*change partition-by"):
            writer.ddl(DdlType.MULTI_SCHEMA_CHANGE, *lost)
        assert partitions(lake) == before
        writer.table, writer.ts = there, ts
    # The operator names the column under both names, and the table goes on.
    writer.options["partition-by"] = f"{RULES}; shop.orders: area, day(made_at)"
    renamed = (ID, msgspec.structs.replace(REGION, name="area"), *writer.table.columns[2:])
    writer.ddl(DdlType.MULTI_SCHEMA_CHANGE, *renamed)
    assert partitions(lake) == before
    writer.write((Op.UPDATE, (3, "eu", "2024-03-01 00:00:00.000000", "x")))
    assert partitions(lake)["eu", day(lake, "2024-03-01")] == {2, 3}
    assert {row[0]: row[1] for row in writer.held()} == {1: "eu", 2: "eu", 3: "eu", 4: None, 5: "eu"}


@pytest.mark.parametrize(("kind", "mode"), [("delta", "merge"), ("delta", "append"), ("iceberg", "merge")])
def test_other_partitions_are_asked_for(tmp_path: Path, kind: str, mode: str) -> None:
    lake = LAKES[kind](tmp_path / "lake")
    writer = Writer(lake, "", mode=mode)
    writer.write(*((Op.INSERT, row) for row in FIRST))
    assert list(partitions(lake)) == [()]
    for rules, count in (("year(made_at), bucket(2, region)", 3), ("", 1), ("*.*: hour(made_at), region", 5)):
        writer.options["partition-by"] = rules
        writer.write((Op.UPDATE, (1, "eu", "2024-02-29 23:59:59", rules)))
        assert len(partitions(lake)) == count, rules
        assert len({row[:3] for row in writer.held()}) == 5, rules
        if mode == "merge":
            assert writer.held() == writer.want()


def test_a_table_loses_the_column_of_a_rule_with_wildcards(lake: Lake) -> None:
    writer = Writer(lake, "shop.*: region")
    writer.write(*((Op.INSERT, row) for row in FIRST))
    writer.ddl(DdlType.DROP_COLUMN, ID, MADE, NOTE)
    assert list(partitions(lake)) == [()]
    assert [row[0] for row in writer.held()] == [1, 2, 3, 4, 5]
    writer.ddl(DdlType.ADD_COLUMN, ID, MADE, NOTE, msgspec.structs.replace(REGION, id=9))
    writer.write((Op.UPDATE, (1, None, "x", "eu")))
    assert sorted(map(str, partitions(lake))) == ["('eu',)", "(None,)"]
    assert {row[0]: row[3] for row in writer.held()} == {1: "eu", 2: None, 3: None, 4: None, 5: None}


def test_a_renamed_table_takes_its_partitions_with_it_until_rows_come(lake: Lake) -> None:
    writer = Writer(lake)
    writer.write(*((Op.INSERT, row) for row in FIRST))
    before, want = partitions(lake), writer.want()
    writer.ts += 10
    moved = msgspec.structs.replace(ORDERS, table="sales", version=writer.ts)
    writer.maintainer().write_block_event(
        DdlEvent(writer.ts, DdlType.RENAME_TABLE, "RENAME …", "shop", (moved,), old_names=((ORDERS.table_id, "shop", "orders"),))
    )
    assert partitions(lake, "sales") == before
    assert writer.held("sales") == want
    writer.write((Op.UPDATE, (1, "x", None, None)), table=moved)
    assert list(partitions(lake, "sales")) == [()], "no rule names it"
    assert writer.held("sales") == writer.want()


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("shop.orders: day(note)", "'note' is string, not divided by day"),
        ("shop.orders: made_at", "not divided by identity"),
        ("shop.orders: nothing", "no column 'nothing'"),
        ("shop.orders: hour(id)", "not divided by hour"),
    ],
)
def test_what_divides_nothing_is_refused_before_a_row_is_written(lake: Lake, rules: str, said: str) -> None:
    with pytest.raises(PenstockError, match=f"SINK_DDL_REFUSED.*{said}"):
        Writer(lake, rules).write((Op.INSERT, FIRST[0]))


def test_a_column_that_has_the_name_of_a_partition_is_refused(lake: Lake) -> None:
    table = msgspec.structs.replace(ORDERS, columns=(*ORDERS.columns[:3], msgspec.structs.replace(NOTE, name="Made_at_day")))
    with pytest.raises(PenstockError, match=r"SINK_DDL_REFUSED.*the name of a partition"):
        Writer(lake, table=table).write((Op.INSERT, FIRST[0]))


def test_a_column_whose_name_is_no_folder_divides_no_delta_table(tmp_path: Path) -> None:
    table = msgspec.structs.replace(ORDERS, columns=(ID, msgspec.structs.replace(REGION, name="sales region"), MADE, NOTE))
    with pytest.raises(PenstockError, match=r"SINK_DDL_REFUSED.*'sales region' names no folder"):
        Writer(LAKES["delta"](tmp_path / "delta"), "shop.orders: sales region", table).write((Op.INSERT, FIRST[0]))
    lake = LAKES["iceberg"](tmp_path / "iceberg")
    writer = Writer(lake, "shop.orders: sales region", table)
    writer.write((Op.INSERT, FIRST[0]), (Op.INSERT, FIRST[2]))
    assert writer.held() == writer.want()
    assert partitions(lake) == {("eu",): {1}, (FIRST[2][1],): {3}}


@pytest.mark.parametrize("kind", sorted(LAKES))
def test_the_example_of_the_page(tmp_path: Path, kind: str) -> None:
    page = (Path(__file__).parents[4] / "docs" / "targets" / f"{kind}.md").read_text()
    rules = re.findall(r"partition-by=([^'&]+)'", page)
    assert len(rules) == 1
    lake = LAKES[kind](tmp_path / "lake")
    options = settings_of(f"{lake.uri}?partition-by={rules[0]}")[1]
    assert isinstance(options, LakeSettings)
    table = msgspec.structs.replace(ORDERS, columns=(ID, REGION, msgspec.structs.replace(MADE, name="created"), NOTE))
    writer = Writer(lake, options.partition_by, table)
    writer.write(*((Op.INSERT, row) for row in FIRST))
    assert len(partitions(lake)) == 4
    query = "region = 'eu' AND created_day = '2024-02-29'" if kind == "delta" else "region = 'eu' AND created < '2024-03-01T00:00:00'"
    assert query in page
    found = (
        DeltaTable(str(lake.root / "shop" / "orders")).file_uris(file_pruning_predicate=query)
        if kind == "delta"
        else opened(lake).scan(query).plan_files()
    )
    assert len(list(found)) == 1
