"""The transaction that is still coming in: which of its rows wait for their partners.

An update comes as a BEFORE row and an UPDATE row, which batches may divide. Whoever must see both holds the rows of the last transaction,
from its first BEFORE row on, until the next one begins. Invariants: what is held is at most ``TRANSACTION_ROWS_MAX`` rows; of a larger
transaction nothing is held, and all its rows are ``large``, however they were divided. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.model.batch import Op, commit_ts_array
from penstock.model.table import OP

TRANSACTION_ROWS_MAX = 65_536

Flags = npt.NDArray[np.bool_]


class ComingTransaction:
    """The held rows of one dispatcher. Not thread safe."""

    def __init__(self, rows_max: int = TRANSACTION_ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._held: pa.RecordBatch | None = None
        self._grown_ts = 0
        """The last transaction that has grown too large to be held."""
        self._apart_ts = 0
        """That one as it was before the rows that came last: its end may stand before the beginning of the next."""

    @property
    def holding(self) -> bool:
        """Return whether rows are held back."""
        return self._held is not None

    def add(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Take rows in; return those, held ones first, whose transaction is certain, in order."""
        self._apart_ts = self._grown_ts
        if self._held is not None:
            records = pa.concat_batches([self._held, records.select(self._held.schema.names)])
            self._held = None
        if records.num_rows == 0:
            return records
        ts = commit_ts_array(records)
        last = int(np.searchsorted(ts, ts[-1]))
        befores = np.flatnonzero(records.column(OP).to_numpy(zero_copy_only=True)[last:] == Op.BEFORE)
        if int(ts[-1]) == self._apart_ts or not len(befores):
            return records
        start = last + int(befores[0])
        if records.num_rows - start > self._rows_max:
            self._grown_ts = int(ts[-1])
            return records
        self._held = records.slice(start)
        return records.slice(0, start)

    def take(self) -> pa.RecordBatch | None:
        """Return what was held: the next row begins another transaction."""
        held, self._held = self._held, None
        return held

    def large(self, records: pa.RecordBatch, is_before: Flags) -> Flags:
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


def changed_values(records: pa.RecordBatch, names: Iterable[str], updates: npt.NDArray[np.int64], befores: npt.NDArray[np.int64]) -> Flags:
    """Return which updates, given with the positions of their before-images, changed one of some columns."""
    changed: Flags = np.zeros(len(updates), np.bool_)
    for name in names:
        values = pl.Series(records.column(name))
        changed |= values.gather(befores).ne_missing(values.gather(updates)).to_numpy()
    return changed
