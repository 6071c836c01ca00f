"""From change rows, of which some are kept, to the changes of the filtered table.

An update whose row was and stays kept is an update; one that enters is an insert, one that leaves a delete with the values from before.
Some logs give no before-image, or nothing of it but the key (``bare_images``), and then the target may have the row: an update is kept as
it is, or is a delete, and a delete is kept. With a key of its own an update that changes it is taken apart. Invariants: what comes
out depends on rows alone, not on how they were divided; rows keep their order; what is held is the transaction that is still coming in, at
most ``TRANSACTION_ROWS_MAX`` rows of it: of a larger one all updates are taken apart, which needs no partner. Nothing here looks at a row
from Python. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.format.coming_transaction import TRANSACTION_ROWS_MAX, ComingTransaction, Flags, changed_values
from penstock.format.old_values import before_of_updates
from penstock.model.batch import OP, Op
from penstock.model.table import TableSchema

KEPT, BARE = "_kept", "_bare"


class KeptChanges:
    """Turns the rows of one dispatcher into changes of the filtered table. Not thread safe."""

    def __init__(self, own_key: Sequence[str] = (), rows_max: int = TRANSACTION_ROWS_MAX) -> None:
        """``own_key`` are the fields that name a row in the target, where these are not the upstream's."""
        self._own_key = list(own_key)
        self._coming = ComingTransaction(rows_max)

    def add(self, records: pa.RecordBatch, kept: Flags, bare: Flags) -> pa.RecordBatch:
        """Take rows in, with which of them are kept and which are bare; return the changes whose transaction is certain, in order."""
        marked = records.append_column(pa.field(KEPT, pa.bool_()), pa.array(kept))
        marked = marked.append_column(pa.field(BARE, pa.bool_()), pa.array(bare))
        return self._changes(self._coming.add(marked))

    def finish(self) -> pa.RecordBatch | None:
        """Return the changes of what was held, or None; no more rows come."""
        held = self._coming.take()
        return None if held is None else self._changes(held)

    def _changes(self, marked: pa.RecordBatch) -> pa.RecordBatch:
        kept: Flags = marked.column(KEPT).to_numpy(zero_copy_only=False).copy()
        bare: Flags = marked.column(BARE).to_numpy(zero_copy_only=False)
        records = marked.drop_columns([KEPT, BARE])
        ops = records.column(OP).to_numpy(zero_copy_only=True).copy()
        is_before, is_update = ops == Op.BEFORE, ops == Op.UPDATE
        # Of a row of which nothing but the key is told nobody knows whether it was kept.
        kept |= bare & ~is_before
        if is_before.any() or is_update.any():
            large = self._coming.large(records, is_before)
            updates, befores = before_of_updates(records)
            paired: Flags = ~large[updates] & ~large[befores] & ~bare[befores]
            updates, befores = updates[paired], befores[paired]
            alone = is_update & ~large
            alone[updates] = False
            kept[is_before & bare] = large[is_before & bare]
            ops[large & is_before], ops[large & is_update] = Op.DELETE, Op.INSERT
            ops[updates[kept[updates] & ~kept[befores]]] = Op.INSERT
            ops[befores[kept[befores] & ~kept[updates]]] = Op.DELETE
            ops[alone & ~kept] = Op.DELETE
            kept |= alone
            changed = changed_values(records, self._own_key, updates, befores) & kept[updates] & kept[befores]
            ops[befores[changed]], ops[updates[changed]] = Op.DELETE, Op.INSERT
            at = records.schema.get_field_index(OP)
            records = records.set_column(at, records.schema.field(at), pa.array(ops, pa.uint8()))
        if bool(kept.all()):
            return records
        return records.filter(pa.array(kept)) if bool(kept.any()) else records.slice(0, 0)


def bare_images(records: pa.RecordBatch, table: TableSchema) -> Flags:
    """Return which rows that ceased come with nothing but their key: every other column is NULL."""
    flags: Flags = records.column(OP).to_numpy(zero_copy_only=True) >= Op.DELETE
    key = {c.id for c in table.handle_columns}
    others = [c.field_name for c in table.columns if c.id not in key] if key else []
    if not others:
        return np.zeros(records.num_rows, np.bool_)
    for name in others:
        if not flags.any():
            break
        flags = flags & records.column(name).is_null().to_numpy(zero_copy_only=False)
    return flags
