"""What is said of a Parquet file of a lake holds for its rows, by the rows themselves."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.sink.lake.data_files import ROW_GROUP_ROWS, Bounds, bounds_of, parquet_bytes, read_parquet, row_groups
from penstock.sink.lake.settings import Codec

ROWS = pa.table(
    {
        "number": pa.array([3, None, -7], pa.int64()),
        "small": pa.array([1, 2, 3], pa.int16()),
        "whole": pa.array([Decimal(18446744073709551615), Decimal(0), None], pa.decimal128(20, 0)),
        "money": pa.array([Decimal("1.50"), Decimal("-2.25"), None], pa.decimal128(10, 2)),
        "day": pa.array([dt.date(1969, 12, 31), dt.date(2024, 2, 29), None]),
        "name": pa.array(["é", "Z", None]),
        "long": pa.array(["x" * 100, "a", "b"]),
        "raw": pa.array([b"\xff", b"", None]),
        "real": pa.array([float("nan"), 1.0, None]),
        "nothing": pa.nulls(3, pa.string()),
    }
)


def test_bounds_are_those_of_the_rows() -> None:
    found = bounds_of(pq.read_metadata(pa.BufferReader(parquet_bytes([ROWS], Codec.ZSTD))))
    assert found == {
        "number": Bounds(1, -7, 3),
        "small": Bounds(0, 1, 3),
        "whole": Bounds(1, 0, 18446744073709551615),
        "money": Bounds(1),
        "day": Bounds(1, "1969-12-31", "2024-02-29"),
        "name": Bounds(1, "Z", "é"),
        "long": Bounds(0),
        "raw": Bounds(1),
        "real": Bounds(1),
        "nothing": Bounds(3),
    }


def test_row_groups_have_one_size_however_rows_come() -> None:
    many = pa.table({"id": pa.array(range(ROW_GROUP_ROWS + 5), pa.int64())})
    parts = [many.slice(at, 1000) for at in range(0, many.num_rows, 1000)]
    content = parquet_bytes(parts, Codec.SNAPPY).tobytes()
    assert [t.num_rows for t in row_groups(content)] == [ROW_GROUP_ROWS, 5]
    assert read_parquet(content).equals(many)
    assert bounds_of(pq.read_metadata(pa.BufferReader(content)))["id"] == Bounds(0, 0, ROW_GROUP_ROWS + 4)
