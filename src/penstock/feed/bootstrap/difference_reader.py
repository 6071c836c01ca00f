"""Reads, for one dispatcher, what differs between the target and the state of its span: the rows of a window of lost history.

Runs on executors.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.feed.window.steps import WorkEnd, WorkStep
from penstock.model.batch import KEY, without_before
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.readback.state_difference import StateDifference, buckets_for
from penstock.sink.contract import DispatcherWork
from penstock.store.contract import EndOfRange
from penstock.store.flight.client import FlightStoreClient
from penstock.target.state import TargetState


def read_difference(
    state: TargetState, work: DispatcherWork, nbytes: int, needs_before: Callable[[TableSchema], bool], rows: Iterable[pa.RecordBatch]
) -> Iterator[WorkStep]:
    """Yield one dispatcher's steps. ``nbytes`` is the size of the state, as the plan has it, ``rows`` its rows."""
    table = work.table
    # The sink opens the dispatcher before anything of the target is read.
    yield msgspec.structs.replace(work, is_difference=True)
    keep_before = needs_before(table)
    with tempfile.TemporaryDirectory(prefix="penstock-resnapshot-") as directory:
        difference = StateDifference(table, state.columns(table), state.row_key(work), Path(directory), buckets_for(nbytes))
        difference.add_old(state.changes(work))
        difference.add_new(rows)
        for records in difference.changes(work.to_ts):
            shown = records if keep_before else without_before(records).drop_columns([KEY])
            if shown.num_rows:
                yield shown
    yield WorkEnd()


def state_rows(client: FlightStoreClient, span_id: int, ts: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a span as of a ts."""
    handle = client.open_changes(span_id, TS_ZERO, ts)
    try:
        while not isinstance(step := handle.next(), EndOfRange):
            for batch in step.data:
                yield batch.records
    finally:
        handle.close()
