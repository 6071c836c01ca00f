"""A task of a filtered table: the typed rows that Spark is given, and what becomes of those that it keeps. Runs on executors.

The rows are read twice, by the process before Spark and by the one behind it: Spark gets the columns that expressions read and gives back
which rows are kept, and what it computed. So all other values reach the target as the upstream gave them, and few bytes cross the JVM. Both
readers number the rows in their order in the event store, which is the same for every reader. Invariants: a row that Spark kept is the row
that was read (its ts and key are compared); no row is kept twice; what is delivered does not depend on how Spark divides rows in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.feed.bootstrap.difference_reader import read_difference
from penstock.feed.filters.kept_changes import KeptChanges, bare_images
from penstock.feed.filters.plain_steps import filtered_steps
from penstock.feed.filters.views import TableView, stored_values
from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.delivery import WindowPart, deliver
from penstock.feed.window.fence import task_fence
from penstock.feed.window.packing import WorkItem
from penstock.feed.window.steps import WorkEnd, WorkStep
from penstock.kernels.hashing import fold_hashes
from penstock.kernels.jit import byte_view
from penstock.model.batch import KEY, commit_ts_array, without_before
from penstock.model.decoding import decoded
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.rows.typed_columns import typed_columns
from penstock.model.table import META_FIELDS, TableSchema
from penstock.sink.catalog import before_rule, open_sink, open_state
from penstock.store.changes.ordering import merge_step
from penstock.store.changes.snapshot import stored_columns
from penstock.store.contract import EndOfRange
from penstock.store.flight.client import FlightStoreClient

PLACE, CHECK = "__penstock_place", "__penstock_check"
PART_BITS = 40
"""A place is the number of a task and of a row in it; a window has fewer rows than this many bits count."""
CHECK_BITS = 63 - PART_BITS
_CHECK_MASK = (1 << CHECK_BITS) - 1
SOME_ROWS = 1_024
"""Of how many rows that are kept one is told where those are told that are left out."""
_KEPT = "kept"

Numbers = npt.NDArray[np.int64]


class QueryTask(msgspec.Struct, frozen=True):
    """What a task is told: one dispatcher's work, and the view of its table. Holds secrets: never print it."""

    context: FeedContext
    item: WorkItem
    view: TableView


def read_typed(task: bytes, part: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a ``QueryTask`` for Spark: place, check, and the columns that expressions read, typed."""
    told = decoded(task, QueryTask)
    table, place = told.view.read, part << PART_BITS
    fields = [pa.field(PLACE, pa.int64(), False), pa.field(CHECK, pa.int64(), False)]
    with closing(_client(told.context)) as client:
        for records in _rows(client, told.item, told.view.base):
            columns = typed_columns(records, table)
            named = [*fields, *(pa.field(c.name, v.type) for c, v in zip(table.columns, columns, strict=True))]
            places = np.arange(place, place + records.num_rows, dtype=np.int64)
            yield pa.RecordBatch.from_arrays([pa.array(places), pa.array(_checks(records)), *columns], schema=pa.schema(named))
            place += records.num_rows


def deliver_kept(task: bytes, part: int, kept: Iterator[pa.RecordBatch]) -> bytes:
    """Deliver the rows of a ``QueryTask`` that Spark kept: place, check and derived columns, by place; return a ``WindowPart``."""
    told = decoded(task, QueryTask)
    context = told.context
    sink = open_sink(context.sink_uri, context.sink_options, task_fence(context), context.sink_run)
    try:
        with closing(_client(context)) as client:
            steps = _steps(context, client, told.item, told.view, KeptRows(kept, part << PART_BITS, told.view))
            results = deliver(sink, filtered_steps(steps, context.settings.filter))
        return msgspec.json.encode(WindowPart(results, sink.report()))
    finally:
        sink.close()


def with_short_place(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of ``read_typed`` with the number of a row in its task and a part of its check in one number: less crosses the JVM."""
    places: Numbers = rows.column(0).to_numpy()
    short = ((places & ((1 << PART_BITS) - 1)) << CHECK_BITS) | (rows.column(1).to_numpy() & _CHECK_MASK)
    return pa.RecordBatch.from_arrays([pa.array(short), *rows.columns[2:]], names=[rows.schema.names[0], *rows.schema.names[2:]])


class ShortPlaces:
    """What Spark tells of such rows, with place and check as ``deliver_kept`` takes it: those that it keeps, or those that it leaves out.

    A row that it keeps among those that it leaves out, which is there for its check, has its number below zero.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], part: int, *, left_out: bool) -> None:
        self._batches = batches
        self._first = part << PART_BITS
        self.left_out = left_out
        self.told, self.of = 0, 0
        """How many rows were told, and of about how many."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        short: Numbers = batch.column(0).to_numpy()
        kept = short < 0
        short = np.where(kept, -short - 1, short)
        places = short >> CHECK_BITS
        if len(places):
            self.told, self.of = self.told + len(places), int(places[-1]) + 1
        own = [pa.array(places + self._first), pa.array(short & _CHECK_MASK), *([pa.array(kept)] if self.left_out else [])]
        names = [PLACE, CHECK, *([_KEPT] if self.left_out else []), *batch.schema.names[1:]]
        return pa.RecordBatch.from_arrays([*own, *batch.columns[1:]], names=names)


class KeptRows:
    """What Spark kept, read along with the rows themselves."""

    def __init__(self, batches: Iterator[pa.RecordBatch], first: int, view: TableView) -> None:
        self._batches = batches
        self._left_out = isinstance(batches, ShortPlaces) and batches.left_out
        self._next = first
        self._view = view
        self._waiting: pa.RecordBatch | None = None
        self._last = first - 1

    def of(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
        """Return the next rows with their derived columns, and which of them are kept."""
        end = self._next + records.num_rows
        found = self._up_to(end)
        flags: npt.NDArray[np.bool_] = np.full(records.num_rows, self._left_out, dtype=np.bool_)
        at: Numbers = np.full(records.num_rows, -1, dtype=np.int64)
        rows = pa.Table.from_batches(found) if found else None
        if rows is not None:
            places: Numbers = rows.column(0).to_numpy() - self._next
            flags[places] = rows.column(2).to_numpy() if self._left_out else True
            at[places] = np.arange(len(places))
            if bool(((_checks(records)[places] ^ rows.column(1).to_numpy()) & _CHECK_MASK).any()):
                raise InvariantError(f"{self._view.base.full_name}: a row that Spark kept is not the row that was read")
        self._next = end
        chosen = pa.array(at, mask=at < 0)
        columns, fields = list(records.columns), list(records.schema)
        for number, derived in enumerate(self._view.derived):
            kind = derived.column.type.arrow()
            values = pa.nulls(records.num_rows, kind)
            if rows is not None:
                values = stored_values(rows.column(2 + number).combine_chunks().take(chosen), derived.column)
            columns.append(values)
            fields.append(pa.field(derived.column.field_name, kind))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)), flags

    def finish(self) -> None:
        """Check that nothing is left."""
        if self._up_to(1 << 62):
            raise InvariantError(f"{self._view.base.full_name}: Spark kept rows that were not read")

    def _up_to(self, end: int) -> list[pa.RecordBatch]:
        """Return what Spark kept below a place."""
        found: list[pa.RecordBatch] = []
        while True:
            batch = self._waiting if self._waiting is not None else next(self._batches, None)
            self._waiting = None
            if batch is None:
                return found
            if batch.num_rows == 0:
                continue
            places: Numbers = batch.column(0).to_numpy()
            if int(places[0]) <= self._last or bool((np.diff(places) <= 0).any()):
                raise PenstockError(
                    "FILTER_FAILED", f"{self._view.base.full_name}: the join gives more than one row for a row of the table"
                )
            count = int(np.searchsorted(places, end))
            if count:
                found.append(batch.slice(0, count))
                self._last = int(places[count - 1])
            if count < batch.num_rows:
                self._waiting = batch.slice(count)
                return found


