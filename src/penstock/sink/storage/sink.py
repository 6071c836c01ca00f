"""The storage sink inside one Spark task: the facade over encoder shards, spool and writers.

The way of an event: ``add_dml_event`` queues it in its dispatcher's shard; an encoder thread makes chunks of its rows and puts them into
the spool, then *enqueued* fires as soon as the watermarks allow; cut files go through the dispatcher's channel to the writers, and
*flushed* fires when data and index are in the target. Drain markers take the same way.
Invariants: everything of one dispatcher goes through one channel in order; a repeated attempt of the same window writes the same names
and bytes; after a failure neither acknowledgement fires, nothing more is flushed, and every call raises. Callbacks fire in the sink's
threads. A dispatcher's state goes when it is closed. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from penstock.format.column_selection import select_columns
from penstock.format.file_rows import PreparedRows
from penstock.model.batch import commit_ts_array
from penstock.model.clock import Clock, SystemClock
from penstock.model.ddl import DdlEvent
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.metrics.names import DDL_DRAIN_DURATION, DDL_WAIT_ENCODE, DDL_WAIT_REMOTE
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent, TaskReport
from penstock.sink.failure_latch import FailureLatch
from penstock.sink.storage.cut_records import CutRecords
from penstock.sink.storage.encode.dispatcher_encoder import DispatcherEncoder, Engine
from penstock.sink.storage.encode.encoder_shards import EncoderShards
from penstock.sink.storage.encode.flush_policy import FlushReason, IntervalFlush
from penstock.sink.storage.encode.transaction_orders import Numbered, NumberedRows, TransactionOrders
from penstock.sink.storage.maintainer import write_ddl_files
from penstock.sink.storage.metrics import SinkCounters
from penstock.sink.storage.publisher import FilePublisher, SchemaVersions
from penstock.sink.storage.spool.file_buffer import BufferPool
from penstock.sink.storage.spool.segment import SpoolDisk, SpoolSegments
from penstock.sink.storage.spool.spool import DrainMarkerItem, Spool, SpoolSettings
from penstock.sink.storage.writer import StorageWriters, WriterChannel, WriterSettings
from penstock.target.settings import StorageSinkSettings
from penstock.target.storage import ObjectTarget

_KEPT_FILES = 2
_FILE_SLACK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What tunes the engine and is not the user's business."""

    encoder_threads: int = 4
    spool: SpoolSettings | None = None
    writers: WriterSettings | None = None


@dataclass(slots=True)
class _Dispatcher:
    """The state of an open dispatcher."""

    work: DispatcherWork
    channel: WriterChannel
    encoder: DispatcherEncoder | None = None
    rows: int = 0
    last_ts: int = 0
    end: DrainMarkerItem | None = None
    numbered: NumberedRows | None = None
    """Where each event tells its place in its transaction."""
    held: list[Callable[[], None]] = field(default_factory=list)
    """What is told when events are durable whose rows are held back."""

    @property
    def publisher(self) -> FilePublisher:
        return self.channel.publisher


