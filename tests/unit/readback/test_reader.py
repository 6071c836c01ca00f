"""Rows of several dispatchers, merged by commit ts, file by file; targets that were written with other settings."""

from __future__ import annotations

import itertools

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.reader import StorageReader, merge_by_ts
from penstock.target.settings import from_uri
from testing.paths.storage_lab import StorageLab

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


T0 = compose_ts(1_700_000_000_000)
TABLE = TableSchema(1, "s", "t", T0, (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True),))
_numbers = itertools.count()


@pytest.mark.parametrize(("written", "read"), [("month", "day"), ("day", "month"), ("day", "none"), ("day", "year"), ("year", "month")])
def test_a_target_of_another_date_separator_is_never_empty(written: str, read: str) -> None:
    place = f"memory://reader-{next(_numbers)}/"
    lab = StorageLab(f"{place}?date-separator={written}")
    lab.write(TABLE, [(T0 + i, Op.INSERT, i) for i in range(5)])
    lab.checkpoint(T0 + 10)
    reader = StorageReader(lab.target, from_uri(f"{place}?date-separator={read}")[1])
    if written == "year":
        # A year looks like a partition's number: its rows are found all the same.
        assert sum(frame.height for _, frame in reader.changes("s", "t")) == 5
        return
    with pytest.raises(PenstockError, match=r"FILE_MALFORMED.*of these settings") as refused:
        list(reader.changes("s", "t"))
    assert "date-separator" in refused.value.hint
