"""Rows of several dispatchers, merged by commit ts, file by file."""

from __future__ import annotations

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.batch import Op
from penstock.readback.reader import merge_by_ts

ROWS = st.lists(st.tuples(st.integers(1, 6), st.sampled_from([Op.DELETE, Op.BEFORE, Op.INSERT, Op.UPDATE])), max_size=12)


@settings(deadline=None)
@given(st.lists(ROWS, min_size=2, max_size=4), st.integers(1, 5))
def test_the_order_is_that_of_all_rows_sorted_at_once(rows: list[list[tuple[int, Op]]], per_file: int) -> None:
    """Each dispatcher writes in the order of ts, tombstones first."""
    written = [sorted(((ts, int(op), at * 100 + n) for n, (ts, op) in enumerate(of)), key=order) for at, of in enumerate(rows)]
    files = [[frame(of[start : start + per_file]) for start in range(0, len(of), per_file)] for of in written]
    found = [row for part in merge_by_ts([iter(of) for of in files]) for row in part.rows()]
    expected = sorted((row for of in written for row in of), key=order)
    assert [order(row) for row in found] == [order(row) for row in expected]
    for of in written:
        assert [row for row in found if row in of] == of


def order(row: tuple[int, int, int]) -> tuple[int, bool]:
    return row[0], row[1] in {Op.INSERT, Op.UPDATE}


def frame(rows: list[tuple[int, int, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"_ts": pl.UInt64, "_op": pl.UInt8, "n": pl.Int64}, orient="row")
