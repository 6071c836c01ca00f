"""The partitions of rows, against Iceberg's own transforms."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import BucketTransform, DayTransform, HourTransform, MonthTransform, YearTransform
from pyiceberg.types import DateType, IcebergType, LongType, StringType, TimestampType
from pyiceberg.utils.datetime import datetime_to_micros

from penstock.model.errors import PenstockError
from penstock.sink.lake.partitions import division
from penstock.sink.lake.partitions.division import PartitionField, constant, divided, folder_of, ordinal, ordinal_text
from penstock.sink.lake.partitions.rules import Transform

TEXTS = ["a", "ab", "abc", "abcd", "abcde", "käse ☃ …", "x" * 100, None, "a"]
NUMBERS = [0, 1, -1, 34, (1 << 63) - 1, -(1 << 63), None, 34]
MOMENTS = [
    *(dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(1970, 1, 1)),  # noqa: DTZ001 - as lakes have them
    *(dt.datetime(2024, 2, 29, 13, 59, 59, 1), None, dt.datetime(9999, 12, 31, 23)),  # noqa: DTZ001 - as above
]


def values_of(field: PartitionField, values: pa.Array) -> dict[int, str | None]:
    """Return the value of the partition of each row, by its place."""
    rows = pa.table({"x": values, "at": pa.array(range(len(values)))})
    return {at: partition[field.name] for partition, own in divided([field], rows) for at in own.column("at").to_pylist()}


@pytest.mark.parametrize(("values", "own", "kind"), [(TEXTS, pa.string(), StringType()), (NUMBERS, pa.int64(), LongType())])
def test_buckets_are_those_of_iceberg(values: list[Any], own: pa.DataType, kind: IcebergType) -> None:
    told = BucketTransform(7).transform(kind)  # type: ignore[var-annotated]
    found = values_of(
        PartitionField(Transform.BUCKET, "x", 7), pa.array(["skipped", *values] if own == pa.string() else [9, *values], own)[1:]
    )
    assert [found[at] for at in range(len(values))] == [None if v is None else str(told(v)) for v in values]


@pytest.mark.parametrize(
    ("by", "told"),
    [
        (Transform.YEAR, YearTransform()),
        (Transform.MONTH, MonthTransform()),
        (Transform.DAY, DayTransform()),
        (Transform.HOUR, HourTransform()),
        (Transform.BUCKET, BucketTransform(5)),
    ],
)
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_moments_are_divided_as_by_iceberg(by: Transform, told: Any, zone: str | None) -> None:
    function, field = told.transform(TimestampType()), PartitionField(by, "x", 5)
    found = values_of(field, pa.array(MOMENTS, pa.timestamp("us")).cast(pa.timestamp("us", zone)))
    want = [None if m is None else function(datetime_to_micros(m)) for m in MOMENTS]
    assert [ordinal(by, found[at]) for at in range(len(MOMENTS))] == want
    assert [ordinal_text(by, number) for number in want] == [found[at] for at in range(len(MOMENTS))]


def test_a_date_is_divided_as_by_iceberg() -> None:
    days = [None if m is None else m.date() for m in MOMENTS]
    for by, told in ((Transform.YEAR, YearTransform()), (Transform.MONTH, MonthTransform()), (Transform.DAY, DayTransform())):
        function, found = told.transform(DateType()), values_of(PartitionField(by, "x"), pa.array(days, pa.date32()))
        assert [ordinal(by, found[at]) for at in range(len(days))] == [
            None if d is None else function((d - dt.date(1970, 1, 1)).days) for d in days
        ]


def test_values_come_back_from_their_texts() -> None:
    for values, kind in (
        ([dt.date(1, 1, 1), dt.date(2024, 2, 29), None], pa.date32()),
        ([-5, 1 << 40, None], pa.int64()),
        (["a/b=c %25 é", "null", None], pa.string()),
        ([Decimal((1 << 64) - 1), Decimal(0), None], pa.decimal128(20, 0)),
    ):
        texts = values_of(PartitionField(Transform.IDENTITY, "x"), pa.array(values, kind))
        assert [constant(texts[at], 1, kind)[0].as_py() for at in range(len(values))] == values


def test_rows_keep_their_order_and_come_in_the_same_one_each_time() -> None:
    rows = pa.table({"a": ["y", None, "x", "y"], "b": [1, 1, 1, 1], "n": [0, 1, 2, 3]})
    fields = [PartitionField(Transform.IDENTITY, "a"), PartitionField(Transform.IDENTITY, "b")]
    found = [(partition, own.column("n").to_pylist()) for partition, own in divided(fields, rows)]
    assert found == [({"a": "x", "b": "1"}, [2]), ({"a": "y", "b": "1"}, [0, 3]), ({"a": None, "b": "1"}, [1])]
    assert [folder_of(partition) for partition, _ in found] == ["a=x/b=1/", "a=y/b=1/", "a=__HIVE_DEFAULT_PARTITION__/b=1/"]
    assert folder_of({"unit price": "a/b"}) == "unit%20price=a%2Fb/"


@pytest.mark.parametrize(
    ("by", "values", "said"),
    [
        (Transform.IDENTITY, pa.array(["a", ""]), "empty text"),
        (Transform.DAY, pa.array([2_932_897], pa.int32()).cast(pa.date32()), "above 9999"),
        (Transform.IDENTITY, pa.array([-719_529], pa.int32()).cast(pa.date32()), "below 1"),
    ],
)
def test_values_that_name_no_partition_are_refused(by: Transform, values: pa.Array, said: str) -> None:
    with pytest.raises(PenstockError, match=f"SINK_VALUE_REFUSED.*{said}"):
        values_of(PartitionField(by, "x"), values)


def test_too_many_partitions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "PARTITIONS_MAX", 3)
    assert len(values_of(PartitionField(Transform.IDENTITY, "x"), pa.array(range(3)))) == 3
    with pytest.raises(PenstockError, match=r"SINK_VALUE_REFUSED.*4 partitions"):
        values_of(PartitionField(Transform.IDENTITY, "x"), pa.array(range(4)))
