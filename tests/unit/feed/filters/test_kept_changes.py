"""Rows of which some are kept become the changes of the filtered table: against a model that goes row by row, however they are divided."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.feed.filters.kept_changes import KeptChanges, bare_images
from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

BIGINT = ColumnType(TypeKind.BIGINT)
TABLE = TableSchema(1, "d", "t", 1, (Column(1, "id", BIGINT, primary_key=True), Column(2, "v", BIGINT)))
Row = tuple[int, int, int, int | None]
"""Commit ts, operation, id, value."""
LIMIT = 3
"""Values below are kept."""


def batch(rows: list[Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    keys = pa.array([int(i).to_bytes(8, "big") for i in columns[2]], pa.binary())
    ts, ops = pa.array(columns[0], pa.uint64()), pa.array(columns[1], pa.uint8())
    return pa.RecordBatch.from_arrays(
        [ts, ops, keys, pa.array(columns[2], pa.int64()), pa.array(columns[3], pa.int64())], schema=TABLE.batch_schema()
    )


def delivered(rows: list[Row], cuts: list[int], own_key: tuple[str, ...] = (), rows_max: int = 65_536) -> list[Row]:
    changes = KeptChanges(own_key, rows_max)
    found = []
    edges = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        part = rows[start:end]
        kept = np.array([v is not None and v < LIMIT for *_, v in part], dtype=np.bool_)
        found.append(changes.add(batch(part), kept, bare_images(batch(part), TABLE)))
    last = changes.finish()
    found += [last] if last is not None else []
    return [tuple(row.values()) for one in found for row in one.drop_columns(["_key"]).to_pylist()]


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Draw transactions over few ids; at one ts what ceases comes first, both sides by key."""
    alive: dict[int, int] = {}
    rows: list[Row] = []
    for ts in range(1, draw(st.integers(1, 8)) + 1):
        gone, came = [], []
        for row_id in sorted(draw(st.sets(st.integers(0, 5), min_size=1))):
            value, deletes = draw(st.integers(0, 5)), draw(st.booleans())
            if row_id not in alive:
                came.append((ts, int(Op.INSERT), row_id, value))
                alive[row_id] = value
            elif deletes:
                gone.append((ts, int(Op.DELETE), row_id, alive.pop(row_id)))
            else:
                gone.append((ts, int(Op.BEFORE), row_id, alive[row_id]))
                came.append((ts, int(Op.UPDATE), row_id, value))
                alive[row_id] = value
        rows += gone + came
    return rows


def expected(rows: list[Row]) -> list[Row]:
    """Go through the history row by row, with the partner of each update at hand."""
    before = {(ts, row_id): v for ts, op, row_id, v in rows if op == Op.BEFORE}
    after = {(ts, row_id): v for ts, op, row_id, v in rows if op == Op.UPDATE}
    found = []
    for ts, op, row_id, value in rows:
        if value >= LIMIT:
            continue
        was, becomes = before.get((ts, row_id), LIMIT), after.get((ts, row_id), LIMIT)
        if op == Op.BEFORE and becomes >= LIMIT:
            found.append((ts, int(Op.DELETE), row_id, value))
        elif op == Op.UPDATE and was >= LIMIT:
            found.append((ts, int(Op.INSERT), row_id, value))
        else:
            found.append((ts, op, row_id, value))
    return found


@settings(max_examples=150, deadline=None)
@given(histories(), st.lists(st.integers(0, 60), max_size=6))
def test_updates_that_enter_are_inserts_and_those_that_leave_deletes(rows: list[Row], cuts: list[int]) -> None:
    assert delivered(rows, cuts) == expected(rows)


@settings(max_examples=100, deadline=None)
@given(histories(), st.lists(st.integers(0, 60), max_size=6), st.integers(0, 4))
def test_a_transaction_that_is_too_large_is_taken_apart_however_it_is_divided(rows: list[Row], cuts: list[int], rows_max: int) -> None:
    found = delivered(rows, cuts, rows_max=rows_max)
    assert found == delivered(rows, [], rows_max=rows_max)
    state: dict[int, int] = {}
    for _, op, row_id, value in found:
        # Whatever is taken apart, the rows that come to be stand behind those that cease, and the state is that of the filter.
        if op == Op.DELETE:
            del state[row_id]
        elif op != Op.BEFORE:
            state[row_id] = value
    alive: dict[int, int] = {}
    for _, op, row_id, value in rows:
        alive.pop(row_id, None) if op in (Op.DELETE, Op.BEFORE) else alive.update({row_id: value})
    assert state == {row_id: value for row_id, value in alive.items() if value < LIMIT}


def test_an_update_without_its_before_image_may_have_been_delivered() -> None:
    rows = [(1, int(Op.UPDATE), 1, 0), (2, int(Op.UPDATE), 2, 5)]
    assert delivered(rows, []) == [(1, int(Op.UPDATE), 1, 0), (2, int(Op.DELETE), 2, 5)]


def test_an_update_of_the_targets_own_key_is_taken_apart() -> None:
    rows = [(1, int(Op.BEFORE), 1, 0), (1, int(Op.BEFORE), 2, 1), (1, int(Op.UPDATE), 1, 2), (1, int(Op.UPDATE), 2, 1)]
    found = [(1, int(Op.DELETE), 1, 0), (1, int(Op.BEFORE), 2, 1), (1, int(Op.INSERT), 1, 2), (1, int(Op.UPDATE), 2, 1)]
    assert delivered(rows, [], own_key=("c2",)) == found


def test_of_a_row_that_comes_with_its_key_alone_nobody_knows_whether_it_was_kept() -> None:
    rows: list[Row] = [
        *((1, int(Op.BEFORE), 1, None), (1, int(Op.BEFORE), 2, None), (1, int(Op.DELETE), 3, None), (1, int(Op.DELETE), 4, 5)),
        *((1, int(Op.UPDATE), 1, 0), (1, int(Op.UPDATE), 2, 5), (1, int(Op.INSERT), 5, None)),
    ]
    assert delivered(rows, []) == [(1, int(Op.DELETE), 3, None), (1, int(Op.UPDATE), 1, 0), (1, int(Op.DELETE), 2, 5)]
    apart = [(1, int(Op.DELETE), 1, None), (1, int(Op.DELETE), 2, None), (1, int(Op.DELETE), 3, None), (1, int(Op.INSERT), 1, 0)]
    assert delivered(rows, [], rows_max=2) == apart
