"""A transaction that is given in pieces: all at one ts, unless a later piece changes a key of an earlier one again.

A store holds a key once per ts, so such a piece gets the next one. Pieces depend on the log alone, so do their ts. Runs in the log service;
one thread.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.jit import U64
from penstock.model.bag_key import CONTENT_BYTES
from penstock.model.batch import KEY, ChangeBatch


class TransactionPieces:
    """The ts of the pieces of one transaction and the keys that those before have changed at it. Not thread safe."""

    def __init__(self) -> None:
        self.ts = 0
        self._keys: dict[int, list[U64]] = {}

    @property
    def table_ids(self) -> set[int]:
        """Return whose rows were given at this ts."""
        return set(self._keys)

    def begin(self, ts: int) -> None:
        """Give what comes a ts of its own."""
        self.ts = ts
        self._keys = {}

    def separated(
        self, changes: list[ChangeBatch], next_ts: Callable[[], int], counted: Callable[[ChangeBatch], bool]
    ) -> list[ChangeBatch]:
        """Return a piece, at the next ts where it changes a key that an earlier piece at this ts has changed.

        ``counted`` tells changes to a bag: which copy of a row changed cannot be told, so any two changes to one content are apart.
        """
        hashes: dict[int, list[U64]] = {}
        for change in changes:
            keys = change.records.column(KEY)
            named = pc.binary_slice(keys, 0, CONTENT_BYTES) if counted(change) else keys
            hashes.setdefault(change.header.table_id, []).append(pl.Series(named).hash().to_numpy())
        repeated = any(
            bool(np.isin(np.concatenate(found), np.concatenate(self._keys[table])).any())
            for table, found in hashes.items()
            if table in self._keys
        )
        if repeated:
            self.begin(next_ts())
            changes = [at_ts(change, self.ts) for change in changes]
        for table, found in hashes.items():
            self._keys.setdefault(table, []).extend(found)
        return changes


def at_ts(change: ChangeBatch, ts: int) -> ChangeBatch:
    """Return a change under another ts."""
    column = pa.array(np.full(change.header.rows, ts, dtype=np.uint64))
    records = change.records.set_column(0, change.records.schema.field(0), column)
    return ChangeBatch(msgspec.structs.replace(change.header, min_ts=ts, max_ts=ts), records)
