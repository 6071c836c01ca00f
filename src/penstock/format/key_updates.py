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
import pyarrow as pa

from penstock.format.coming_transaction import TRANSACTION_ROWS_MAX, ComingTransaction, changed_values
from penstock.format.old_values import before_of_updates
from penstock.model.batch import Op, commit_ts_array
from penstock.model.table import OP, TableSchema


class KeyUpdates:
    """Takes the updates of one dispatcher and one table version apart. Not thread safe."""

    def __init__(self, table: TableSchema, rows_max: int = TRANSACTION_ROWS_MAX) -> None:
        self._names = sorted({f"c{column_id}" for key in table.unique_keys for column_id in key})
        self._coming = ComingTransaction(rows_max)

    @staticmethod
    def concern(table: TableSchema) -> bool:
        """Return whether updates of a table can change a unique key, so that before-images and keys must travel."""
        return bool(table.unique_keys)

    @property
    def holding(self) -> bool:
        """Return whether rows are held back."""
        return self._coming.holding

    def add(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Take rows in; return those whose transaction is certain, in order."""
        return self._apart(self._coming.add(records))

    def finish(self) -> pa.RecordBatch | None:
        """Return what was held; the next row begins another transaction."""
        held = self._coming.take()
        return None if held is None else self._apart(held)

    def _apart(self, records: pa.RecordBatch) -> pa.RecordBatch:
        if records.num_rows == 0:
            return records
        ops = records.column(OP).to_numpy(zero_copy_only=True)
        is_before = ops == Op.BEFORE
        large = self._coming.large(records, is_before)
        ceasing, coming = is_before & large, (ops == Op.UPDATE) & large
        updates, befores = before_of_updates(records)
        if len(updates):
            names = [name for name in self._names if name in records.schema.names]
            changed = changed_values(records, names, updates, befores)
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
