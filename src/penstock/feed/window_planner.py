"""The window planner: where the next window ends, and which dispatchers do what in it.

A window is recorded in the meta database before anything of it is written, so every attempt, after any crash and on any server,
has the same end and therefore the same files. The planner holds no state of its own: it can be opened again at any time. Runs in
the planner process beside the driver.
"""

from __future__ import annotations

import msgspec

from penstock.feed.assignment import Dispatcher, FeedContext
from penstock.feed.packing import pack_by_bytes
from penstock.meta.database import MetaDatabase
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.table import SchemaHistory, TableSchema
from penstock.model.timestamp import TS_MAX, TS_ZERO
from penstock.sink.contract import DispatcherWork
from penstock.store.contract import WindowPlan
from penstock.store.flight_client import FlightStoreClient


class WorkItem(msgspec.Struct, frozen=True):
    """One dispatcher's work and the span that it reads."""

    work: DispatcherWork
    span_id: int


class PlannedPartition(msgspec.Struct, frozen=True):
    """The dispatchers of one Spark task."""

    items: tuple[WorkItem, ...]


class WindowPlanner:
    """Plans the windows of one run of a feed."""

    def __init__(self, context: FeedContext, meta: MetaDatabase, store: FlightStoreClient) -> None:
        self._context = context
        self._meta = meta
        self._store = store
        self._histories: dict[int, SchemaHistory] = {}

    @classmethod
    def open(cls, context: FeedContext) -> WindowPlanner:
        """Open the planner's own connections to the meta database and the log service."""
        return cls(context, MetaDatabase(context.meta_url), FlightStoreClient(context.flight_location, context.flight_token))

    def close(self) -> None:
        """Close both connections."""
        self._store.close()
        self._meta.close()

    def checkpoint_ts(self) -> int:
        """Return the ts up to which the feed's windows are committed."""
        return self._meta.progress(self._context.feed).checkpoint_ts

    def next_window_end(self, from_ts: int) -> int:
        """Return where the window that starts here ends; the start itself while nothing is resolved beyond it."""
        feed = self._context.feed
        pending = self._meta.pending_window(feed)
        if pending is not None and pending.from_ts == from_ts:
            # An earlier attempt recorded this window. After the loss of the event store it is pulled again first.
            reached = self._plan(from_ts, TS_MAX >> 1).resolved_ts >= pending.to_ts
            return pending.to_ts if reached else from_ts
        if from_ts == TS_ZERO:
            return self._begin_snapshot()
        plan = self._plan(from_ts, self._context.settings.window_bytes_max)
        if plan.to_ts <= from_ts:
            return from_ts
        self._refuse_new_tables(plan)
        return self._meta.begin_window(feed, self._context.epoch, from_ts, plan.to_ts, msgspec.json.encode(plan).decode()).to_ts

    def partitions(self, from_ts: int, to_ts: int) -> list[PlannedPartition]:
        """Return the work of the recorded window, packed by bytes; nothing for a window that is already committed."""
        if from_ts == to_ts:
            return []
        progress = self._meta.progress(self._context.feed)
        if progress.checkpoint_ts >= to_ts:
            return []
        pending = self._meta.pending_window(self._context.feed)
        if pending is None or (pending.from_ts, pending.to_ts) != (from_ts, to_ts):
            raise InvariantError(f"window ({from_ts}, {to_ts}] is not the recorded one")
        plan = msgspec.json.decode(pending.plan, type=WindowPlan)
        sizes = {s.span_id: s for s in plan.spans}
        items: list[tuple[int, WorkItem]] = []
        for dispatcher in self._context.dispatchers:
            size = sizes.get(dispatcher.span.span_id)
            if size is None or (size.rows == 0 and from_ts != TS_ZERO):
                continue
            position = progress.positions.get(str(dispatcher.id), {})
            work = DispatcherWork(dispatcher.id, self._table(dispatcher, from_ts, to_ts), from_ts, to_ts, position)
            items.append((size.nbytes, WorkItem(work, dispatcher.span.span_id)))
        if not items:
            return []
        return [PlannedPartition(tuple(group)) for group in pack_by_bytes(items, self._context.partitions)]

    def _refuse_new_tables(self, plan: WindowPlan) -> None:
        """Raise for a DDL that moves a table of the feed to a new id: its rows would be left out without a word."""
        known = set(self._context.table_ids)
        for ddl in plan.ddls:
            moved = [t.full_name for t in ddl.tables if t.table_id not in known and ddl.dropped_table_ids]
            if moved:
                raise PenstockError(
                    "DDL_UNSUPPORTED",
                    f"feed {self._context.feed}: {ddl.type.name} at ts {ddl.commit_ts} gives {', '.join(moved)} a new table id, "
                    "which a running feed does not follow yet",
                )

    def _begin_snapshot(self) -> int:
        to_ts = self._context.snapshot_ts
        plan = self._plan(TS_ZERO, TS_MAX >> 1)
        if plan.resolved_ts < to_ts:
            return TS_ZERO
        # A DDL before the snapshot's ts is in its schema already: only its end matters, and nothing is a barrier.
        plan = msgspec.structs.replace(plan, to_ts=to_ts, ddls=())
        self._meta.begin_window(self._context.feed, self._context.epoch, TS_ZERO, to_ts, msgspec.json.encode(plan).decode())
        return to_ts

    def _plan(self, from_ts: int, nbytes_max: int) -> WindowPlan:
        return self._store.plan_window(self._context.span_ids, self._context.table_ids, from_ts, nbytes_max)

    def _table(self, dispatcher: Dispatcher, from_ts: int, to_ts: int) -> TableSchema:
        # A DDL ends its window, so every row of a tail has the version that held before the end.
        as_of = to_ts if from_ts == TS_ZERO else max(from_ts, to_ts - 1)
        table_id = dispatcher.id.table_id
        history = self._histories.get(table_id)
        if history is None or history.versions()[-1].version <= as_of:
            history = SchemaHistory(table_id, self._store.schema_history(table_id))
            self._histories[table_id] = history
        try:
            return history.at(as_of)
        except PenstockError as error:
            raise PenstockError("STALE_READ", f"{dispatcher.schema}.{dispatcher.table}: {error.detail}") from error
