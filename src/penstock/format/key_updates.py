"""Updates that change a unique key, taken apart: the old row ceases, the new one comes to be.

A target that has the upstream's unique keys cannot take an update of one row while another row still holds the value that it wants: two
rows that swap their values would collide. So such an update becomes a DELETE of the old row and an INSERT of the new one, and in one
transaction all of these INSERTs come last. A change of the primary key arrives taken apart already, because rows are stored by it.
Invariants: the rows that come out depend on the rows alone, not on how they were divided into events; at one commit ts all that ceases
stands before all that comes to be; what is held is the transaction that is still coming in, at most ``TRANSACTION_ROWS_MAX`` rows of
it: a larger one has all its updates taken apart, which needs no look at values. Runs on executors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.format.old_values import before_of_updates
from penstock.model.batch import Op, commit_ts_array
from penstock.model.table import OP, TableSchema

TRANSACTION_ROWS_MAX = 65_536

Flags = npt.NDArray[np.bool_]


class KeyUpdates:
    """Takes the updates of one dispatcher and one table version apart. Not thread safe."""

    def __init__(self, table: TableSchema, rows_max: int = TRANSACTION_ROWS_MAX) -> None:
        self._names = sorted({f"c{column_id}" for key in table.unique_keys for column_id in key})
        self._rows_max = rows_max
        self._held: pa.RecordBatch | None = None
        self._apart_ts = 0
        """The transaction that has grown too large to be held; what comes of it is taken apart at once."""

    @staticmethod
    def concern(table: TableSchema) -> bool:
        """Return whether updates of a table can change a unique key, so that before-images and keys must travel."""
        return bool(table.unique_keys)

    @property
    def holding(self) -> bool:
        """Return whether rows are held back."""
        return self._held is not None

    def add(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Take rows in; return those whose transaction is certain, in order."""
        if self._held is not None:
            records = pa.concat_batches([self._held, records.select(self._held.schema.names)])
            self._held = None
        if records.num_rows == 0:
            return records
        ts = commit_ts_array(records)
        last = np.searchsorted(ts, ts[-1])
        befores = np.flatnonzero(records.column(OP).to_numpy(zero_copy_only=True)[last:] == Op.BEFORE)
        if int(ts[-1]) == self._apart_ts or not len(befores):
            return self._apart(records)
        start = int(last + befores[0])
        if records.num_rows - start <= self._rows_max:
            self._held = records.slice(start)
            return self._apart(records.slice(0, start))
        done = self._apart(records)
        self._apart_ts = int(ts[-1])
        return done

    def finish(self) -> pa.RecordBatch | None:
        """Return what was held; the next row begins another transaction."""
        held, self._held = self._held, None
        return None if held is None else self._apart(held)

    def _apart(self, records: pa.RecordBatch) -> pa.RecordBatch:
        ops = records.column(OP).to_numpy(zero_copy_only=True)
        is_before = ops == Op.BEFORE
        large = self._large(records, is_before)
        ceasing, coming = is_before & large, (ops == Op.UPDATE) & large
        updates, befores = before_of_updates(records)
        if len(updates):
            changed = self._changed(records, updates, befores)
            ceasing[befores[changed]] = True
            coming[updates[changed]] = True
        if not ceasing.any() and not coming.any():
            return records
        ops = np.where(ceasing, np.uint8(Op.DELETE), np.where(coming, np.uint8(Op.INSERT), ops))
        at = records.schema.get_field_index(OP)
        apart = records.set_column(at, records.schema.field(at), pa.array(ops, pa.uint8()))
        moved = coming & ~large
        if not moved.any():
            return apart
        return apart.take(pa.array(np.lexsort((moved, commit_ts_array(records)))))

    def _large(self, records: pa.RecordBatch, is_before: Flags) -> Flags:
        """Return which rows belong to a transaction that, from its first BEFORE row on, has more rows than may be held."""
        ts = commit_ts_array(records)
        flags: Flags = (ts == np.uint64(self._apart_ts)) & bool(self._apart_ts)
        if records.num_rows <= self._rows_max or not is_before.any():
            return flags
        found, starts, counts = np.unique(ts, return_index=True, return_counts=True)
        for at in np.flatnonzero(counts > self._rows_max).tolist():
            start, end = int(starts[at]), int(starts[at] + counts[at])
            befores = np.flatnonzero(is_before[start:end])
            if len(befores) and end - start - int(befores[0]) > self._rows_max:
                flags |= ts == found[at]
        return flags

    def _changed(self, records: pa.RecordBatch, updates: npt.NDArray[np.int64], befores: npt.NDArray[np.int64]) -> Flags:
        """Return which updates, given with the positions of their before-images, changed a column of a unique key."""
        changed: Flags = np.zeros(len(updates), np.bool_)
        for name in self._names:
            if name in records.schema.names:
                values = pl.Series(records.column(name))
                changed |= values.gather(befores).ne_missing(values.gather(updates)).to_numpy()
        return changed
