"""The format ``penstock-storage``: changes and tables from any protocol, and a stream that follows a growing target."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from penstock.feed.formats.storage_reader import register
from penstock.feed.formats.storage_table import read_table
from penstock.feed.spark.session import SparkSettings, open_session
from penstock.model.batch import Op
from penstock.model.ddl import DdlType
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from testing.paths.storage_lab import StorageLab

T0 = compose_ts(1_700_000_000_000)
ID = Column(1, "id", ColumnType(TypeKind.BIGINT), False, True)
NAME = Column(2, "name", ColumnType(TypeKind.VARCHAR, length=40))
PRICE = Column(3, "price", ColumnType(TypeKind.DECIMAL, length=10, scale=2))
SEEN = Column(4, "seen", ColumnType(TypeKind.DATETIME))
FIRST = TableSchema(1, "s", "t", T0, (ID, NAME, PRICE))
SECOND = TableSchema(1, "s", "t", T0 + 10, (ID, NAME, PRICE, SEEN))
MOMENT = dt.datetime(2023, 5, 9, 1, 2, 3)  # noqa: DTZ001


@pytest.fixture
def session(jvm: None) -> SparkSession:
    opened = open_session(SparkSettings("local[2]"))
    register(opened)
    return opened


def history(uri: str) -> StorageLab:
    lab = StorageLab(uri)
    lab.maintainer.claim("lab")
    lab.ddl(T0, DdlType.CREATE_TABLE, "CREATE TABLE t (...)", FIRST)
    lab.write(FIRST, [(T0 + 1, Op.INSERT, 1, "a", "1.50"), (T0 + 2, Op.INSERT, 2, "b", None)])
    lab.write(FIRST, [(T0 + 3, Op.BEFORE, 1, "a", "1.50"), (T0 + 3, Op.UPDATE, 1, "a2", "1.75"), (T0 + 4, Op.DELETE, 2, "b", None)])
    lab.ddl(T0 + 10, DdlType.ADD_COLUMN, "ALTER TABLE t ADD seen DATETIME", SECOND)
    lab.write(SECOND, [(T0 + 11, Op.INSERT, 3, "c", "3.00", "2023-05-09 01:02:03"), (T0 + 20, Op.INSERT, 4, "d", "4.00", None)])
    lab.checkpoint(T0 + 15)
    return lab


CHANGES = [
    (T0 + 1, "insert", 1, "a", Decimal("1.50"), None),
    (T0 + 2, "insert", 2, "b", None, None),
    (T0 + 3, "update", 1, "a2", Decimal("1.75"), None),
    (T0 + 4, "delete", 2, "b", None, None),
    (T0 + 11, "insert", 3, "c", Decimal("3.00"), MOMENT),
]


@pytest.mark.parametrize("query", ["", "?protocol=canal-json&compression=gzip", "?protocol=parquet", "?protocol=debezium"])
def test_changes_and_tables_from_any_protocol(session: SparkSession, tmp_path: Path, query: str) -> None:
    uri = f"{tmp_path.as_uri()}{query}"
    history(uri)
    read = session.read.format("penstock-storage").option("table", "s.t")
    assert sorted(tuple(r) for r in read.load(uri).collect()) == CHANGES
    assert sorted(tuple(r) for r in read.option("from-ts", T0 + 2).option("to-ts", T0 + 4).load(uri).collect()) == [
        (*change[:5],) for change in CHANGES[2:4]
    ]
    if query:
        olds = session.read.format("penstock-storage").option("table", "s.t").option("old-values", "true").load(uri)
        assert [tuple(r)[:4] for r in olds.where("_op = 'before'").collect()] == [(T0 + 3, "before", 1, "a")]
    rows = [(1, "a2", Decimal("1.75"), None), (3, "c", Decimal("3.00"), MOMENT)]
    as_of = session.read.format("penstock-storage").option("table", "s.t").option("as-of", "checkpoint").load(uri)
    assert sorted(tuple(r) for r in as_of.collect()) == rows
    assert sorted(tuple(r) for r in read_table(session, uri, "s.t").collect()) == rows
    assert sorted(tuple(r) for r in read_table(session, uri, "s.t", as_of=T0 + 2).collect()) == [
        (1, "a", Decimal("1.50")),
        (2, "b", None),
    ]


def test_a_stream_follows_a_growing_target(session: SparkSession, waiting: Any, tmp_path: Path) -> None:
    uri = (tmp_path / "target").as_uri()
    lab = history(uri)
    stream = session.readStream.format("penstock-storage").option("table", "s.t").load(uri)

    def run() -> None:
        location, out = str(tmp_path / "checkpoint"), str(tmp_path / "out")
        waiting.finish(stream.writeStream.format("parquet").option("path", out).option("checkpointLocation", location))

    run()
    arrived = session.read.parquet(str(tmp_path / "out"))
    assert sorted(tuple(r) for r in arrived.collect()) == CHANGES
    lab.write(SECOND, [(T0 + 30, Op.DELETE, 3, "c", "3.00", "2023-05-09 01:02:03"), (T0 + 40, Op.INSERT, 5, "e", None, None)])
    lab.checkpoint(T0 + 35)
    run()
    run()
    arrived = session.read.parquet(str(tmp_path / "out"))
    more = [(T0 + 20, "insert", 4, "d", Decimal("4.00"), None), (T0 + 30, "delete", 3, "c", Decimal("3.00"), MOMENT)]
    assert sorted(tuple(r) for r in arrived.collect()) == CHANGES + more


def test_a_stream_stops_before_new_columns_and_goes_on_with_them(session: SparkSession, waiting: Any, tmp_path: Path) -> None:
    uri = (tmp_path / "target").as_uri()
    lab = StorageLab(uri)
    lab.maintainer.claim("lab")
    lab.ddl(T0, DdlType.CREATE_TABLE, "CREATE TABLE t (...)", FIRST)
    lab.write(FIRST, [(T0 + 1, Op.INSERT, 1, "a", "1.50")])
    lab.checkpoint(T0 + 2)

    def run(stream: DataFrame) -> list[tuple[object, ...]]:
        """Run a query to the end of what is there; return all that has arrived so far."""
        location, out = str(tmp_path / "checkpoint"), str(tmp_path / "out")
        writer = stream.writeStream.format("json").option("path", out).option("checkpointLocation", location)
        waiting.finish(writer)
        rows = session.read.schema("_op string, id long, name string, seen string").json(out).collect()
        return sorted(tuple(r) for r in rows)

    def opened() -> DataFrame:
        return session.readStream.format("penstock-storage").option("table", "s.t").load(uri)

    first = opened()
    run(first)
    lab.write(FIRST, [(T0 + 5, Op.INSERT, 2, "b", None)])
    lab.ddl(T0 + 10, DdlType.ADD_COLUMN, "ALTER TABLE t ADD seen DATETIME", SECOND)
    lab.write(SECOND, [(T0 + 11, Op.INSERT, 3, "c", "3.00", "2023-05-09 01:02:03"), (T0 + 20, Op.INSERT, 4, "d", None, None)])
    lab.checkpoint(T0 + 15)
    before = [("insert", 1, "a", None), ("insert", 2, "b", None)]
    assert run(first) == before
    with pytest.raises(StreamingQueryException, match=r"SCHEMA_CHANGED.*new or changed columns.*seen"):
        run(first)
    third = ("insert", 3, "c", "2023-05-09T01:02:03.000")
    assert run(opened()) == [*before, third]
    lab.checkpoint(T0 + 30)
    assert run(opened()) == [*before, third, ("insert", 4, "d", None)]


@pytest.mark.parametrize("query", ["?output-old-value=true", "?protocol=parquet", "?csv.include-commit-ts=false"])
def test_tables_that_were_renamed_truncated_or_have_no_key(session: SparkSession, tmp_path: Path, query: str) -> None:
    uri = f"{tmp_path.as_uri()}{query}"
    lab = history(uri)
    moved = TableSchema(1, "s", "u", T0 + 25, SECOND.columns)
    lab.ddl(T0 + 25, DdlType.RENAME_TABLE, "RENAME TABLE t TO u", moved, old_names=((1, "s", "t"),))
    lab.write(moved, [(T0 + 30, Op.DELETE, 1, "a2", "1.75", None), (T0 + 31, Op.INSERT, 6, "f", None, None)])
    emptied = TableSchema(2, "s", "t", T0 + 40, SECOND.columns)
    lab.ddl(T0 + 40, DdlType.CREATE_TABLE, "CREATE TABLE t (...)", emptied)
    lab.write(emptied, [(T0 + 41, Op.INSERT, 8, "h", None, None)])
    lab.ddl(T0 + 50, DdlType.TRUNCATE_TABLE, "TRUNCATE TABLE t", TableSchema(3, "s", "t", T0 + 50, SECOND.columns))
    lab.write(TableSchema(3, "s", "t", T0 + 50, SECOND.columns), [(T0 + 51, Op.INSERT, 9, "i", None, None)])
    keyless = TableSchema(4, "s", "k", T0 + 60, (Column(1, "id", ColumnType(TypeKind.BIGINT)), NAME))
    lab.ddl(T0 + 60, DdlType.CREATE_TABLE, "CREATE TABLE k (...)", keyless)
    lab.write(keyless, [(T0 + 61 + n, Op.INSERT, n % 2, "same") for n in range(6)])
    lab.write(keyless, [(T0 + 70, Op.DELETE, 1, "same"), (T0 + 70, Op.DELETE, 2, "late"), (T0 + 71, Op.INSERT, None, None)])
    lab.write(keyless, [(T0 + 72, Op.INSERT, 2, "late")])
    lab.checkpoint(T0 + 99)
    expected = {
        "s.t": [(9, "i")],
        "s.u": [(3, "c"), (4, "d"), (6, "f")],
        "s.k": [(None, None), *[(0, "same")] * 3, *[(1, "same")] * 2, (2, "late")],
    }
    for table, rows in expected.items():
        read = session.read.format("penstock-storage").option("table", table).option("as-of", "checkpoint")
        for shown in (read_table(session, uri, table), read.option("tasks", 3).load(uri)):
            found = [tuple(r) for r in shown.select("id", "name").collect()]
            assert sorted(found, key=lambda row: (row[0] is not None, row)) == rows
    assert read.option("tasks", 3).load(uri).rdd.getNumPartitions() == 3


def test_spark_reads_plain_files(session: SparkSession, tmp_path: Path) -> None:
    """Spark's own readers, with the settings that docs/storage-layout.md names."""
    history((tmp_path / "csv").as_uri())
    frame = session.read.csv(f"{tmp_path}/csv/s/t/{T0}/*/*.csv", nullValue="\\N", escape='"', multiLine=True)
    assert sorted(tuple(r) for r in frame.collect()) == [
        ("D", "t", "s", str(T0 + 4), "2", "b", None),
        ("I", "t", "s", str(T0 + 1), "1", "a", "1.50"),
        ("I", "t", "s", str(T0 + 2), "2", "b", None),
        ("U", "t", "s", str(T0 + 3), "1", "a2", "1.75"),
    ]
    history((tmp_path / "parquet").as_uri() + "?protocol=parquet")
    frame = session.read.parquet(f"{tmp_path}/parquet/s/t/{SECOND.version}/*/*.parquet").select("_op", "id", "price", "seen")
    assert sorted((tuple(r) for r in frame.collect()), key=lambda r: r[1]) == [
        ("I", 3, Decimal("3.00"), MOMENT),
        ("I", 4, Decimal("4.00"), None),
    ]
