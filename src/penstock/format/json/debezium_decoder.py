"""The decoder of Debezium-style JSON: the events of a data file and its schema back to typed columns.

The result has the representation of change batches; an update whose ``before`` is there is a BEFORE row and an UPDATE row. ``r`` (a row of
a snapshot) is an insert. Invariants: a column that a row lacks is an error; a malformed file is an error that names file, line and
byte. Runs wherever a target is read.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.format.csv.decoder import empty_frame
from penstock.format.csv.dialect import row_columns
from penstock.format.json import tokens
from penstock.format.json.canal_decoder import JsonBlock, json_blocks, valued
from penstock.format.old_values import OLD, expand_updates, old_name
from penstock.kernels.jit import U8
from penstock.model.batch import Op
from penstock.model.rows.elements import ELEMENT_KINDS
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.types import BINARY_KINDS, FLOAT_KINDS

_OPS = {"c": int(Op.INSERT), "r": int(Op.INSERT), "u": int(Op.UPDATE), "d": int(Op.DELETE)}


def decode(content: bytes, table: TableSchema, path: str = "Debezium JSON") -> pl.DataFrame:
    """Return the rows of a data file, in the order in which they stand in it."""
    columns = row_columns(table)
    head = [("source", "db"), ("source", "table"), ("source", "commit_ts"), ("op",)]
    keys = tokens.KeyTable.of([*head, *(("before", c.name) for c in columns), *(("after", c.name) for c in columns)])
    frames = [_frame(block, keys, table, columns) for block in json_blocks(content, keys, path)]
    return expand_updates(pl.concat(frames), table) if frames else empty_frame(table)


def _frame(block: JsonBlock, keys: tokens.KeyTable, table: TableSchema, columns: tuple[Column, ...]) -> pl.DataFrame:
    places = keys.places
    block.constant(places["source", "db"], table.schema, "schema")
    block.constant(places["source", "table"], table.table, "table")
    at = places["op",]
    words = pl.Series(block.take_slot(at, valued(block.sorts[at])).text(0, "op"))
    block.fail_where(~words.is_in(list(_OPS)).fill_null(False), at, "the op is none of c, r, u, d")
    ops = words.replace_strict(list(_OPS), list(_OPS.values()), return_dtype=pl.UInt8)
    op_codes = ops.to_numpy()
    at = places["source", "commit_ts"]
    missing = np.flatnonzero(block.sorts[at] == tokens.MISSING)
    if len(missing):
        raise block.fail(int(missing[0]), at, "source.commit_ts is missing")
    commit_ts = block.integers(at, "commit_ts", pa.uint64())
    before, after = (block.sorts[places[side,]] == tokens.ENTERED for side in ("before", "after"))
    deleted = op_codes == Op.DELETE
    for wrong, side in ((deleted & ~before, "before"), (~deleted & ~after, "after")):
        if wrong.any():
            raise block.fail(int(np.flatnonzero(wrong)[0]), places[side,], f"an event without {side!r}")
    has_old = before & (op_codes == Op.UPDATE)
    news, olds = [], []
    for column in columns:
        old_at, new_at = places["before", column.name], places["after", column.name]
        for present, slot in ((before, old_at), (after, new_at)):
            absent = present & (block.sorts[slot] == tokens.MISSING)
            if absent.any():
                raise block.fail(int(np.flatnonzero(absent)[0]), slot, f"column {column.name} is missing")
        old = _values(block, old_at, column, valued(block.sorts[old_at]))
        new = _values(block, new_at, column, valued(block.sorts[new_at]))
        news.append((old.zip_with(pl.Series(deleted), new) if deleted.any() else new).alias(column.field_name))
        olds.append(old.alias(old_name(column)))
    head = [pl.Series(COMMIT_TS, commit_ts), ops.alias(OP), pl.Series(OLD, has_old.astype(np.uint8))]
    return pl.DataFrame([*head, *news, *olds])


def _values(block: JsonBlock, at: int, column: Column, sorts: U8) -> pl.Series:
    one = block.take_slot(at, sorts)
    kind, dtype, name = column.type.kind, column.type.arrow(), column.name
    if kind in ELEMENT_KINDS:
        return one.elements(0, column)
    if pa.types.is_integer(dtype):
        return pl.Series(one.integers(0, name, dtype))
    if kind in FLOAT_KINDS:
        return pl.Series(one.floats(0, column))
    series = pl.Series(one.text(0, name))
    if kind in BINARY_KINDS:
        values = series.str.decode("base64", strict=False)
        one.fail_where(values.is_null() & series.is_not_null(), 0, f"column {name}: not base64")
        return values
    return series
