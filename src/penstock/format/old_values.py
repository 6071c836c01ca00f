"""Updates with their old values in one row: what Canal-JSON, Debezium and Parquet write.

The change rows of a dispatcher hold an update as a BEFORE row and, later at the same commit ts, an UPDATE row of the same key.
``UpdatePairs`` joins them: an UPDATE row gets ``o<column id>`` columns with the values that it replaced and ``_old`` 1; every other row
has NULL and 0 there.
Invariants: rows other than BEFORE keep their order and none is lost; the result does not depend on how rows were divided into events;
an UPDATE whose before-image the upstream did not give is kept, with ``_old`` 0. Nothing here looks at a row from Python. Runs on executors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.format.csv.dialect import row_columns
from penstock.model.batch import COMMIT_TS, KEY, OP, Op
from penstock.model.table import Column, TableSchema

OLD = "_old"


def old_name(column: Column) -> str:
    """Return the name of the column that holds a column's old values."""
    return f"o{column.id}"


def paired_schema(table: TableSchema) -> pa.Schema:
    """Return the Arrow schema of paired rows: ts, op, key, the old-value flag, new values, old values."""
    columns = row_columns(table)
    return pa.schema(
        [
            pa.field(COMMIT_TS, pa.uint64()),
            pa.field(OP, pa.uint8()),
            pa.field(KEY, pa.binary()),
            pa.field(OLD, pa.uint8()),
            *(pa.field(c.field_name, c.type.arrow()) for c in columns),
            *(pa.field(old_name(c), c.type.arrow()) for c in columns),
        ]
    )


class UpdatePairs:
    """Pairs the rows of one dispatcher and one table version. Not thread safe."""

    def __init__(self, table: TableSchema) -> None:
        self._columns = row_columns(table)
        self._schema = paired_schema(table)
        self._waiting: pa.RecordBatch | None = None

    def add(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Take rows in; return them without BEFORE rows and with old values."""
        ops = records.column(OP).to_numpy(zero_copy_only=True)
        is_before = ops == Op.BEFORE
        kept = records
        befores = self._waiting
        if is_before.any():
            kept = records.filter(pa.array(~is_before))
            mine = records.filter(pa.array(is_before))
            befores = mine if befores is None else pa.concat_batches([befores, mine])
            ops = ops[~is_before]
        updates = np.flatnonzero(ops == Op.UPDATE)
        found = np.full(len(ops), -1, np.int64)
        if befores is not None and len(updates):
            found[updates] = _matches(befores, kept, updates)
        self._keep_waiting(befores, records, found)
        return self._paired(kept, befores, found)

    def _keep_waiting(self, befores: pa.RecordBatch | None, records: pa.RecordBatch, found: npt.NDArray[np.int64]) -> None:
        """Keep the BEFORE rows whose UPDATE may still come: those of the last ts that found none."""
        self._waiting = None
        if befores is None or records.num_rows == 0:
            self._waiting = befores
            return
        last_ts = records.column(COMMIT_TS)[-1].as_py()
        open_rows = befores.column(COMMIT_TS).to_numpy(zero_copy_only=True) == np.uint64(last_ts)
        open_rows[found[found >= 0]] = False
        if open_rows.any():
            self._waiting = befores.filter(pa.array(open_rows))

    def _paired(self, kept: pa.RecordBatch, befores: pa.RecordBatch | None, found: npt.NDArray[np.int64]) -> pa.RecordBatch:
        has_old = found >= 0
        key = kept.column(KEY) if KEY in kept.schema.names else pa.nulls(kept.num_rows, pa.binary())
        columns = [kept.column(COMMIT_TS), kept.column(OP), key, pa.array(has_old.astype(np.uint8))]
        columns += [kept.column(c.field_name) for c in self._columns]
        if befores is None or not has_old.any():
            columns += [pa.nulls(kept.num_rows, c.type.arrow()) for c in self._columns]
        else:
            at = pa.array(found, mask=~has_old)
            columns += [befores.column(c.field_name).take(at) for c in self._columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def before_of_updates(records: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the positions of the UPDATE rows that have their before-image among these rows, and the positions of those."""
    ops = records.column(OP).to_numpy(zero_copy_only=True)
    at, updates = np.flatnonzero(ops == Op.BEFORE), np.flatnonzero(ops == Op.UPDATE)
    if not len(at) or not len(updates):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    found = _matches(records.take(pa.array(at)), records, updates)
    return updates[found >= 0], at[found[found >= 0]]


def _matches(befores: pa.RecordBatch, kept: pa.RecordBatch, updates: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return for each UPDATE row the position of its BEFORE row, or -1."""
    rows = kept.select([COMMIT_TS, KEY]).take(pa.array(updates))
    count = len(updates)
    if befores.num_rows >= count:
        first = befores.select([COMMIT_TS, KEY]).slice(0, count)
        # Both stand in (ts, key) order and each update has one of both, so they meet one to one.
        if first.column(0).equals(rows.column(0)) and first.column(1).equals(rows.column(1)):
            return np.arange(count, dtype=np.int64)
    right = pl.DataFrame(befores.select([COMMIT_TS, KEY])).with_row_index("at").unique([COMMIT_TS, KEY], keep="last", maintain_order=True)
    joined = pl.DataFrame(rows).join(right, on=[COMMIT_TS, KEY], how="left", maintain_order="left")
    return joined["at"].cast(pl.Int64).fill_null(-1).to_numpy()


def expand_updates(paired: pl.DataFrame, table: TableSchema) -> pl.DataFrame:
    """Return paired rows with each old value as a BEFORE row just before its UPDATE row, as change batches have them."""
    names = [c.field_name for c in row_columns(table)]
    plain = [COMMIT_TS, OP, *names]
    flags = paired[OLD].to_numpy() != 0
    if not flags.any():
        return paired.select(plain)
    olds = paired.filter(pl.col(OLD) != 0).select(
        COMMIT_TS, pl.lit(int(Op.BEFORE), dtype=pl.UInt8).alias(OP), *(pl.col(old_name(c)).alias(c.field_name) for c in row_columns(table))
    )
    rows = paired.height
    positions = np.arange(rows) + np.cumsum(flags)
    source = np.empty(rows + olds.height, np.int64)
    source[positions] = np.arange(rows)
    source[positions[flags] - 1] = rows + np.arange(olds.height)
    return pl.concat([paired.select(plain), olds])[source]
