"""Hands the opaque rows of a partition to a sink. Runs on executors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.fence import task_fence
from penstock.feed.window.opaque import RowKind
from penstock.model.batch import read_ipc
from penstock.model.ddl import DdlEvent
from penstock.model.errors import InvariantError
from penstock.model.table import TableSchema
from penstock.sink.catalog import open_sink
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent, Sink, TaskReport
from penstock.sink.wake_gate import WakeGate


def write_partition(context: FeedContext, iterator: Iterator[pa.RecordBatch]) -> tuple[list[DispatcherResult], TaskReport, int]:
    """Deliver the dispatchers of one partition; return their results, what the sink counted, and the window's end, everything durable."""
    sink = open_sink(context.sink_uri, context.sink_options, task_fence(context))
    try:
        to_ts, rows = take_window(iterator)
        results = deliver(sink, rows)
        return results, sink.report(), to_ts
    finally:
        sink.close()


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
