"""One dispatcher's way from events to encoded, cut files in the spool.

Rows are prepared, regrouped in chunks, and encoded into the file that is being filled; ``CutPolicy`` says where that ends. Invariant: the
rows and the recorded cuts alone decide every byte and every cut. One thread at a time, in the dispatcher's shard. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa

from penstock.format.file_rows import PreparedRows, ReadyRows
from penstock.model.batch import commit_ts_array
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.storage.cut_records import CutRecord
from penstock.sink.storage.encode.chunks import Chunk, Rechunker
from penstock.sink.storage.encode.cut_policy import Answer, CutPolicy
from penstock.sink.storage.encode.file_filler import FileFiller, FlushTask
from penstock.sink.storage.encode.flush_callbacks import Callbacks, FlushCallbacks
from penstock.sink.storage.encode.flush_policy import FlushReason, IntervalFlush
from penstock.sink.storage.spool.file_buffer import BufferPool
from penstock.sink.storage.spool.spool import DrainMarkerItem, Spool
from penstock.sink.storage.writer import StorageWriters, WriterChannel
from penstock.target.settings import Atomicity, StorageSinkSettings

CHUNK_BYTES_MAX = 4 << 20
CHUNK_BYTES_MIN = 512


@dataclass(frozen=True, slots=True)
class Engine:
    """What the dispatchers of a task share."""

    settings: StorageSinkSettings
    buffers: BufferPool
    spool: Spool
    writers: StorageWriters
    interval: IntervalFlush[DispatcherId]


class DispatcherEncoder:
    """Encodes and cuts. One thread at a time calls it."""

    def __init__(
        self, work: DispatcherWork, engine: Engine, channel: WriterChannel, cuts: Sequence[CutRecord] = (), *, prepared: bool = False
    ) -> None:
        """Without an event so far. ``prepared`` says that rows come as files take them."""
        settings = engine.settings
        # A snapshot's rows share the window's end as their ts without being one transaction.
        atomicity = Atomicity.NONE if work.from_ts == TS_ZERO else settings.transaction_atomicity
        chunk_bytes = min(CHUNK_BYTES_MAX, max(CHUNK_BYTES_MIN, settings.file_size // 8))
        self._dispatcher = work.dispatcher
        self._engine = engine
        self._channel = channel
        self._layout = settings.layout
        self._policy = CutPolicy(str(work.dispatcher), settings.flush_interval_ms / 1000, settings.file_size, atomicity, cuts)
        self._rows: PreparedRows | ReadyRows = ReadyRows()
        if not prepared:
            self._rows = PreparedRows(settings.data_format, split_key_updates=not settings.output_raw_change_event)
        self._rechunker = Rechunker(chunk_bytes, whole_transactions=self._policy.keeps_transactions)
        indexed = atomicity is Atomicity.TRANSACTION
        self._file = FileFiller(work.dispatcher, settings, engine.buffers, engine.spool, of_transactions=indexed)
        self._callbacks = FlushCallbacks()
        self._finished: FlushTask | None = None

    def add(self, event: DmlEvent, since_s: float) -> None:
        """Take an event's rows in, which came at this time."""
        records = event.records
        while records.num_rows:
            ts = commit_ts_array(records)
            count = self._policy.rows_until_cut(ts)
            if count == 0:
                self._cut_by_clock()
                continue
            self._policy.take(ts[:count])
            self._place(self._rows.add(event.table, records.slice(0, count)))
            records = records.slice(count)
            while self._policy.at_recorded_cut():
                self._cut_by_clock()
        if event.post_flush is not None:
            self._callbacks.add(event.post_flush)
            self._settle()
        if event.post_enqueue is not None:
            # Before the event's last file can be written, so that its wake is not behind its flush.
            self._engine.spool.wakes.offer(event.post_enqueue)
        self._emit()
        if self._callbacks.rows_wait:
            self._policy.wait(since_s)
            self._hold(self._policy.since_s)
        elif done := self._callbacks.take():
            # Events without rows are in no file; they are durable as soon as all before them is.
            self._engine.writers.append(self._channel, DrainMarkerItem(callbacks=done))

    def cut_by_clock(self, now_s: float) -> None:
        """Cut if the oldest row has waited for the flush interval; where transactions stay whole, as soon as one ends."""
        answer = self._policy.ask(now_s)
        if answer is Answer.LATER:
            self._hold(self._policy.since_s)
        elif answer is Answer.MORE_ROWS:
            self._hold(now_s)
            # While files are under way the level of the spool falls by itself.
            if not self._engine.writers.busy:
                self._engine.spool.wakes.urge()
        elif answer is Answer.CUT:
            self._cut_by_clock()
            self._emit()

    def drain(self, reason: FlushReason) -> Callbacks:
        """Cut what is there; return the callbacks of events that are in no file, to be fired behind all files."""
        self._place(self._rows.finish())
        self._settle()
        self._end_file(reason)
        self._emit()
        return self._callbacks.take()

    def _hold(self, since_s: float) -> None:
        self._engine.interval.touch(self._dispatcher, since_s)

    def _settle(self) -> None:
        if not self._rows.holding:
            self._callbacks.settle()

    def _place(self, prepared: Iterable[tuple[TableSchema, pa.RecordBatch]]) -> None:
        for table, records in prepared:
            ts = commit_ts_array(records)
            self._callbacks.place(len(ts))
            if len(ts):
                for start, end in pairwise([0, *self._layout.date_cuts(ts), len(ts)]):
                    self._enter(table, int(ts[start]))
                    for chunk in self._rechunker.add(records.slice(start, end - start)):
                        self._append(chunk)

    def _enter(self, table: TableSchema, commit_ts: int) -> None:
        reason = self._policy.enter(table.version, self._layout.date_text(commit_ts))
        if reason is not None:
            self._end_file(reason)
        self._file.enter(table)

    def _append(self, chunk: Chunk, cut: CutRecord | None = None) -> bool:
        """Encode a chunk; return whether the file was cut behind it, with the record if there is one."""
        if self._file.empty:
            self._emit()
        filled = self._policy.fills(self._file.append(chunk.records), may_cut=chunk.may_cut)
        if filled:
            self._cut(FlushReason.SIZE, cut)
        return filled

    def _cut_by_clock(self) -> None:
        if self._policy.keeps_transactions:
            # A transaction ends here: what is held back of it belongs to this file. Elsewhere it stays behind for the next one.
            self._place(self._rows.finish())
            self._settle()
        self._end_file(FlushReason.INTERVAL, self._policy.cut_by_clock())

    def _end_file(self, reason: FlushReason, cut: CutRecord | None = None) -> None:
        for chunk in self._rechunker.flush():
            # The record belongs to the first file that ends here: what the rows make of the rest follows from it.
            cut = None if self._append(chunk, cut) else cut
        self._cut(reason, cut)

    def _cut(self, reason: FlushReason, cut: CutRecord | None) -> None:
        if not self._file.empty:
            self._finished = self._file.finish(reason, self._policy.cut(), cut)
            self._callbacks.cut(self._finished.rows)
            self._engine.interval.settle(self._dispatcher)

    def _emit(self) -> None:
        """Hand a cut file over; not before the event that ended it is known, so that its callback goes with the file."""
        if self._finished is not None:
            task, self._finished = replace(self._finished, callbacks=self._callbacks.take()), None
            self._engine.writers.append(self._channel, task)
