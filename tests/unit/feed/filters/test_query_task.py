"""What Spark kept, joined with the rows themselves, however both are divided."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.feed.filters.query_task import PART_BITS, KeptRows, _checks, with_long_place, with_short_place
from penstock.feed.filters.views import Derived, TableView
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

TABLE = TableSchema(1, "d", "t", 1, (Column(1, "id", ColumnType(TypeKind.BIGINT), primary_key=True),))
PRICE = Column(1_000_001, "price", ColumnType(TypeKind.DECIMAL, length=6, scale=2))
VIEW = TableView(TABLE, TABLE, (1,), (Derived(0, PRICE),))
FIRST = 3 << PART_BITS


def rows(ids: list[int]) -> pa.RecordBatch:
    keys = pa.array([i.to_bytes(8, "big") for i in ids], pa.binary())
    columns = [pa.array([7] * len(ids), pa.uint64()), pa.array([0] * len(ids), pa.uint8()), keys, pa.array(ids, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=TABLE.batch_schema())


def kept(places: list[int], among: list[int]) -> pa.RecordBatch:
    """Return what Spark gives back for some places, with a price of each."""
    checks = _checks(rows(among))[places]
    prices = pa.array([f"{among[place]}.5" for place in places]).cast(pa.decimal128(6, 2))
    return pa.RecordBatch.from_arrays(
        [pa.array([FIRST + p for p in places], pa.int64()), pa.array(checks), prices], ["place", "check", "price"]
    )


def test_place_and_check_travel_as_one_number_through_the_jvm() -> None:
    ids = [10, 11, 12]
    checks = _checks(rows(ids))
    given = pa.RecordBatch.from_arrays([pa.array([FIRST, FIRST + 1, FIRST + 2]), pa.array(checks), pa.array(ids)], ["p", "c", "id"])
    short = with_short_place(given)
    assert short.schema.names == ["p", "id"]
    assert short.column("id").to_pylist() == ids
    # Spark keeps the last row and computes a price.
    price = pa.array(["12.5"]).cast(pa.decimal128(6, 2))
    spark = pa.RecordBatch.from_arrays([short.column(0).slice(2), price], ["p", "price"])
    _, flags = KeptRows(iter([with_long_place(spark, 3)]), FIRST, VIEW).of(rows(ids))
    assert flags.tolist() == [False, False, True]
    with pytest.raises(InvariantError, match="is not the row that was read"):
        KeptRows(iter([with_long_place(spark, 3)]), FIRST, VIEW).of(rows([10, 11, 13]))


@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 3], [4]])
@pytest.mark.parametrize("divided", [[[0, 2, 5]], [[0], [], [2, 5]], [[0, 2], [5]]])
def test_derived_values_meet_their_rows(cuts: list[int], divided: list[list[int]]) -> None:
    ids = [10, 11, 12, 13, 14, 15]
    found = KeptRows(iter([kept(part, ids) for part in divided]), FIRST, VIEW)
    flags, prices = [], []
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        with_price, part = found.of(rows(ids[start:end]))
        flags += part.tolist()
        prices += with_price.column("c1000001").to_pylist()
    found.finish()
    assert flags == [True, False, True, False, False, True]
    assert prices == ["10.50", None, "12.50", None, None, "15.50"]


def test_a_row_that_is_kept_twice_or_is_another_one_is_refused() -> None:
    ids = [10, 11, 12]
    with pytest.raises(PenstockError, match="more than one row"):
        KeptRows(iter([kept([0, 1], ids), kept([1], ids)]), FIRST, VIEW).of(rows(ids))
    with pytest.raises(InvariantError, match="is not the row that was read"):
        KeptRows(iter([kept([0, 1], ids)]), FIRST, VIEW).of(rows([10, 12, 11]))
    unread = KeptRows(iter([kept([0, 2], ids)]), FIRST, VIEW)
    _, flags = unread.of(rows(ids[:2]))
    assert np.flatnonzero(flags).tolist() == [0]
    with pytest.raises(InvariantError, match="were not read"):
        unread.finish()
