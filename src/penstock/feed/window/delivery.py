"""A task of a window: reads the changes of its dispatchers and hands them to a sink, in one process. Runs on executors.

Everything of the task is durable in the target when it answers. It is attempted again with the same bytes after any failure, at the same
time even, and writes the same names with the same content.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

import msgspec
import pyarrow as pa

from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.fence import task_fence
from penstock.feed.window.packing import PlannedPartition
from penstock.feed.window.steps import WorkStep
from penstock.feed.window.work_reader import read_items
from penstock.model.ddl import DdlEvent
from penstock.model.decoding import decoded
from penstock.model.errors import InvariantError
from penstock.model.table import TableSchema
from penstock.sink.catalog import open_sink
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent, Sink, TaskReport
from penstock.sink.wake_gate import WakeGate
from penstock.store.flight.client import FlightStoreClient


class WindowTask(msgspec.Struct, frozen=True):
    """What a task is told. Holds secrets: never print it."""

    context: FeedContext
    part: PlannedPartition


class WindowPart(msgspec.Struct, frozen=True):
    """What a task answers, the commit message of its dispatchers: their results, and what its sink counted."""

    results: list[DispatcherResult]
    report: TaskReport


def deliver_part(task: bytes) -> bytes:
    """Do a ``WindowTask``; return the ``WindowPart``."""
    told = decoded(task, WindowTask)
    context = told.context
    sink = open_sink(context.sink_uri, context.sink_options, task_fence(context), context.sink_run)
    try:
        # Whatever ends it, what the steps hold open (files of a difference, a session of the target) is let go of at once.
        with (
            closing(FlightStoreClient(context.flight_location, context.flight_token, context.objects_options)) as client,
            closing(read_items(context, client, told.part.items)) as steps,
        ):
            results = deliver(sink, steps)
        return msgspec.json.encode(WindowPart(results, sink.report()))
    finally:
        sink.close()


def deliver(sink: Sink, steps: Iterable[WorkStep]) -> list[DispatcherResult]:
    """Hand the steps of a task to a sink; return the results of its dispatchers, everything durable.

    Only so many events are handed over before the sink has woken them. A dispatcher that has all its rows is sealed, and the next begins
    while its files are still on their way.
    """
    sealed: list[DispatcherId] = []
    gate = WakeGate()
    sink.on_failure(gate.open)
    work: DispatcherWork | None = None
    table: TableSchema | None = None
    for step in steps:
        if isinstance(step, DispatcherWork):
            work, table = step, step.table
            sink.open_dispatcher(work)
        elif work is None or table is None:
            raise InvariantError("a step outside the work of a dispatcher")
        elif isinstance(step, pa.RecordBatch):
            sink.add_dml_event(DmlEvent(work.dispatcher, table, step, gate.enter(step.nbytes)))
        elif isinstance(step, TableSchema):
            table = step
        elif isinstance(step, DdlEvent):
            # Only this dispatcher is involved: drain it, write the DDL, and go on, while the others never stop.
            sink.pass_block_event(work.dispatcher, step)
            sink.write_block_event(work.dispatcher, step)
        else:
            sink.seal_dispatcher(work.dispatcher)
            sealed.append(work.dispatcher)
            work = table = None
    if work is not None:
        raise InvariantError(f"dispatcher {work.dispatcher} was not closed")
    return [sink.close_dispatcher(dispatcher) for dispatcher in sealed]
