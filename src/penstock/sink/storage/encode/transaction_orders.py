"""Numbers the events of a window inside their transactions: which of all, and which of its table.

The order inside a transaction is that of the dispatchers as they are delivered, then that of the rows; in which order the source's
statements wrote them is not kept. So the dispatchers of a window go through one task, one after the other, and each adds what it counted
when it ends. Invariants: numbers begin at 1 and have no gap; they depend on rows and the order of dispatchers alone. Nothing here looks at
a row from Python. One thread, the caller's of the sink. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.format.file_rows import PreparedRows
from penstock.format.json.debezium import COLLECTION_ORDER, TOTAL_ORDER
from penstock.format.transaction_runs import run_starts
from penstock.kernels.jit import I64, U64
from penstock.model.batch import commit_ts_array
from penstock.model.table import TableSchema

Numbered = Iterator[tuple[TableSchema, pa.RecordBatch]]


@dataclass(slots=True)
class _Counts:
    """How many events transactions have so far."""

    ts: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    events: I64 = field(default_factory=lambda: np.empty(0, np.int64))

    def of(self, ts: U64) -> I64:
        """Return the counts of transactions, 0 where nothing is known."""
        if not len(self.ts):
            return np.zeros(len(ts), np.int64)
        at = np.minimum(np.searchsorted(self.ts, ts), len(self.ts) - 1)
        return np.where(self.ts[at] == ts, self.events[at], 0)

    def add(self, ts: U64, events: I64) -> None:
        """Add counts; a ts may stand there twice."""
        self.ts, inverse = np.unique(np.concatenate([self.ts, ts]), return_inverse=True)
        self.events = np.bincount(inverse, np.concatenate([self.events, events]), len(self.ts)).astype(np.int64)


class TransactionOrders:
    """What the dispatchers of a task counted that have ended. Not thread safe."""

    def __init__(self) -> None:
        self.all = _Counts()
        self.of_tables: dict[tuple[str, str], _Counts] = {}

    def of_table(self, table: TableSchema) -> _Counts:
        """Return the counts of a table by its name, over all its dispatchers."""
        return self.of_tables.setdefault((table.schema, table.table), _Counts())


class NumberedRows:
    """Prepares and numbers the rows of one dispatcher, for which rows of the same transactions came before. Not thread safe."""

    def __init__(self, orders: TransactionOrders, prepared: PreparedRows) -> None:
        self._orders = orders
        self._prepared = prepared
        self._table: TableSchema | None = None
        self._runs: list[tuple[U64, I64]] = []
        self._last = (0, 0)

    @property
    def holding(self) -> bool:
        """Return whether rows are held back until their transaction is whole."""
        return self._prepared.holding

    def add(self, table: TableSchema, records: pa.RecordBatch) -> Numbered:
        """Take rows in; yield those that are ready, with their numbers."""
        for version, rows in self._prepared.add(table, records):
            yield version, self._numbered(version, rows)

    def finish(self) -> Numbered:
        """Yield what is held back; never inside a transaction."""
        for version, rows in self._prepared.finish():
            yield version, self._numbered(version, rows)

    def end(self) -> None:
        """Count what was numbered for the dispatchers that follow."""
        if self._table is not None and self._runs:
            ts, events = (np.concatenate(part) for part in zip(*self._runs, strict=True))
            self._orders.all.add(ts, events)
            self._orders.of_table(self._table).add(ts, events)
        self._runs, self._last = [], (0, 0)

    def _numbered(self, table: TableSchema, records: pa.RecordBatch) -> pa.RecordBatch:
        if self._table is None or (self._table.schema, self._table.table) != (table.schema, table.table):
            self.end()
        self._table = table
        ts = commit_ts_array(records)
        starts = run_starts(ts) if len(ts) else np.empty(0, np.int64)
        found, events = ts[starts], np.diff(starts, append=len(ts))
        # A transaction that the rows before began goes on here.
        begun = np.zeros(len(found), np.int64)
        if len(found) and int(found[0]) == self._last[0]:
            begun[0] = self._last[1]
        place = np.arange(len(ts)) - np.repeat(starts - begun, events) + 1
        everything, own = (np.repeat(counts.of(found), events) + place for counts in (self._orders.all, self._orders.of_table(table)))
        if len(found):
            self._runs.append((found, events))
            self._last = int(found[-1]), int(events[-1] + begun[-1])
        return records.append_column(TOTAL_ORDER, pa.array(everything)).append_column(COLLECTION_ORDER, pa.array(own))
