"""Parquet files: types, zero dates, names."""

import datetime as dt
import io
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.format import parquet_file
from penstock.format.parquet_file import ParquetRows, file_name
from penstock.format.protocols import ParquetSettings
from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from testing.checks.whole_file import paired_rows

K = TypeKind
TS = 433305438660591626
ID = Column(1, "Id", ColumnType(K.INT, length=11), False, True)


def parquet(table: TableSchema, records: pa.RecordBatch, settings: ParquetSettings | None = None) -> bytes:
    rows = ParquetRows(table, settings or ParquetSettings())
    rows.add(records)
    return rows.finish()


def test_parquet_has_plain_types() -> None:
    columns = (
        Column(1, "id", ColumnType(K.TINYINT, unsigned=True), False, True),
        Column(2, "price", ColumnType(K.DECIMAL, length=12, scale=2)),
        Column(3, "long", ColumnType(K.DECIMAL, length=65, scale=0)),
        Column(4, "day", ColumnType(K.DATE)),
        Column(5, "at", ColumnType(K.DATETIME, scale=3)),
        Column(6, "stamp", ColumnType(K.TIMESTAMP)),
        Column(7, "body", ColumnType(K.BLOB)),
        Column(8, "kinds", ColumnType(K.SET, elems=("a", "b"))),
        Column(9, "_op", ColumnType(K.ENUM, elems=("x",))),
    )
    table = TableSchema(7, "s", "t", 5, columns)
    row = (7, "1.50", "9" * 65, "2000-01-02", "2000-01-02 03:04:05.678", "2000-01-02 03:04:05", b"\xff", 3, 1)
    content = parquet(table, paired_rows(table, (TS, Op.INSERT, b"k", *row)))
    found = pq.read_table(io.BytesIO(content)).to_pylist()[0]
    moment = dt.datetime(2000, 1, 2, 3, 4, 5)  # noqa: DTZ001
    assert {k: v for k, v in found.items() if not k.startswith("_old")} == {
        "_op": "I",
        "_commit_ts": TS,
        "id": 7,
        "price": Decimal("1.50"),
        "long": "9" * 65,
        "day": dt.date(2000, 1, 2),
        "at": moment.replace(microsecond=678_000),
        "stamp": moment.replace(tzinfo=dt.UTC),
        "body": b"\xff",
        "kinds": "a,b",
        "__op": "x",
    }
    assert parquet_file.decode(content, table).rows() == [(TS, Op.INSERT, *row)]


def test_zero_dates_make_a_column_text_and_come_back() -> None:
    table = TableSchema(7, "s", "t", 5, (ID, Column(2, "day", ColumnType(K.DATE)), Column(3, "at", ColumnType(K.DATETIME))))
    records = paired_rows(table, (TS, Op.INSERT, b"k", 1, "0000-00-00", "2000-01-02 03:04:05"))
    content = parquet(table, records)
    schema = pq.read_schema(io.BytesIO(content))
    assert (schema.field("day").type, schema.field("at").type) == (pa.string(), pa.timestamp("us"))
    assert parquet_file.decode(content, table).rows() == [(TS, Op.INSERT, 1, "0000-00-00", "2000-01-02 03:04:05")]
    uniform = parquet(table, records, ParquetSettings(temporal_as_text=True))
    assert pq.read_schema(io.BytesIO(uniform)).field("at").type == pa.string()


def test_names_like_ours_are_escaped() -> None:
    assert [file_name(n) for n in ("id", "_op", "__op", "_commit_ts", "_old", "_old_x", "_other")] == [
        *("id", "__op", "___op", "__commit_ts", "__old", "__old_x", "_other"),
    ]
