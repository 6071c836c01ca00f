"""The storage sink inside one Spark task: the facade over writers, publishers and the uploader.

Invariants: everything of one dispatcher goes through one channel in order; a repeated attempt of the same window writes the same names
and bytes; nothing is flushed after a failure. ``post_flush`` fires in the uploader's thread. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.format.column_selection import select_columns
from penstock.model.ddl import DdlEvent
from penstock.model.errors import InvariantError
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent, TaskReport
from penstock.sink.storage.file_buffer import BufferPool
from penstock.sink.storage.maintainer import write_ddl_files
from penstock.sink.storage.publisher import Cut, FilePublisher, SchemaVersions
from penstock.sink.storage.settings import StorageSinkSettings
from penstock.sink.storage.target import ObjectTarget
from penstock.sink.storage.uploader import Uploader
from penstock.sink.storage.writer import DispatcherWriter


@dataclass(frozen=True, slots=True)
class _Channel:
    work: DispatcherWork
    writer: DispatcherWriter
    publisher: FilePublisher


class StorageSink:
    """Writes the windows of dispatchers as files; implements ``penstock.sink.contract.Sink``."""

    def __init__(self, target: ObjectTarget, settings: StorageSinkSettings) -> None:
        self._target = target
        self._settings = settings
        self._versions = SchemaVersions(target, output_column_id=settings.output_column_id)
        self._uploader = Uploader()
        self._buffers = BufferPool(settings.file_size)
        self._channels: dict[DispatcherId, _Channel] = {}
        self._tables: dict[TableSchema, TableSchema] = {}

    def open_dispatcher(self, work: DispatcherWork) -> None:
        """Begin a dispatcher's window."""
        if work.dispatcher in self._channels:
            raise InvariantError(f"dispatcher {work.dispatcher} is open already")
        publisher = FilePublisher(work, self._settings, self._target, self._versions)

        def submit(cut: Cut) -> None:
            self._uploader.submit(lambda: self._publish(publisher, cut))

        self._channels[work.dispatcher] = _Channel(work, DispatcherWriter(work, self._settings, self._buffers, submit), publisher)

    def add_dml_event(self, event: DmlEvent) -> None:
        """Encode an event's rows; waits only while the uploader holds as many files as it may."""
        table = self._selected(event.table)
        if table is not event.table:
            event = DmlEvent(event.dispatcher, table, event.records, event.post_enqueue, event.post_flush)
        self._channel(event.dispatcher).writer.add(event)
        if event.post_enqueue is not None:
            event.post_enqueue()

    def pass_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> None:
        """Cut and flush everything that the dispatcher was given before the DDL."""
        del event  # Whatever the DDL is, all that came before it must be in the target.
        self._drain(self._channel(dispatcher))

    def write_block_event(self, dispatcher: DispatcherId, event: DdlEvent) -> Sequence[str]:
        """Write the schema files of a DDL that this dispatcher alone is involved in."""
        self._channel(dispatcher)
        return write_ddl_files(self._target, self._settings, event)

    def seal_dispatcher(self, dispatcher: DispatcherId) -> None:
        """Say that no more events come."""
        self._channel(dispatcher)

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Have this called once the sink has failed."""

    def report(self) -> TaskReport:
        """Return what was counted so far."""
        return TaskReport()

    def close_dispatcher(self, dispatcher: DispatcherId) -> DispatcherResult:
        """Flush the rest of the window and return what was done."""
        channel = self._channel(dispatcher)
        self._drain(channel)
        if channel.work.from_ts == TS_ZERO:
            # A snapshot tells of every table, the empty ones too.
            channel.publisher.describe(self._selected(channel.work.table))
        del self._channels[dispatcher]
        files = channel.publisher.files
        return DispatcherResult(
            dispatcher=dispatcher,
            position=channel.publisher.position(),
            rows=channel.writer.rows,
            nbytes=sum(f.nbytes for f in files),
            max_commit_ts=channel.writer.max_commit_ts,
            files=tuple(files),
        )

    def close(self) -> None:
        """Stop the uploader; what was not flushed is dropped and comes again with the next attempt."""
        self._uploader.close()

    def _publish(self, publisher: FilePublisher, cut: Cut) -> None:
        publisher.publish(cut)
        self._buffers.give_back(cut.content)

    def _drain(self, channel: _Channel) -> None:
        channel.writer.drain()
        self._uploader.drain()
        # Events without rows are in no file; they are durable as soon as all before them is.
        for callback in channel.writer.flushed_callbacks():
            callback()

    def _selected(self, table: TableSchema) -> TableSchema:
        """Return the table version with the columns that reach the files, the same object each time."""
        selected = self._tables.get(table)
        if selected is None:
            selected = self._tables[table] = select_columns(table, self._settings.column_selectors)
        return selected

    def _channel(self, dispatcher: DispatcherId) -> _Channel:
        channel = self._channels.get(dispatcher)
        if channel is None:
            raise InvariantError(f"dispatcher {dispatcher} is not open")
        return channel
