"""The window planner: where the next window ends, and which dispatchers do what in it.

A window is recorded in the meta database before anything of it is written, so every attempt, after any crash and on any server,
has the same end and therefore the same files. The planner holds no state of its own: it can be opened again at any time. Runs in
the planner process beside the driver.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from penstock.feed.assignment import Dispatcher, FeedContext
from penstock.feed.following import live_dispatchers
from penstock.feed.packing import pack_by_bytes
from penstock.meta.database import MetaDatabase
from penstock.model.ddl import DdlEvent
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.table import SchemaHistory, TableSchema
from penstock.model.timestamp import TS_MAX, TS_ZERO
from penstock.sink.contract import DispatcherWork
from penstock.store.contract import WindowKind, WindowPlan
from penstock.store.flight_client import FlightStoreClient


class WorkItem(msgspec.Struct, frozen=True):
    """One dispatcher's work, the span that it reads, and the DDLs that it passes on the way, oldest first."""

    work: DispatcherWork
    span_id: int
    ddls: tuple[DdlEvent, ...] = ()


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
            return pending.to_ts if self._resolved_ts(from_ts) >= pending.to_ts else from_ts
        if from_ts == TS_ZERO:
            return self._begin_snapshot()
        plan = self._plan(from_ts, self._context.settings.window_bytes_max)
        if plan is None or plan.to_ts <= from_ts:
            return from_ts
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
        for dispatcher in live_dispatchers(self._context, self._meta, from_ts):
            size = sizes.get(dispatcher.span.span_id)
            ddls = tuple(d for d in plan.inner_ddls if d.one_table_id == dispatcher.id.table_id)
            start_ts = TS_ZERO if _begins_with_state(dispatcher, from_ts) else from_ts
            if size is None or (size.rows == 0 and not ddls and start_ts != TS_ZERO):
                continue
            position = progress.positions.get(str(dispatcher.id), {})
            work = DispatcherWork(dispatcher.id, self._table(dispatcher, start_ts, to_ts), start_ts, to_ts, position)
            items.append((size.nbytes, WorkItem(work, dispatcher.span.span_id, ddls)))
        if not items:
            return []
        return [PlannedPartition(tuple(group)) for group in pack_by_bytes(items, self._context.partitions)]

    def _begin_snapshot(self) -> int:
        to_ts = self._context.snapshot_ts
        if to_ts == TS_ZERO:
            return self._begin_known_snapshot()
        plan = self._plan(TS_ZERO, TS_MAX >> 1)
        if plan is None or plan.resolved_ts < to_ts:
            return TS_ZERO
        # A DDL before the snapshot's ts is in its schema already: only its end matters, and nothing is a barrier.
        plan = msgspec.structs.replace(plan, to_ts=to_ts, ddls=(), inner_ddls=())
        self._meta.begin_window(self._context.feed, self._context.epoch, TS_ZERO, to_ts, msgspec.json.encode(plan).decode())
        return to_ts

    def _begin_known_snapshot(self) -> int:
        """Begin with the state at a ts that is chosen now, because it had to be read first; from then on it is on record."""
        dispatchers = live_dispatchers(self._context, self._meta, TS_ZERO)
        plan = self._store.plan_resnapshot([d.span.span_id for d in dispatchers], sorted({d.id.table_id for d in dispatchers}), TS_ZERO)
        if plan.to_ts == TS_ZERO:
            return TS_ZERO
        plan = msgspec.structs.replace(plan, ddls=(), inner_ddls=(), kind=WindowKind.CHANGES)
        encoded = msgspec.json.encode(plan).decode()
        return self._meta.begin_window(self._context.feed, self._context.epoch, TS_ZERO, plan.to_ts, encoded).to_ts

    def _resolved_ts(self, from_ts: int) -> int:
        plan = self._plan(from_ts, TS_MAX >> 1)
        return TS_ZERO if plan is None else plan.resolved_ts

    def _plan(self, from_ts: int, nbytes_max: int) -> WindowPlan | None:
        """Ask the store where a window ends; None while the span of a table that came into the feed is not captured yet."""
        dispatchers = live_dispatchers(self._context, self._meta, from_ts)
        spans = [d.span.span_id for d in dispatchers]
        count = Counter(d.id.table_id for d in dispatchers)
        unsplit = [d.id.table_id for d in dispatchers if count[d.id.table_id] == 1 and not _begins_with_state(d, from_ts)]
        try:
            return self._store.plan_window(spans, sorted(count), from_ts, nbytes_max, self._context.patterns.patterns, unsplit)
        except PenstockError as error:
            if error.code != "SPAN_UNKNOWN" or all(d.begin_ts == TS_ZERO for d in dispatchers):
                raise
            return None

    def _table(self, dispatcher: Dispatcher, from_ts: int, to_ts: int) -> TableSchema:
        """Return the version in which the dispatcher's rows begin: a state's is that of its ts, a tail's that of its start."""
        as_of = to_ts if from_ts == TS_ZERO else from_ts
        table_id = dispatcher.id.table_id
        history = self._histories.get(table_id)
        if history is None or history.versions()[-1].version <= as_of:
            history = SchemaHistory(table_id, self._store.schema_history(table_id))
            self._histories[table_id] = history
        versions = history.versions()
        if versions and from_ts != TS_ZERO and versions[0].version > as_of:
            # A feed that starts at an old ts, before the table was made.
            return versions[0]
        try:
            return history.at(as_of)
        except PenstockError as error:
            raise PenstockError("STALE_READ", f"{dispatcher.schema}.{dispatcher.table}: {error.detail}") from error


def _begins_with_state(dispatcher: Dispatcher, from_ts: int) -> bool:
    """Return whether the window that starts here is the first one of a table that came into the feed with rows."""
    return dispatcher.with_state and dispatcher.begin_ts == from_ts
