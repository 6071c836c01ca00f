"""One dispatcher's way from events to cut files.

Rows are regrouped in chunks, encoded chunk by chunk, and cut where the content says so: after the chunk that fills a file, at another
table version, at another commit date, and where the dispatcher is drained (DDL or end of window). Invariant: the sequence of rows alone
decides every byte and every cut. Runs on executors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise

import pyarrow as pa

from penstock.format.data_file import DataFile
from penstock.format.file_rows import FileRows
from penstock.model.batch import commit_ts_array
from penstock.model.errors import InvariantError
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.sink.contract import DispatcherWork, DmlEvent
from penstock.sink.storage.chunks import Chunk, Rechunker
from penstock.sink.storage.file_buffer import BufferPool, FileBuffer
from penstock.sink.storage.publisher import Cut
from penstock.sink.storage.settings import Atomicity, StorageSinkSettings

CHUNK_BYTES_MAX = 4 << 20
CHUNK_BYTES_MIN = 512


class DispatcherWriter:
    """Encodes and cuts; hands finished files to ``submit``, which may block while too many wait. One thread calls it."""

    def __init__(self, work: DispatcherWork, settings: StorageSinkSettings, buffers: BufferPool, submit: Callable[[Cut], None]) -> None:
        self._work = work
        self._buffers = buffers
        self._settings = settings
        self._layout = settings.layout
        self._submit = submit
        # A snapshot's rows share the window's end as their ts without being one transaction.
        whole = settings.transaction_atomicity is Atomicity.TABLE and work.from_ts != TS_ZERO
        bytes_max = min(CHUNK_BYTES_MAX, max(CHUNK_BYTES_MIN, settings.file_size // 8))
        self._rechunker = Rechunker(bytes_max, whole_transactions=whole)
        self._table: TableSchema | None = None
        self._rows_of: TableSchema | None = None
        self._rows: FileRows | None = None
        self._date = ""
        self._format = settings.data_format
        self._content: FileBuffer | None = None
        self._file: DataFile | None = None
        self._first_ts = 0
        self._rows_in = 0
        self._rows_out = 0
        self._last_ts = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def rows(self) -> int:
        """Return the rows taken in so far."""
        return self._rows_in

    @property
    def max_commit_ts(self) -> int:
        """Return the largest commit ts so far; 0 without rows."""
        return self._last_ts

    def add(self, event: DmlEvent) -> None:
        """Take an event's rows in."""
        ts = commit_ts_array(event.records)
        if len(ts):
            if int(ts[0]) < self._last_ts or bool((ts[1:] < ts[:-1]).any()):
                raise InvariantError(f"dispatcher {event.dispatcher}: rows are not in commit order")
            self._rows_in += len(ts)
            self._last_ts = int(ts[-1])
            self._take(event)
        if event.post_flush is not None:
            self._waiting.append((self._rows_in, event.post_flush))

    def _take(self, event: DmlEvent) -> None:
        if self._rows is None or self._rows_of is None or self._rows_of.version != event.table.version:
            self._finish_rows()
            split = not self._settings.output_raw_change_event
            self._rows, self._rows_of = FileRows(event.table, self._format, split_key_updates=split), event.table
        self._place(event.table, self._rows.add(event.records))

    def _finish_rows(self) -> None:
        """Place what the preparation of rows holds back."""
        held = None if self._rows is None else self._rows.finish()
        if held is not None and self._rows_of is not None:
            self._place(self._rows_of, held)

    def _place(self, table: TableSchema, records: pa.RecordBatch) -> None:
        ts = commit_ts_array(records)
        if len(ts):
            starts = [0, *self._layout.date_cuts(ts), len(ts)]
            for start, end in pairwise(starts):
                self._enter(table, int(ts[start]))
                for chunk in self._rechunker.add(records.slice(start, end - start)):
                    self._append(chunk)

    def drain(self) -> None:
        """Cut what is there, so that everything taken in is submitted."""
        self._finish_rows()
        self._end_file()

    def _end_file(self) -> None:
        for chunk in self._rechunker.flush():
            self._append(chunk)
        self._cut()

    def flushed_callbacks(self) -> tuple[Callable[[], None], ...]:
        """Return the callbacks of events whose rows were all cut; each is returned once."""
        done = []
        while self._waiting and self._waiting[0][0] <= self._rows_out:
            done.append(self._waiting.popleft()[1])
        return tuple(done)

    def _enter(self, table: TableSchema, commit_ts: int) -> None:
        date = self._layout.date_text(commit_ts)
        if self._table is not None and (table.version != self._table.version or date != self._date):
            self._end_file()
        self._table, self._date = table, date

    def _append(self, chunk: Chunk) -> None:
        if self._table is None:
            raise InvariantError("a chunk without a table")
        if self._file is None:
            self._content = self._buffers.take()
            self._file = DataFile(self._format, self._table, self._content)
            self._first_ts = int(commit_ts_array(chunk.records)[0])
        self._file.add(chunk.records)
        if chunk.may_cut and self._file.nbytes >= self._settings.file_size:
            self._cut()

    def _cut(self) -> None:
        if self._table is None or self._content is None or self._file is None:
            return
        self._rows_out += self._file.rows
        cut = Cut(self._table, self._first_ts, self._content, self._file, self.flushed_callbacks())
        self._content = self._file = None
        self._submit(cut)
