"""Two sides of a table against an oracle of dictionaries and bags, with buckets so small that every table is divided."""

from __future__ import annotations

import contextlib
from collections import Counter

import polars as pl
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.server.verify.table_comparison import TELL_ROWS, TableComparison, TableVerdict

INT = ColumnType(TypeKind.INT)
VALUES = st.none() | st.integers(0, 2)
STATES = st.dictionaries(st.integers(0, 30), VALUES, max_size=25)


def table(*, keyed: bool) -> TableSchema:
    return TableSchema(1, "d", "b", 1, (Column(1, "id", INT, not keyed, keyed), Column(2, "n", INT)))


def changes(rows: list[tuple[int, int | None, int | None]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"_op": pl.UInt8, "c1": pl.Int32, "c2": pl.Int32}, orient="row")


def compare(
    shown: TableSchema, found: list[tuple], expected: list[tuple], bucket_bytes: int, moved: set[int] | None = None, start_ts: int = 0
) -> TableVerdict:
    with contextlib.closing(TableComparison(shown, bucket_bytes=bucket_bytes)) as comparison:
        comparison.add_changes([changes(found[at : at + 3]) for at in range(0, len(found), 3)])
        rows = [(7 + at % 2, int(Op.INSERT), str(at).encode(), *row) for at, row in enumerate(expected)]
        columns = [[r[i] for r in rows] for i in range(5)]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, shown.batch_schema(), strict=True)]
        comparison.add_rows([pa.RecordBatch.from_arrays(arrays, schema=shown.batch_schema())], start_ts)
        if moved is None:
            return comparison.verdict()
        comparison.verdict()
        return comparison.verdict(pl.DataFrame({"id": sorted(moved)}, schema={"id": pl.Int64}))


@settings(deadline=None, max_examples=40)
@given(STATES, STATES, STATES, st.sets(st.integers(0, 30)) | st.none(), st.sampled_from([40, 1 << 20]))
def test_rows_with_a_key(older: dict, found: dict, expected: dict, moved: set[int] | None, bucket_bytes: int) -> None:
    history = [(int(Op.INSERT), *item) for item in older.items()]
    history += [(int(Op.DELETE), key, older[key]) for key in older if key not in found]
    history += [(int(Op.UPDATE), *item) for item in found.items()]
    verdict = compare(table(keyed=True), history, list(expected.items()), bucket_bytes, moved)
    left, right = ({k: v for k, v in side.items() if k not in (moved or ())} for side in (found, expected))
    both = left.keys() & right.keys()
    different = {k for k in both if left[k] != right[k]}
    assert (verdict.rows, verdict.missing, verdict.unexpected, verdict.different) == (
        len(both) - len(different),
        len(right.keys() - left.keys()),
        len(left.keys() - right.keys()),
        len(different),
    )
    wrong = {f"({k},)" for k in different | (left.keys() ^ right.keys())}
    assert set(verdict.sample_keys) <= wrong
    assert len(verdict.sample_keys) == min(5, len(wrong))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(VALUES, VALUES)), st.lists(st.tuples(VALUES, VALUES)), st.sampled_from([40, 1 << 20]))
def test_rows_without_a_key_are_a_bag(found: list, expected: list, bucket_bytes: int) -> None:
    verdict = compare(table(keyed=False), [(int(Op.INSERT), *row) for row in found], expected, bucket_bytes)
    left, right = Counter(found), Counter(expected)
    assert (verdict.rows, verdict.missing, verdict.unexpected, verdict.different) == (
        (left & right).total(),
        (right - left).total(),
        (left - right).total(),
        0,
    )


def test_a_copy_too_few_is_shown() -> None:
    rows = [(1, None), (1, None), (None, None)]
    shown = [(int(Op.INSERT), *row) for row in rows]
    assert compare(table(keyed=False), shown[::-1], rows, 1 << 20) == TableVerdict("d.b", 3)
    assert compare(table(keyed=False), shown[1:], rows, 1 << 20) == TableVerdict("d.b", 2, missing=1, sample_keys=("(1, None)",))


def test_rows_from_before_a_start_ts_are_left_out() -> None:
    assert compare(table(keyed=True), [(0, 1, 1)], [(0, 0), (1, 1)], 1 << 20, start_ts=7) == TableVerdict("d.b", 1)


def test_long_reads_are_told() -> None:
    lines: list[str] = []
    frame = changes([(0, 1, 1)]).select(pl.all().repeat_by(TELL_ROWS // 2).explode())
    with contextlib.closing(TableComparison(table(keyed=True), lines.append)) as comparison:
        comparison.add_changes([frame] * 5)
    assert lines == [f"d.b: {n * TELL_ROWS} changes of the target read" for n in (1, 2)]


def test_virtual_columns_are_computed_and_not_compared() -> None:
    shown = TableSchema(1, "d", "b", 1, (Column(1, "id", INT, False, True), Column(2, "n", INT, generated="VIRTUAL")))
    insert = int(Op.INSERT)
    verdict = compare(shown, [(insert, 1, None), (insert, 2, None), (insert, 3, None)], [(1, 7), (2, None), (4, 8)], 1 << 20)
    assert (verdict.rows, verdict.missing, verdict.unexpected, verdict.different) == (2, 1, 1, 0)
