from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.mysql.rows.row_keys import row_contents, row_keys


def table_of(*columns: Column) -> TableSchema:
    return TableSchema(9, "s", "t`x", 1, columns)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)), min_size=2, max_size=20))
def test_keys_have_the_order_of_their_columns(values: list[tuple[int, float]]) -> None:
    table = table_of(
        Column(1, "d", ColumnType(TypeKind.DOUBLE), primary_key=True), Column(2, "i", ColumnType(TypeKind.BIGINT), primary_key=True)
    )
    # Zero has two signs and one value.
    pairs = [(number + 0.0 if number else 0.0, key) for key, number in values]
    keys = row_keys(table, (pa.array([p[0] for p in pairs]), pa.array([p[1] for p in pairs]))).to_pylist()
    assert sorted(range(len(pairs)), key=lambda n: keys[n]) == sorted(range(len(pairs)), key=lambda n: pairs[n])


def test_rows_without_a_key_are_known_by_all_their_columns() -> None:
    table = table_of(Column(1, "a", ColumnType(TypeKind.INT)), Column(2, "b", ColumnType(TypeKind.VARCHAR, length=5)))
    keys = row_contents(table, (pa.array([1, None, 1, 0], pa.int32()), pa.array(["x", "x", None, "x"]))).to_pylist()
    assert len(set(keys)) == 4
    assert {len(k) for k in keys} == {16}
