"""One dispatcher's way from events to encoded, cut files in the spool.

Rows are regrouped in chunks, encoded chunk by chunk, and cut where the content says so: after the chunk that fills a file, at another
table version, at another commit date, and where the dispatcher is drained (DDL or end of window). In a window that lasts longer than
the flush interval the clock cuts as well; that row is recorded before the file is published, and a replay cuts there too. Invariant: the
rows and the recorded cuts alone decide every byte and every cut. One thread at a time, in the dispatcher's shard. Runs on executors.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.format.data_file import RowEncoder, file_header
from penstock.format.file_rows import FileRows
from penstock.model.batch import commit_ts_array
from penstock.model.errors import InvariantError
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.sink.contract import DispatcherWork, DmlEvent
from penstock.sink.storage.cut_records import CutRecord
from penstock.sink.storage.encode.chunks import Chunk, Rechunker
from penstock.sink.storage.encode.flush_policy import FlushReason
from penstock.sink.storage.spool.file_buffer import BufferPool, FileBuffer
from penstock.sink.storage.spool.spool import DataItem
from penstock.target.settings import Atomicity, StorageSinkSettings

CHUNK_BYTES_MAX = 4 << 20
CHUNK_BYTES_MIN = 512
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

    @property
    def nbytes(self) -> int:
        """Return the bytes that it has in the spool."""
        return sum(item.nbytes for item in self.items)


class FileOutput(Protocol):
    """Where a dispatcher's items and files go, in order."""

    def claim(self, item: DataItem) -> FileBuffer | None:
        """Return an item's buffer for another chunk, or None where a new item must begin."""

    def put(self, item: DataItem) -> None:
        """Take over what was appended to an item."""

    def flush(self, task: FlushTask) -> None:
        """Take a finished file over."""

    def hold(self, since_s: float) -> None:
        """Say that rows wait for their file to be cut, the oldest since then."""

    def settle(self) -> None:
        """Say that no row waits."""

    def enqueued(self, wake: Callable[[], None]) -> None:
        """Say that an event is in the spool; its wake fires as soon as the watermarks allow."""

    def urge(self) -> None:
        """Ask for more events, whatever waits in the spool."""

    def after_files(self, callbacks: tuple[Callable[[], None], ...]) -> None:
        """Have these called once all files so far are in the target."""


