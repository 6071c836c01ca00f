"""Reads the work of a task out of the event store, step by step. Runs on executors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator

import msgspec
import numpy as np
import pyarrow as pa

from penstock.feed.bootstrap.difference_reader import read_difference, state_rows
from penstock.feed.filters.plain_steps import filtered_steps
from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.packing import WorkItem
from penstock.feed.window.steps import WorkEnd, WorkStep
from penstock.model.batch import commit_ts_array
from penstock.model.ddl import DdlEvent
from penstock.model.table import TableSchema
from penstock.sink.catalog import before_rule, open_state
from penstock.store.changes.ordering import merge_step
from penstock.store.contract import EndOfRange
from penstock.store.flight.client import FlightStoreClient


def read_items(context: FeedContext, client: FlightStoreClient, items: tuple[WorkItem, ...]) -> Generator[WorkStep]:
    """Yield the steps of a group of dispatchers, one dispatcher after the other."""
    needs_before = before_rule(context.sink_uri, context.sink_options)
    chosen = context.settings.filter
    for item in items:
        steps = read_item(context, client, item, needs_before)
        yield from steps if chosen.is_empty else filtered_steps(steps, chosen)


def read_item(
    context: FeedContext, client: FlightStoreClient, item: WorkItem, needs_before: Callable[[TableSchema], bool]
) -> Iterator[WorkStep]:
    """Yield one dispatcher's steps: its changes, or the difference between what the target holds and the state that is known."""
    if item.difference_nbytes is None:
        yield from read_work(client, item, needs_before)
    elif item.is_companion:
        yield msgspec.structs.replace(item.work, is_difference=True)
        yield WorkEnd()
    else:
        state = open_state(context.sink_uri, context.sink_options)
        work = msgspec.structs.replace(item.work, table=context.settings.filter.columns_shown(item.work.table))
        spans = (item.span_id, *item.companion_span_ids)
        rows = (records for span_id in spans for records in state_rows(client, span_id, work.to_ts))
        yield from read_difference(state, work, item.difference_nbytes, needs_before, rows)


def read_work(client: FlightStoreClient, item: WorkItem, needs_before: Callable[[TableSchema], bool]) -> Iterator[WorkStep]:
    """Yield one dispatcher's steps, with before-images where the sink wants those of a table version."""
    work = item.work
    yield work
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
                # A DDL makes a version, so a batch of that or a later one lies behind it.
                while ahead and ahead[0].commit_ts <= version:
                    yield ahead.popleft()
                for part in _parted(records, ahead):
                    if isinstance(part, pa.RecordBatch) and version != current.version:
                        current = versions[version]
                        yield current
                    yield part
    finally:
        handle.close()
    yield from ahead
    yield WorkEnd()


def _parted(records: pa.RecordBatch, ahead: deque[DdlEvent]) -> Iterator[pa.RecordBatch | DdlEvent]:
    """Yield rows, and between them the DDLs that they stand behind although their version is an older one.

    That is a transaction which wrote to a table, changed it and wrote again: all of its rows have one ts, above its DDLs.
    """
    while ahead and records.num_rows and (ts := commit_ts_array(records))[-1] > ahead[0].commit_ts:
        before = int(np.searchsorted(ts, np.uint64(ahead[0].commit_ts), side="right"))
        if before:
            yield records.slice(0, before)
        yield ahead.popleft()
        records = records.slice(before)
    if records.num_rows:
        yield records
