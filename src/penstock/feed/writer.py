"""The feed's writer: takes opaque rows to the sink on executors, and commits windows beside the driver.

A task opens a sink, hands it the events of its dispatchers and returns their results as the commit message. The commit acts as
the maintainer of the barrier: schema files of the DDL that ended the window, then progress (fenced, one transaction), then the
published checkpoint. Each step is idempotent, so a crash between two of them is repaired by the next attempt of the same window.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.feed.assignment import FeedContext
from penstock.feed.opaque import RowKind
from penstock.model.batch import read_ipc
from penstock.model.ddl import DdlEvent
from penstock.model.errors import InvariantError
from penstock.model.table import TableSchema
from penstock.sink.catalog import open_sink
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent, Sink, TaskReport
from penstock.sink.wake_gate import WakeGate


@dataclass
class WindowPart(WriterCommitMessage):
    """The commit message of one task: the results of its dispatchers and what its sink counted, as JSON."""

    results: bytes
    report: bytes = b"{}"
    to_ts: int = 0
    """The end of the window that the part is of; 0 where the batch is no window."""


class FeedStreamWriter(DataSourceStreamArrowWriter):
    """Writes windows on executors and commits them beside the driver."""

    def __init__(self, context: FeedContext) -> None:
        self._context = context

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WindowPart:
        """Deliver the dispatchers of one partition; everything is durable in the target when it returns. Runs on an executor."""
        from penstock.feed.fence import task_fence

        sink = open_sink(self._context.sink_uri, self._context.sink_options, task_fence(self._context))
        try:
            to_ts, rows = take_window(iterator)
            results = deliver(sink, rows)
            report = sink.report()
        finally:
            sink.close()
        return WindowPart(msgspec.json.encode(results), msgspec.json.encode(report), to_ts)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the recorded window. Runs beside the driver, once all tasks have succeeded."""
        from penstock.feed.barrier import commit_recorded_window

        parts = [message for message in messages if isinstance(message, WindowPart) and message.to_ts]
        ends = {part.to_ts for part in parts}
        if not ends:
            # A batch without a window. Whatever is on record is still to be done.
            return
        if len(ends) > 1:
            raise InvariantError(f"one batch has parts of windows that end at {sorted(ends)}")
        results = [result for part in parts for result in msgspec.json.decode(part.results, type=list[DispatcherResult])]
        reports = [msgspec.json.decode(part.report, type=TaskReport) for part in parts]
        commit_recorded_window(self._context, ends.pop(), results, reports)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave everything as it is: published files are the same in the next attempt, and nothing was committed."""


def take_window(iterator: Iterator[pa.RecordBatch]) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Return the end of the window that a partition is part of, 0 where it is of none, and the rows after the one that says so."""
    first = next((rows for rows in iterator if rows.num_rows), None)
    if first is None:
        return 0, iter(())
    if first.column("kind")[0].as_py() != RowKind.WINDOW:
        return 0, itertools.chain([first], iterator)
    to_ts = msgspec.json.decode(first.column("payload")[0].as_buffer(), type=int)
    return to_ts, itertools.chain([first.slice(1)], iterator)


def deliver(sink: Sink, iterator: Iterator[pa.RecordBatch]) -> list[DispatcherResult]:
    """Hand the opaque rows of one partition to a sink; return the results of its dispatchers, everything durable.

    Only so many events are handed over before the sink has woken them. A dispatcher that has all its rows is sealed, and the next begins
    while its files are still on their way.
    """
    sealed: list[DispatcherId] = []
    gate = WakeGate()
    sink.on_failure(gate.open)
    work: DispatcherWork | None = None
    table: TableSchema | None = None
    for rows in iterator:
        kinds, payloads = rows.column("kind").to_numpy(), rows.column("payload")
        for index, kind in enumerate(kinds):
            payload = payloads[index].as_buffer()
            if kind == RowKind.OPEN:
                work = msgspec.json.decode(payload, type=DispatcherWork)
                table = work.table
                sink.open_dispatcher(work)
            elif work is None or table is None:
                raise InvariantError("an opaque row outside OPEN and CLOSE")
            elif kind == RowKind.SCHEMA:
                table = TableSchema.from_json(bytes(payload))
            elif kind == RowKind.BATCH:
                wake = gate.enter(payload.size)
                sink.add_dml_event(DmlEvent(work.dispatcher, table, read_ipc(payload), wake))
            elif kind == RowKind.DDL:
                # Only this dispatcher is involved: drain it, write the DDL, and go on, while the others never stop.
                ddl = DdlEvent.from_json(bytes(payload))
                sink.pass_block_event(work.dispatcher, ddl)
                sink.write_block_event(work.dispatcher, ddl)
            else:
                sink.seal_dispatcher(work.dispatcher)
                sealed.append(work.dispatcher)
                work = table = None
    if work is not None:
        raise InvariantError(f"dispatcher {work.dispatcher} was not closed")
    return [sink.close_dispatcher(dispatcher) for dispatcher in sealed]


def feed_sink(context: FeedContext, format_name: str) -> type[DataSource]:
    """Return the data sink class of one run of a feed; the context travels inside the pickled class."""

    class FeedSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
            from penstock.feed.writer import FeedStreamWriter

            return FeedStreamWriter(context)

    return FeedSink
