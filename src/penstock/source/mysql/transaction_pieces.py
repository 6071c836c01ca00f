"""A transaction that is given in pieces: a table's rows are at one ts, unless a later piece changes a key of an earlier one again.

A store holds a key once per ts, so the rows of that table in such a piece get another one. The transaction has a ts for each of its pieces,
which are counted by bytes of the log, and a table's rows choose among them by that table's rows alone: so neither how the log arrives nor
which tables are captured plays a part. Runs in the log service; one thread.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.jit import U64
from penstock.model.batch import KEY, ChangeBatch
from penstock.model.rows.bag_key import CONTENT_BYTES
from penstock.source.mysql.log_line import LogLine


class TransactionPieces:
    """The ts of the pieces of one transaction, and the keys that each table has changed at its own. Not thread safe."""

    def __init__(self, line: LogLine) -> None:
        self._line = line
        self._first_ts = 0
        self._first_piece = 0
        self._ts: dict[int, int] = {}
        self._keys: dict[int, list[U64]] = {}
        self._table_ids: set[int] = set()

    @property
    def table_ids(self) -> set[int]:
        """Return whose rows were given of this transaction."""
        return set(self._table_ids)

    def ensure_begun(self, time_ms: int) -> None:
        """Give the transaction, which committed at a time, its ts unless it has it."""
        if not self._first_ts:
            self._begin(self._line.next_ts(time_ms), 0)

    def go_on(self, time_ms: int, piece: int) -> None:
        """Give what comes, from a piece on, further ts."""
        self._begin(self._line.further_ts(time_ms), piece)

    def raise_line(self, time_ms: int, piece: int) -> None:
        """Let what comes in the log be above everything of the transaction up to a piece."""
        self.ensure_begun(time_ms)
        self._line.raise_to(self.ts_of(piece))

    def end(self, last_piece: int) -> int:
        """Forget the transaction; return the ts of its end, above which the log goes on."""
        ts = self.ts_of(last_piece)
        self._line.raise_to(ts)
        self._begin(0, 0)
        self._table_ids.clear()
        return ts

    def _begin(self, ts: int, piece: int) -> None:
        self._first_ts, self._first_piece = ts, piece
        self._ts.clear()
        self._keys.clear()

    def ts_of(self, piece: int) -> int:
        """Return the ts that is kept for a piece; the highest of the transaction is that of its last one."""
        return self._first_ts + piece - self._first_piece

    def separated(self, changes: list[ChangeBatch], piece: int, counted: Callable[[ChangeBatch], bool]) -> list[ChangeBatch]:
        """Return a piece, each table's rows at the piece's own ts where they change a key that this table changed at the ts before.

        ``counted`` tells changes to a bag: which copy of a row changed cannot be told, so any two changes to one content are apart.
        """
        hashes: dict[int, list[U64]] = {}
        for change in changes:
            keys = change.records.column(KEY)
            named = pc.binary_slice(keys, 0, CONTENT_BYTES) if counted(change) else keys
            hashes.setdefault(change.header.table_id, []).append(pl.Series(named).hash().to_numpy())
        for table, found in hashes.items():
            before = self._keys.setdefault(table, [])
            if before and bool(np.isin(np.concatenate(found), np.concatenate(before)).any()):
                self._ts[table] = self.ts_of(piece)
                before.clear()
            before.extend(found)
        self._table_ids.update(hashes)
        return [at_ts(change, self._ts.get(change.header.table_id, self._first_ts)) for change in changes]


def at_ts(change: ChangeBatch, ts: int) -> ChangeBatch:
    """Return a change under another ts."""
    if change.header.min_ts == change.header.max_ts == ts:
        return change
    column = pa.array(np.full(change.header.rows, ts, dtype=np.uint64))
    records = change.records.set_column(0, change.records.schema.field(0), column)
    return ChangeBatch(msgspec.structs.replace(change.header, min_ts=ts, max_ts=ts), records)
