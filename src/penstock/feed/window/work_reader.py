"""Reads the work of a partition out of the event store, as opaque rows. Runs on executors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa

from penstock.feed.bootstrap.difference_reader import read_difference
from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.opaque import RowKind, batch_row, opaque_row
from penstock.feed.window.packing import PlannedPartition, WorkItem
from penstock.model.table import TableSchema
from penstock.readback.contract import open_state
from penstock.sink.catalog import before_rule
from penstock.store.changes.ordering import merge_step
from penstock.store.contract import EndOfRange
from penstock.store.flight.client import FlightStoreClient


def read_partition(context: FeedContext, planned: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the opaque rows of a group of dispatchers, which comes as JSON."""
    plan = msgspec.json.decode(planned, type=PlannedPartition)
    if plan.to_ts:
        yield opaque_row("", RowKind.WINDOW, msgspec.json.encode(plan.to_ts))
    needs_before = before_rule(context.sink_uri, context.sink_options)
    client = FlightStoreClient(context.flight_location, context.flight_token)
    try:
        for item in plan.items:
            yield from read_item(context, client, item, needs_before)
    finally:
        client.close()


def read_item(
    context: FeedContext, client: FlightStoreClient, item: WorkItem, needs_before: Callable[[TableSchema], bool]
) -> Iterator[pa.RecordBatch]:
    """Yield one dispatcher's opaque rows: its changes, or the difference between what the target holds and the state that is known."""
    if item.difference_nbytes is None:
        yield from read_work(client, item, needs_before)
    else:
        state = open_state(context.sink_uri, context.sink_options)
        yield from read_difference(client, state, item.work, item.span_id, item.difference_nbytes, needs_before)


def read_work(client: FlightStoreClient, item: WorkItem, needs_before: Callable[[TableSchema], bool]) -> Iterator[pa.RecordBatch]:
    """Yield one dispatcher's opaque rows, from OPEN to CLOSE, with before-images where the sink wants those of a table version."""
    work, name = item.work, str(item.work.dispatcher)
    yield opaque_row(name, RowKind.OPEN, msgspec.json.encode(work))
    current: TableSchema = work.table
    versions: dict[int, TableSchema] = {current.version: current}
    ahead = deque(item.ddls)
    handle = client.open_changes(item.span_id, work.from_ts, work.to_ts)
    try:
        while not isinstance(step := handle.next(), EndOfRange):
            found = {batch.header.schema_version for batch in (*step.tombstones, *step.data)}
            if not found <= versions.keys():
                versions.update({t.version: t for t in client.schema_history(work.dispatcher.table_id)})
            for version, records in merge_step(step, any(needs_before(versions[v]) for v in found)):
                # A DDL makes a version, so a batch lies before it or after it as a whole.
                while ahead and ahead[0].commit_ts <= version:
                    yield opaque_row(name, RowKind.DDL, ahead.popleft().to_json())
                if version != current.version:
                    current = versions[version]
                    yield opaque_row(name, RowKind.SCHEMA, current.to_json())
                yield batch_row(name, records)
    finally:
        handle.close()
    for ddl in ahead:
        yield opaque_row(name, RowKind.DDL, ddl.to_json())
    yield opaque_row(name, RowKind.CLOSE)