class DispatcherEncoder:
    """Encodes and cuts. One thread at a time calls it."""

    def __init__(
        self, work: DispatcherWork, settings: StorageSinkSettings, buffers: BufferPool, output: FileOutput, cuts: Sequence[CutRecord] = ()
    ) -> None:
        self._work = work
        self._buffers = buffers
        self._settings = settings
        self._layout = settings.layout
        self._output = output
        self._cuts = deque(sorted(cut for cut in cuts if cut.rows))
        self._by_rows = {cut.file for cut in cuts if not cut.rows}
        # A snapshot's rows share the window's end as their ts without being one transaction.
        self._whole = settings.transaction_atomicity is Atomicity.TABLE and work.from_ts != TS_ZERO
        self._chunk_bytes = min(CHUNK_BYTES_MAX, max(CHUNK_BYTES_MIN, settings.file_size // 8))
        self._rechunker = Rechunker(self._chunk_bytes, whole_transactions=self._whole)
        self._format = settings.data_format
        self._table: TableSchema | None = None
        self._rows_of: TableSchema | None = None
        self._rows: FileRows | None = None
        self._date = ""
        self._encoder: RowEncoder | None = None
        self._items: list[DataItem] = []
        self._runs: list[int] = []
        self._expected_bytes = _FIRST_BYTES
        self._whole_bytes = settings.file_size + min(settings.file_size, _SLACK_BYTES)
        self._weight = 0
        self._file_rows = 0
        self._finished: FlushTask | None = None
        self._first_ts = 0
        self._files = 0
        self._rows_in = 0
        self._rows_chunked = 0
        self._rows_cut = 0
        self._last_ts = 0
        self._cut_due = False
        self._clock_cuts = 0
        self._find_own_time = False
        self._cut_record: CutRecord | None = None
        self._since_s: float | None = None
        """When the oldest row came that is in no file."""
        self._unplaced: list[Callable[[], None]] = []
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def pending(self) -> bool:
        """Return whether rows wait for their file to be cut."""
        return self._rows_cut < self._rows_chunked

    def add(self, event: DmlEvent, since_s: float) -> None:
        """Take an event's rows in, which came at this time."""
        records = event.records
        while records.num_rows:
            part = records.slice(0, self._rows_until_cut(records))
            records = records.slice(part.num_rows)
            self._rows_in += part.num_rows
            self._last_ts = int(commit_ts_array(part)[-1])
            self._take(event.table, part)
            self._cut_if_recorded()
        if event.post_flush is not None:
            self._unplaced.append(event.post_flush)
            self._settle_callbacks()
        if event.post_enqueue is not None:
            # Before the event's last file can be written, so that its wake is not behind its flush.
            self._output.enqueued(event.post_enqueue)
        self._emit()
        if not self.pending and (done := self._flushed_callbacks()):
            # Events without rows are in no file; they are durable as soon as all before them is.
            self._output.after_files(done)
        if self.pending:
            if self._since_s is None:
                self._since_s = since_s - self._head_start_s()
            self._output.hold(self._since_s)

    def cut_by_clock(self, now_s: float) -> None:
        """Cut if the oldest row has waited for the flush interval; where transactions stay whole, as soon as one ends."""
        if self._since_s is None:
            return
        if now_s < self._since_s + self._settings.flush_interval_ms / 1000:
            # A cut by size came first; what waits now came later.
            self._output.hold(self._since_s)
        elif self._cuts or self._files in self._by_rows:
            # An earlier attempt decided where this file ends; the rows up to there must be let in, however much the spool holds.
            self._output.hold(now_s)
            self._output.urge()
        elif self._whole:
            # The transaction may go on; its next rows must be let in, or it would never end.
            self._cut_due = True
            self._output.hold(now_s)
            self._output.urge()
        else:
            self._cut_now_by_clock()
            self._emit()

    def drain(self, reason: FlushReason) -> tuple[Callable[[], None], ...]:
        """Cut what is there; return the callbacks of events that are in no file, to be fired behind all files."""
        self._finish_rows()
        self._settle_callbacks()
        self._end_file(reason)
        self._emit()
        return self._flushed_callbacks()

    def _head_start_s(self) -> float:
        """Return by how much the interval that begins now is shorter.

        Dispatchers whose rows began to wait together would be flushed together for ever; after its first cut by the clock each one finds
        a time of its own. Windows that end within an interval never come to that.
        """
        if not self._find_own_time:
            return 0.0
        self._find_own_time = False
        return self._settings.flush_interval_ms / 1000 * (zlib.crc32(str(self._work.dispatcher).encode()) % 1024) / 1024

    def _rows_until_cut(self, records: pa.RecordBatch) -> int:
        """Return how many of the rows come before the next place where the clock cut or may cut now."""
        count = int(records.num_rows)
        if self._cuts:
            count = min(count, self._cuts[0].rows - self._rows_in)
        elif self._cut_due:
            ts = commit_ts_array(records)
            ends = np.flatnonzero(np.concatenate(([ts[0] != self._last_ts], ts[1:] != ts[:-1])))
            if len(ends) and ends[0] == 0:
                self._cut_now_by_clock()
            elif len(ends):
                count = int(ends[0])
        return count

    def _cut_if_recorded(self) -> None:
        while self._cuts and self._cuts[0].rows <= self._rows_in:
            # A record of another file number is of an attempt that lost: its rows were cut elsewhere before.
            if self._cuts.popleft().file == self._files:
                self._cut_now_by_clock()

    def _cut_now_by_clock(self) -> None:
        self._find_own_time, self._clock_cuts = not self._clock_cuts, self._clock_cuts + 1
        if self._whole:
            # A transaction ends here: what is held back of it belongs to this file. Elsewhere it stays behind for the next one.
            self._finish_rows()
            self._settle_callbacks()
        self._end_file(FlushReason.INTERVAL, CutRecord(self._rows_in, self._files))

    def _take(self, table: TableSchema, records: pa.RecordBatch) -> None:
        if self._rows is None or self._rows_of is None or self._rows_of.version != table.version:
            self._finish_rows()
            split = not self._settings.output_raw_change_event
            self._rows, self._rows_of = FileRows(table, self._format, split_key_updates=split), table
        self._place(table, self._rows.add(records))

    def _finish_rows(self) -> None:
        """Place what the preparation of rows holds back; never inside a transaction."""
        held = None if self._rows is None else self._rows.finish()
        if held is not None and self._rows_of is not None:
            self._place(self._rows_of, held)

    def _place(self, table: TableSchema, records: pa.RecordBatch) -> None:
        ts = commit_ts_array(records)
        self._rows_chunked += len(ts)
        if len(ts):
            starts = [0, *self._layout.date_cuts(ts), len(ts)]
            for start, end in pairwise(starts):
                self._enter(table, int(ts[start]))
                for chunk in self._rechunker.add(records.slice(start, end - start)):
                    self._append(chunk)

    def _enter(self, table: TableSchema, commit_ts: int) -> None:
        date = self._layout.date_text(commit_ts)
        if self._table is not None:
            if table.version != self._table.version:
                self._end_file(FlushReason.DDL)
            elif date != self._date:
                self._end_file(FlushReason.DATE)
        if self._table is not table:
            self._encoder = RowEncoder(self._format, table)
        self._table, self._date = table, date

    def _append(self, chunk: Chunk) -> None:
        if self._encoder is None:
            raise InvariantError("a chunk without a table")
        if not self._items:
            self._emit()
            self._first_ts = int(commit_ts_array(chunk.records)[0])
        item, content = self._writable()
        before = content.tell()
        self._weight += self._encoder.encode(chunk.records, content)
        self._runs.append(content.tell() - before)
        self._file_rows += chunk.records.num_rows
        self._output.put(item)
        if chunk.may_cut and self._weight >= self._settings.file_size:
            # Whoever filled one file is likely to fill the next.
            self._expected_bytes = self._whole_bytes
            self._cut(FlushReason.SIZE)

    def _writable(self) -> tuple[DataItem, FileBuffer]:
        """Return the file's last item and its buffer, or those of a new one."""
        if self._items:
            content = self._output.claim(self._items[-1])
            if content is not None:
                return self._items[-1], content
        content = self._buffers.take(self._expected_bytes, self._whole_bytes)
        if not self._items and self._table is not None:
            content.write(file_header(self._format, self._table))
        self._items.append(DataItem(self._work.dispatcher, content))
        return self._items[-1], content

    def _end_file(self, reason: FlushReason, cut: CutRecord | None = None) -> None:
        # The record belongs to the first file that ends here: what the rows make of the rest follows from it.
        self._cut_record = cut
        for chunk in self._rechunker.flush():
            self._append(chunk)
        self._cut(reason)
        self._cut_record = None

    def _cut(self, reason: FlushReason) -> None:
        if self._table is None or not self._items:
            return
        self._rows_cut += self._file_rows
        items, runs, rows, file, cut = tuple(self._items), tuple(self._runs), self._file_rows, self._files, self._cut_record
        self._items, self._runs, self._weight, self._file_rows, self._cut_record = [], [], 0, 0, None
        self._since_s, self._cut_due = None, False
        self._files += 1
        self._output.settle()
        self._finished = FlushTask(self._table, self._first_ts, items, runs, rows, reason, file, cut)

    def _emit(self) -> None:
        """Hand a cut file over; not before the event that ended it is known, so that its callback goes with the file."""
        if self._finished is not None:
            task, self._finished = replace(self._finished, callbacks=self._flushed_callbacks()), None
            self._output.flush(task)

    def _settle_callbacks(self) -> None:
        """Note behind which row the events stand whose rows are all placed."""
        if self._rows is None or not self._rows.holding:
            self._waiting.extend((self._rows_chunked, callback) for callback in self._unplaced)
            self._unplaced.clear()

    def _flushed_callbacks(self) -> tuple[Callable[[], None], ...]:
        """Return the callbacks of events whose rows were all cut; each is returned once."""
        done = []
        while self._waiting and self._waiting[0][0] <= self._rows_cut:
            done.append(self._waiting.popleft()[1])
        return tuple(done)