class StorageSink:
    """Writes the windows of dispatchers as files; implements ``penstock.sink.contract.Sink``."""

    def __init__(
        self,
        target: ObjectTarget,
        settings: StorageSinkSettings,
        clock: Clock | None = None,
        tuning: EngineSettings | None = None,
        disk: SpoolDisk | None = None,
    ) -> None:
        tuning = tuning or EngineSettings()
        self._target = target
        self._settings = settings
        self._clock = clock or SystemClock()
        self._counters = SinkCounters()
        self._latch = FailureLatch()
        self._versions = SchemaVersions(target, output_column_id=settings.output_column_id)
        self._records = CutRecords(target)
        buffers = BufferPool(_KEPT_FILES * (settings.file_size + _FILE_SLACK_BYTES))
        segments = SpoolSegments(Path(settings.spool_dir) if settings.spool_dir else None, disk=disk)
        spool_settings = tuning.spool or SpoolSettings(quota_bytes=settings.spool_size)
        limits = tuning.writers or WriterSettings(flush_concurrency=settings.flush_concurrency)
        # What is under way is in memory: were it all of the tier, the encoders would stand still with it.
        limits = replace(limits, under_way_bytes_max=min(limits.under_way_bytes_max, spool_settings.memory_bytes_max // 2))
        spool = Spool(spool_settings, self._latch, buffers, self._counters, segments)
        writers = StorageWriters(settings, limits, spool, self._latch, buffers, self._counters, self._clock)
        interval = IntervalFlush(settings.flush_interval_ms / 1000, self._clock, self._latch, self._cut_by_clock)
        self.engine = Engine(settings, buffers, spool, writers, interval)
        self._shards = EncoderShards(tuning.encoder_threads, self._latch)
        self._dispatchers: dict[DispatcherId, _Dispatcher] = {}
        self._tables: dict[TableSchema, TableSchema] = {}
        self._orders = TransactionOrders() if settings.numbers_events else None
        self._closed = False

    def open_dispatcher(self, work: DispatcherWork) -> None:
        """Begin a dispatcher's window."""
        self._latch.check()
        if work.dispatcher in self._dispatchers:
            raise InvariantError(f"dispatcher {work.dispatcher} is open already")
        publisher = FilePublisher(work, self._settings, self._target, self._versions, self._records)
        self._dispatchers[work.dispatcher] = state = _Dispatcher(work, WriterChannel(publisher))
        if self._orders is not None and work.from_ts != TS_ZERO:
            rows = PreparedRows(self._settings.data_format, split_key_updates=not self._settings.output_raw_change_event)
            state.numbered = NumberedRows(self._orders, rows)
        self._shards.open(work.dispatcher)

    def add_dml_event(self, event: DmlEvent) -> None:
        """Queue an event for its encoder."""
        self._latch.check()
        dispatcher = self._dispatcher(event.dispatcher)
        if dispatcher.end is not None:
            raise InvariantError(f"dispatcher {event.dispatcher} is sealed")
        ts = commit_ts_array(event.records)
        if len(ts):
            if int(ts[0]) < dispatcher.last_ts or bool((ts[1:] < ts[:-1]).any()):
                raise InvariantError(f"dispatcher {event.dispatcher}: rows are not in commit order")
            dispatcher.rows += len(ts)
            dispatcher.last_ts = int(ts[-1])
        if dispatcher.numbered is None:
            self._submit(dispatcher, event)
        else:
            self._number(dispatcher, dispatcher.numbered.add(self._selected(event.table), event.records), event)

    def pass_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> None:
        """Drain everything that the dispatcher was given before the DDL."""
        start_s = self._clock.monotonic_s()
        state = self._dispatcher(dispatcher)
        if state.numbered is not None:
            self._number(state, state.numbered.finish())
        marker = self._inject(state, FlushReason.DDL, DrainMarkerItem())
        self.engine.writers.wait_for(marker)
        end_s = self._clock.monotonic_s()
        self._counters.ddl_dispatchers += 1
        self._counters.observe(DDL_DRAIN_DURATION.key, end_s - start_s)
        self._counters.observe(DDL_WAIT_ENCODE.key, marker.encoded_s - start_s)
        self._counters.observe(DDL_WAIT_REMOTE.key, end_s - marker.encoded_s)

    def write_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> Sequence[str]:
        """Write the schema files of a DDL that this dispatcher alone is involved in."""
        self._latch.check()
        if self._dispatcher(dispatcher).last_ts > event.commit_ts:
            raise InvariantError(f"dispatcher {dispatcher} has rows beyond the DDL at {event.commit_ts}")
        return write_ddl_files(self._target, self._settings, event)

    def seal_dispatcher(self, dispatcher: DispatcherId) -> None:
        """Flush the rest of the window while other dispatchers go on."""
        state = self._dispatcher(dispatcher)
        if state.end is None:
            if state.numbered is not None:
                self._number(state, state.numbered.finish())
                state.numbered.end()
            describe = (lambda: self._describe(state)) if state.work.from_ts == TS_ZERO else None
            state.end = self._inject(state, FlushReason.CLOSE, DrainMarkerItem(action=describe))

    def close_dispatcher(self, dispatcher: DispatcherId) -> DispatcherResult:
        """Flush the rest of the window and return what was done."""
        self.seal_dispatcher(dispatcher)
        state = self._dispatcher(dispatcher)
        assert state.end is not None
        self.engine.writers.wait_for(state.end)
        self._shards.close(dispatcher)
        del self._dispatchers[dispatcher]
        files = state.publisher.files
        return DispatcherResult(
            dispatcher=dispatcher,
            position=state.publisher.position(),
            rows=state.rows,
            nbytes=sum(f.nbytes for f in files),
            files=tuple(files),
        )

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Have this called once the sink has failed."""
        self._latch.listen(callback)

    def report(self) -> TaskReport:
        """Return what was counted so far."""
        return self._counters.report()

    def close(self) -> None:
        """End all threads; what was not flushed is dropped and comes again with the next attempt."""
        if not self._closed:
            self._closed = True
            self._latch.trip(PenstockError("CANCELLED", "the sink is closed"))
            self.engine.interval.join()
            self._shards.join()
            self.engine.writers.join()
            self.engine.spool.close()
            # The sink's parts refer to each other: their memory must not wait for the garbage collector.
            self.engine.buffers.close()
            self._dispatchers.clear()

    def _inject(self, state: _Dispatcher, reason: FlushReason, marker: DrainMarkerItem) -> DrainMarkerItem:
        """Send a marker through the dispatcher's channel."""

        def drain() -> None:
            marker.callbacks = self._encoder_of(state).drain(reason)
            marker.encoded_s = self._clock.monotonic_s()
            self.engine.writers.append(state.channel, marker)

        self._shards.submit(state.work.dispatcher, drain)
        return marker

    def _number(self, state: _Dispatcher, parts: Numbered, event: DmlEvent | None = None) -> None:
        """Hand on the rows that are ready of an event, or of what was held back; what is told of an event goes with its last row."""
        ready = list(parts)
        if event is not None and event.post_flush is not None:
            state.held.append(event.post_flush)
        told, wake = state.held, None if event is None else event.post_enqueue
        if state.numbered is None or state.numbered.holding:
            told = []
        else:
            state.held = []
        for at, (table, records) in enumerate(ready):
            last = at + 1 == len(ready)
            flushed = partial(_tell_all, told) if last and told else None
            self._submit(state, DmlEvent(state.work.dispatcher, table, records, wake if last else None, flushed))

    def _submit(self, state: _Dispatcher, event: DmlEvent) -> None:
        since_s = self._clock.monotonic_s()
        self._shards.submit(event.dispatcher, lambda: self._encode(state, event, since_s))

    def _encode(self, state: _Dispatcher, event: DmlEvent, since_s: float) -> None:
        table = self._selected(event.table)
        if table is not event.table:
            event = DmlEvent(event.dispatcher, table, event.records, event.post_enqueue, event.post_flush)
        self._encoder_of(state).add(event, since_s)

    def _encoder_of(self, state: _Dispatcher) -> DispatcherEncoder:
        """Return the dispatcher's encoder; made in its shard, because the recorded cuts are read from the target."""
        if state.encoder is None:
            cuts = self._records.of_window(state.work)
            state.publisher.known_cuts = list(cuts)
            state.encoder = DispatcherEncoder(state.work, self.engine, state.channel, cuts, prepared=state.numbered is not None)
        return state.encoder

    def _cut_by_clock(self, dispatcher: DispatcherId) -> None:
        state = self._dispatchers.get(dispatcher)
        if state is not None:
            self._shards.submit(dispatcher, lambda: self._encoder_of(state).cut_by_clock(self._clock.monotonic_s()))

    def _describe(self, state: _Dispatcher) -> None:
        # A snapshot tells of every table, the empty ones too.
        state.publisher.describe(self._selected(state.work.table))

    def _selected(self, table: TableSchema) -> TableSchema:
        """Return the table version with the columns that reach the files, the same object each time."""
        selected = self._tables.get(table)
        if selected is None:
            selected = self._tables[table] = select_columns(table, self._settings.column_selectors)
        return selected

    def _dispatcher(self, dispatcher: DispatcherId) -> _Dispatcher:
        state = self._dispatchers.get(dispatcher)
        if state is None:
            raise InvariantError(f"dispatcher {dispatcher} is not open")
        return state


def _tell_all(told: Sequence[Callable[[], None]]) -> None:
    for tell in told:
        tell()