def _steps(context: FeedContext, client: FlightStoreClient, item: WorkItem, view: TableView, kept: KeptRows) -> Iterator[WorkStep]:
    """Yield the dispatcher's steps: changes of the filtered table, or what differs between the target and its state."""
    work, keep_before = item.work, before_rule(context.sink_uri, context.sink_options)
    if item.ddls:
        raise InvariantError(f"{view.base.full_name}: a DDL inside a window of rows that go through Spark")
    rows = _changes(client, item, view, kept)
    if item.difference_nbytes is not None:
        if item.companion_span_ids or item.is_companion:
            raise PenstockError(
                "SINK_NOT_READABLE", f"{view.base.full_name} is divided and filtered by SQL: it cannot be compared as a whole"
            )
        state = open_state(context.sink_uri, context.sink_options)
        yield from read_difference(state, work, item.difference_nbytes, keep_before, rows)
        return
    yield work
    for records in rows:
        shown = records if keep_before(work.table) else without_before(records).drop_columns([KEY])
        if shown.num_rows:
            yield shown
    yield WorkEnd()


def _changes(client: FlightStoreClient, item: WorkItem, view: TableView, kept: KeptRows) -> Iterator[pa.RecordBatch]:
    names = [*(f.name for f in META_FIELDS), *view.shown.row_schema().names]
    changes = KeptChanges([c.field_name for c in view.shown.key_columns] if view.own_key else ())
    for records in _rows(client, item, view.base):
        rows, flags = kept.of(records)
        found = changes.add(rows.select(names), flags, bare_images(records, view.base))
        if found.num_rows:
            yield found
    kept.finish()
    last = changes.finish()
    if last is not None and last.num_rows:
        yield last


def _rows(client: FlightStoreClient, item: WorkItem, table: TableSchema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a dispatcher's window with before-images, in order, under one table version."""
    versions = {table.version: table}
    handle = client.open_changes(item.span_id, item.work.from_ts, item.work.to_ts)
    try:
        while not isinstance(step := handle.next(), EndOfRange):
            for version, records in merge_step(step, keep_before=True):
                if version == table.version:
                    yield records
                    continue
                if version not in versions:
                    versions |= {t.version: t for t in client.schema_history(table.table_id)}
                stored = stored_columns(records, table, versions.get(version))
                yield pa.RecordBatch.from_arrays([*records.columns[:2], *stored.columns], schema=table.batch_schema())
    finally:
        handle.close()


def _checks(records: pa.RecordBatch) -> Numbers:
    """Return a number for each row by which it is known again: a hash of its ts and key."""
    total = commit_ts_array(records).copy()
    keys = records.column(KEY).cast(pa.large_binary())
    offsets = np.frombuffer(keys.buffers()[1], dtype=np.int64)[keys.offset : keys.offset + len(keys) + 1]
    fold_hashes(offsets, byte_view(keys.buffers()[2]), total)
    return total.view(np.int64)


def _client(context: FeedContext) -> FlightStoreClient:
    return FlightStoreClient(context.flight_location, context.flight_token, context.objects_options)


Read = Callable[[bytes, int], Iterator[pa.RecordBatch]]
Deliver = Callable[[bytes, int, Iterator[pa.RecordBatch]], bytes]
