"""Folds change rows of one table version to what came of them, by columns.

Rows that something names: of each key the last change counts. Rows that nothing names are counted: equal ones that came and ceased cancel
each other out. Invariant: what comes out depends on the rows alone, not on how they were divided. Runs on executors.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.format.csv.dialect import row_columns
from penstock.model.batch import Op
from penstock.model.table import OP, TableSchema
from penstock.sink.lake.columns import COUNT_COLUMN, LakeShape, key_names

_AT, _NET = "_at", "_net"


def folded(shape: LakeShape, table: TableSchema, records: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return what came of change rows, as rows of the lake: the rows that are there, and what names those that were there before."""
    return _by_key(shape, table, records) if table.handle_columns else _counted(shape, table, records)


def _by_key(shape: LakeShape, table: TableSchema, records: pa.Table) -> tuple[pa.Table, pa.Table]:
    names = [c.field_name for c in table.handle_columns]
    frame = pl.DataFrame(records.select(names)).with_row_index(_AT)
    last = frame.unique(subset=names, keep="last").sort(names)
    taken = records.take(last.get_column(_AT).to_arrow())
    ops = taken.column(OP).to_numpy()
    keys = pa.Table.from_arrays(
        [shape.values(c, taken.column(c.field_name)) for c in table.handle_columns], schema=_key_schema(shape, table)
    )
    return shape.rows(table, taken.filter(pa.array(~_ceased(ops)))), keys


def _counted(shape: LakeShape, table: TableSchema, records: pa.Table) -> tuple[pa.Table, pa.Table]:
    names = [c.field_name for c in row_columns(table)]
    sign = np.where(_ceased(records.column(OP).to_numpy()), -1, 1)
    frame = pl.DataFrame(records.select(names)).with_row_index(_AT).with_columns(pl.Series(_NET, sign))
    net = frame.group_by(names).agg(pl.col(_AT).min(), pl.col(_NET).sum()).sort(_AT)
    came, ceased = net.filter(pl.col(_NET) > 0), net.filter(pl.col(_NET) < 0)
    rows = records.take(pa.array(np.repeat(came.get_column(_AT).to_numpy(), came.get_column(_NET).to_numpy())))
    gone = shape.rows(table, records.take(ceased.get_column(_AT).to_arrow()))
    counts = pa.array(-ceased.get_column(_NET).to_numpy(), pa.int64())
    return shape.rows(table, rows), gone.append_column(COUNT_COLUMN, counts)


def _key_schema(shape: LakeShape, table: TableSchema) -> pa.Schema:
    schema = shape.schema(table)
    return pa.schema([schema.field(name) for name in key_names(table)])


def _ceased(ops: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = (ops == np.uint8(Op.DELETE)) | (ops == np.uint8(Op.BEFORE))
    return found
