"""Values of every kind go to a lake and come back."""

import pyarrow as pa
import pytest

from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.choices import UnfitValues
from penstock.sink.lake.columns import LakeShape
from penstock.sink.lake.data_files import parquet_bytes, read_parquet
from penstock.sink.lake.settings import Codec, LakeSettings, Mode

KINDS = {
    "tiny": (ColumnType(TypeKind.TINYINT), [-128, 127, None]),
    "utiny": (ColumnType(TypeKind.TINYINT, unsigned=True), [0, 255, None]),
    "usmall": (ColumnType(TypeKind.SMALLINT, unsigned=True), [0, 65535, None]),
    "uint": (ColumnType(TypeKind.INT, unsigned=True), [0, 4294967295, None]),
    "big": (ColumnType(TypeKind.BIGINT), [-(1 << 63), (1 << 63) - 1, None]),
    "ubig": (ColumnType(TypeKind.BIGINT, unsigned=True), [0, (1 << 64) - 1, None]),
    "bits": (ColumnType(TypeKind.BIT, length=8), [0, 255, None]),
    "bits64": (ColumnType(TypeKind.BIT, length=64), [0, (1 << 64) - 1, None]),
    "year": (ColumnType(TypeKind.YEAR), [0, 2155, None]),
    "f": (ColumnType(TypeKind.FLOAT), [0.5, -1.25, None]),
    "d": (ColumnType(TypeKind.DOUBLE), [1e300, -0.1, None]),
    "dec": (ColumnType(TypeKind.DECIMAL, length=38, scale=10), ["1234567890123456789012345678.0123456789", "-0.0000000001", None]),
    "dec65": (ColumnType(TypeKind.DECIMAL, length=65, scale=30), ["1" * 35 + "." + "2" * 30, "0.000000000000000000000000000001", None]),
    "date": (ColumnType(TypeKind.DATE), ["1000-01-01", "9999-12-31", None]),
    "dt": (ColumnType(TypeKind.DATETIME), ["1000-01-01 00:00:00", "2024-02-29 23:59:59", None]),
    "dt3": (ColumnType(TypeKind.DATETIME, scale=3), ["2024-02-29 23:59:59.120", "1999-01-01 00:00:00.000", None]),
    "ts6": (ColumnType(TypeKind.TIMESTAMP, scale=6), ["2024-02-29 23:59:59.000001", "1970-01-01 00:00:01.999999", None]),
    "time": (ColumnType(TypeKind.TIME, scale=6), ["-838:59:59.000000", "00:00:00.000001", None]),
    "text": (ColumnType(TypeKind.TEXT), ["", "käse \u2603 'q' \\ \n", None]),
    "blob": (ColumnType(TypeKind.BLOB), [b"", b"\x00\xff", None]),
    "enum": (ColumnType(TypeKind.ENUM, elems=("a", "b,c")), [1, 2, None]),
    "set": (ColumnType(TypeKind.SET, elems=("x", "y")), [0, 3, None]),
    "json": (ColumnType(TypeKind.JSON), ['{"a": [1, 2.50]}', "null", None]),
    "_op": (ColumnType(TypeKind.INT), [1, 2, None]),
}
TABLE = TableSchema(1, "d", "t", 5, tuple(Column(at, name, kind) for at, (name, (kind, _)) in enumerate(KINDS.items(), 1)))
RECORDS = pa.Table.from_arrays(
    [pa.array([5, 6, 7], pa.uint64()), pa.array([0, 1, 2], pa.uint8())]
    + [pa.array(values, c.type.arrow()) for c, (_, values) in zip(TABLE.columns, KINDS.values(), strict=True)],
    names=["_ts", "_op", *(c.field_name for c in TABLE.columns)],
)
SHAPES = [LakeShape(LakeSettings(mode=mode), small) for mode in Mode for small in (True, False)]


@pytest.mark.parametrize("shape", SHAPES)
def test_values_of_every_kind_come_back(shape: LakeShape) -> None:
    rows = read_parquet(parquet_bytes([shape.rows(TABLE, RECORDS)], Codec.ZSTD).tobytes())
    assert rows.schema.field("ubig").type == pa.decimal128(20, 0)
    assert rows.column("__op").to_pylist() == [1, 2, None]
    assert shape.records(TABLE, rows).to_pydict() == RECORDS.drop_columns(["_ts", "_op"]).to_pydict()
    if not shape.settings.is_merge:
        assert (rows.column("_op").to_pylist(), rows.column("_commit_ts").to_pylist()) == (["I", "U", "D"], [5, 6, 7])


def test_ids_of_columns_are_in_the_file() -> None:
    rows = read_parquet(parquet_bytes([SHAPES[0].rows(TABLE, RECORDS)], Codec.ZSTD).tobytes())
    assert [int(f.metadata[b"PARQUET:field_id"]) for f in rows.schema] == [100 + c.id for c in TABLE.columns]


@pytest.mark.parametrize("kind", [TypeKind.DATE, TypeKind.DATETIME, TypeKind.TIMESTAMP])
def test_dates_that_no_calendar_has_are_refused_unless_null_is_chosen(kind: TypeKind) -> None:
    column = Column(1, "born", ColumnType(kind))
    tail = "" if kind is TypeKind.DATE else " 00:00:00"
    values = pa.chunked_array([pa.array([f"0000-00-00{tail}", f"2024-02-31{tail}", f"2024-02-29{tail}", None])])
    with pytest.raises(PenstockError, match=r"SINK_VALUE_REFUSED.*born: 2 values"):
        LakeShape(LakeSettings(), True).values(column, values)
    shown = LakeShape(LakeSettings(invalid_dates=UnfitValues.NULL), True).values(column, values)
    assert [None if v is None else str(v)[:10] for v in shown.to_pylist()] == [None, None, "2024-02-29", None]
    assert LakeShape(LakeSettings(temporal_as_text=True), True).values(column, values) == values


def test_columns_that_differ_by_case_alone_are_refused() -> None:
    kind = ColumnType(TypeKind.INT)
    table = TableSchema(1, "d", "t", 5, (Column(1, "a", kind), Column(2, "A", kind)))
    with pytest.raises(PenstockError, match="SINK_DDL_REFUSED"):
        LakeShape(LakeSettings(), True).schema(table)


def test_rows_of_an_older_version_show_what_every_reader_sees() -> None:
    before = TableSchema(1, "d", "t", 5, (Column(1, "id", ColumnType(TypeKind.INT)), Column(2, "n", ColumnType(TypeKind.INT))))
    after = TableSchema(
        1,
        "d",
        "t",
        6,
        (
            Column(3, "more", ColumnType(TypeKind.VARCHAR, length=9), default="x"),
            Column(2, "m", ColumnType(TypeKind.VARCHAR, length=20)),
            Column(1, "id", ColumnType(TypeKind.BIGINT)),
        ),
    )
    shape = SHAPES[0]
    rows = pa.table({"id": pa.array([1, 2], pa.int32()), "n": pa.array([7, None], pa.int32())})
    assert shape.reshaped(rows, before, after).to_pydict() == {"more": ["x", "x"], "m": ["7", None], "id": [1, 2]}
