"""The file that a dispatcher fills: encoded chunks in items of the spool, until it is cut.

Invariants: a file begins with its header; an item grows as long as the spool leaves it in memory, then the file goes on in a new one. Not
thread safe. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from penstock.format.data_file import RowEncoder, file_header
from penstock.format.transaction_runs import TransactionRuns
from penstock.model.batch import commit_ts_array
from penstock.model.errors import InvariantError
from penstock.model.table import TableSchema
from penstock.sink.contract import DispatcherId
from penstock.sink.storage.cut_records import CutRecord
from penstock.sink.storage.encode.flush_policy import FlushReason
from penstock.sink.storage.spool.file_buffer import BufferPool, FileBuffer
from penstock.sink.storage.spool.spool import DataItem, Spool
from penstock.target.settings import StorageSinkSettings

_FIRST_BYTES = 16 << 10
_SLACK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class FlushTask:
    """A finished file on its way to the target. ``callbacks`` fire once data and index are there."""

    table: TableSchema
    first_ts: int
    items: tuple[DataItem, ...]
    runs: tuple[int, ...]
    """The lengths of the encoded chunks."""
    rows: int
    reason: FlushReason
    file: int
    """Which file of the window it is, from 0."""
    cut: CutRecord | None = None
    """Where the clock cut it."""
    callbacks: tuple[Callable[[], None], ...] = ()
    transactions: bytes = b""
    """The transactions of its rows, packed, where an index names them."""

    @property
    def nbytes(self) -> int:
        """Return the bytes that it has in the spool."""
        return sum(item.nbytes for item in self.items)


class FileFiller:
    """Fills one file after the other."""

    def __init__(
        self, dispatcher: DispatcherId, settings: StorageSinkSettings, buffers: BufferPool, spool: Spool, *, of_transactions: bool = False
    ) -> None:
        """``of_transactions`` says that an index names the transactions of the rows."""
        self._dispatcher = dispatcher
        self._format = settings.data_format
        self._buffers = buffers
        self._spool = spool
        self._expected_bytes = _FIRST_BYTES
        self._whole_bytes = settings.file_size + min(settings.file_size, _SLACK_BYTES)
        self._encoding: tuple[TableSchema, RowEncoder] | None = None
        self._items: list[DataItem] = []
        self._runs: list[int] = []
        self._rows = 0
        self._first_ts = 0
        self._transactions = TransactionRuns() if of_transactions else None

    @property
    def empty(self) -> bool:
        """Return whether the next chunk begins a file."""
        return not self._items

    def enter(self, table: TableSchema) -> None:
        """Say which table version the rows that come have; another one begins another file."""
        if self._encoding is None or self._encoding[0] is not table:
            self._encoding = table, RowEncoder(self._format, table)

    def append(self, records: pa.RecordBatch) -> int:
        """Encode rows into the file; return their weight."""
        if self._encoding is None:
            raise InvariantError("rows without a table")
        table, encoder = self._encoding
        ts = commit_ts_array(records)
        if self.empty:
            self._first_ts = int(ts[0])
        if self._transactions is not None:
            self._transactions.add(ts)
        item, content = self._writable(table)
        before = content.tell()
        weight = encoder.encode(records, content)
        self._runs.append(content.tell() - before)
        self._rows += records.num_rows
        self._spool.put(item)
        return weight

    def finish(self, reason: FlushReason, file: int, cut: CutRecord | None) -> FlushTask:
        """Return what was filled as a file of this number; the next chunk begins anew."""
        if self._encoding is None:
            raise InvariantError("a file without a table")
        runs = b"" if self._transactions is None else self._transactions.take()
        items, chunks = tuple(self._items), tuple(self._runs)
        task = FlushTask(self._encoding[0], self._first_ts, items, chunks, self._rows, reason, file, cut, transactions=runs)
        self._items, self._runs, self._rows = [], [], 0
        if reason is FlushReason.SIZE:
            # Whoever filled one file is likely to fill the next.
            self._expected_bytes = self._whole_bytes
        return task

    def _writable(self, table: TableSchema) -> tuple[DataItem, FileBuffer]:
        """Return the file's last item and its buffer, or those of a new one."""
        if self._items:
            content = self._spool.claim(self._items[-1])
            if content is not None:
                return self._items[-1], content
        content = self._buffers.take(self._expected_bytes, self._whole_bytes)
        if self.empty:
            content.write(file_header(self._format, table))
        self._items.append(DataItem(self._dispatcher, content))
        return self._items[-1], content
