"""Small change batches written as rows, and handles read back as rows, for tests of whatever moves batches.

A row is a tuple: commit ts, op, key number, then the values of the columns after the key. ``read_rows`` gives a handle's ordered rows in
the same form, so a test compares lists. Runs in tests.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.model.batch import COMMIT_TS, KEY, OP, BatchKind, ChangeBatch, Op
from penstock.model.span import DDL_SPAN
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.store.changes.ordering import merge_step
from penstock.store.contract import Changes, ChangesHandle, EndOfRange, EventStore

Row = tuple[Any, ...]
_WAIT_S = 60.0

TABLE = TableSchema(
    table_id=7,
    schema="shop",
    table="orders",
    version=1,
    columns=(
        Column(1, "id", ColumnType(TypeKind.BIGINT), nullable=False, primary_key=True),
        Column(2, "note", ColumnType(TypeKind.VARCHAR)),
    ),
)


def state_table(*, keyed: bool = True) -> TableSchema:
    """Return a table for comparing states: two columns that are its key or not, two of values."""
    columns = (
        Column(1, "id", ColumnType(TypeKind.BIGINT), nullable=False, primary_key=keyed),
        Column(2, "part", ColumnType(TypeKind.VARBINARY, length=8), nullable=False, primary_key=keyed),
        Column(3, "v", ColumnType(TypeKind.VARCHAR, length=9)),
        Column(4, "w", ColumnType(TypeKind.VARCHAR, length=9)),
    )
    return TableSchema(1, "d", "t", 5, columns)


def row_key(number: int) -> bytes:
    """Return the key of a row, in the order of the numbers."""
    return number.to_bytes(8, "big")


def change_batch(span_id: int, rows: Sequence[Row], kind: BatchKind, table: TableSchema = TABLE) -> ChangeBatch:
    """Build a batch of rows, ordered by commit ts and key, whose first table column is the key number."""
    ordered = sorted(rows, key=lambda r: (r[0], r[2]))
    columns = [
        [r[0] for r in ordered],
        [int(r[1]) for r in ordered],
        [row_key(r[2]) for r in ordered],
        *([r[2 + at] for r in ordered] for at in range(len(table.columns))),
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, table.batch_schema(), strict=True)]
    return ChangeBatch.of(span_id, table, kind, pa.RecordBatch.from_arrays(arrays, schema=table.batch_schema()))


def both_sides(span_id: int, rows: Sequence[Row], table: TableSchema = TABLE) -> list[ChangeBatch]:
    """Build the batches of both sides from mixed rows; the op says the side."""
    sides = {
        BatchKind.DATA: [r for r in rows if r[1] in (Op.INSERT, Op.UPDATE)],
        BatchKind.TOMBSTONE: [r for r in rows if r[1] in (Op.DELETE, Op.BEFORE)],
    }
    return [change_batch(span_id, mine, kind, table) for kind, mine in sides.items() if mine]


def append_durably(store: EventStore, span_id: int, rows: Sequence[Row], resolved_ts: int) -> None:
    """Append mixed rows, wait until they are durable, and resolve the span and the DDLs."""
    durable = threading.Event()
    store.append(span_id, both_sides(span_id, rows), durable.set)
    assert durable.wait(_WAIT_S)
    for resolved in (span_id, DDL_SPAN.span_id):
        store.advance_resolved_ts(resolved, resolved_ts)


def read_steps(handle: ChangesHandle) -> list[Changes]:
    """Return all steps of a handle and close it."""
    steps: list[Changes] = []
    while not isinstance(step := handle.next(), EndOfRange):
        steps.append(step)
    handle.close()
    return steps


def read_rows(handle: ChangesHandle, keep_before: bool = True) -> list[Row]:
    """Return a handle's rows in order, in the form of ``change_batch``."""
    return [row for step in read_steps(handle) for _, records in merge_step(step, keep_before) for row in rows_of(records)]


def rows_of(records: pa.RecordBatch) -> list[Row]:
    """Return records as rows; the op as ``Op``."""
    names = [n for n in records.schema.names if n not in (COMMIT_TS, OP, KEY)]
    columns = [records.column(n).to_pylist() for n in (COMMIT_TS, OP, *names)]
    return [(ts, Op(op), *values) for ts, op, *values in zip(*columns, strict=True)]
