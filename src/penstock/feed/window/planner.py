"""The window planner: where the next window ends, and which dispatchers do what in it.

A window is recorded in the meta database before anything of it is written, so every attempt, after any crash and on any server,
has the same end and therefore the same files. When one begins is decided by ``feed/window/pace.py``; beside that the planner holds no
state, and can be made again at any time. Runs in the driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from penstock.feed.bootstrap.resnapshot import ResnapshotPlanner, is_resnapshot
from penstock.feed.filters.views import FeedViews
from penstock.feed.window.assignment import Dispatcher, FeedContext
from penstock.feed.window.following import first_dispatchers, follow, live_dispatchers, to_record, without_idle_spans, workers
from penstock.feed.window.pace import WindowPace
from penstock.feed.window.packing import PlannedPartition, WorkItem, pack_by_bytes, tasks_for, whole_tables
from penstock.meta.progress import ProgressDatabase
from penstock.meta.records import PendingWindow
from penstock.model.clock import Clock, SystemClock
from penstock.model.ddl import DdlEvent
from penstock.model.decoding import decoded
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.table import SchemaHistory, TableSchema
from penstock.model.timestamp import TS_MAX, TS_ZERO
from penstock.sink.catalog import compares_tables, ddls_end_windows, one_task
from penstock.sink.contract import DispatcherWork
from penstock.store.contract import SpanWindow, WindowKind, WindowPlan, WindowWish
from penstock.store.flight.client import FlightStoreClient
from penstock.store.stats import SpanStats


class WindowPlanner:
    """Plans the windows of one run of a feed."""

    def __init__(self, context: FeedContext, meta: ProgressDatabase, store: FlightStoreClient, clock: Clock | None = None) -> None:
        self._context = context
        self._pace = WindowPace(context.settings, clock or SystemClock())
        self._meta = meta
        self._store = store
        self._resnapshots = ResnapshotPlanner(context, meta, store)
        self._histories: dict[int, SchemaHistory] = {}
        # What was just written or read, and what only the commit of this run's own window changes.
        self._recorded: PendingWindow | None = None
        self._known: tuple[int, tuple[Dispatcher, ...]] | None = None
        self._snapshot_begun = False
        self.dispatcher_changes = 0
        """How often this run changed which dispatchers there are."""

    @classmethod
    def open(cls, context: FeedContext) -> WindowPlanner:
        """Open the planner's own connections to the meta database and the log service."""
        return cls(context, ProgressDatabase(context.meta_url), FlightStoreClient(context.flight_location, context.flight_token))

    def close(self) -> None:
        """Close both connections."""
        self._store.close()
        self._meta.close()

    def use_views(self, views: FeedViews) -> None:
        """Tell the target of tables as it sees them."""
        self._resnapshots.views = views

    def checkpoint_ts(self) -> int:
        """Return the ts up to which the feed's windows are committed."""
        return self._meta.checkpoint_ts(self._context.feed)

    def dispatchers(self, ts: int) -> tuple[int, tuple[Dispatcher, ...]] | None:
        """Return the dispatchers as of a checkpoint, with it, if they are at hand."""
        return self._known if self._known is not None and self._known[0] == ts else None

    def note_committed(self, to_ts: int, dispatchers: tuple[Dispatcher, ...] | None) -> None:
        """Note which dispatchers there are after a window: nobody else changes them while this run has the lease."""
        if dispatchers is not None:
            self.dispatcher_changes += self._known is None or self._known[1] != dispatchers
            self._known = (to_ts, dispatchers)

    def next_window_end(self, from_ts: int) -> int:
        """Return where the window that starts here ends; the start itself while nothing is resolved beyond it."""
        feed, until_ts = self._context.feed, self._context.settings.until_ts
        if until_ts and from_ts >= until_ts:
            raise PenstockError("FEED_FINISHED", f"feed {feed} has delivered everything up to {from_ts}")
        if from_ts != TS_ZERO and not self._pace.looks(from_ts):
            # A window on record is looked for as well: of this process there is none while it is asked, and a new one looks at once.
            return from_ts
        pending = self._meta.pending_window(feed)
        self._recorded = None
        if pending is not None and pending.from_ts == from_ts:
            return self._go_on(pending)
        if self._context.altered:
            raise PenstockError("FEED_ALTERED", f"feed {feed} has another configuration from ts {from_ts} on")
        return self._begin_snapshot() if from_ts == TS_ZERO else self._begin_changes(from_ts)

    def _begin_changes(self, from_ts: int) -> int:
        if self._snapshot_is_asked():
            return self._resnapshot_anyway(from_ts, PenstockError("SNAPSHOT_DUE", "an operator asked for it"))
        try:
            skips = from_ts < self._context.skip_until_ts
            plan = self._plan_skip(from_ts) if skips else self._plan(from_ts, self._context.settings.window_bytes_max)
        except PenstockError as error:
            return self._resnapshot(from_ts, error)
        if plan is None or plan.to_ts <= from_ts or not self._pace.begins(plan):
            return from_ts
        plan = without_idle_spans(plan)
        # A table that returns may have left a window of which the target has files: its own come behind those, and differ from them.
        taken = {s.span_id for s in plan.spans}
        returning = [d for d in self._dispatchers(from_ts) if d.returns and d.span.span_id in taken]
        plan = msgspec.structs.replace(plan, positions=self._resnapshots.positions(returning, plan.to_ts))
        encoded = msgspec.json.encode(plan).decode()
        self._recorded = self._meta.begin_window(self._context.feed, self._context.epoch, from_ts, plan.to_ts, encoded)
        return self._recorded.to_ts

    def partitions(self, from_ts: int, to_ts: int) -> list[PlannedPartition]:
        """Return the work of the recorded window, packed by bytes; none where no dispatcher has any."""
        plan = decoded(self._pending(from_ts, to_ts).plan, WindowPlan)
        items: list[tuple[int, tuple[int, WorkItem]]] = []
        differs = is_resnapshot(plan)
        dispatchers = self._dispatchers(from_ts)
        if differs:
            self._resnapshots.write_ddls(plan, dispatchers)
        working = workers(dispatchers, plan)
        positions = self._meta.positions(self._context.feed, [str(d.id) for d, _, _ in working]) | plan.positions
        self._learn_versions(dispatcher.id.table_id for dispatcher, _, _ in working)
        for dispatcher, size, ddls in working:
            start_ts = TS_ZERO if dispatcher.with_state or differs else from_ts
            table, position = self._table(dispatcher, start_ts, to_ts), positions.get(str(dispatcher.id), {})
            work = DispatcherWork(dispatcher.id, table, start_ts, to_ts, position)
            item = WorkItem(work, dispatcher.span.span_id, ddls, size.nbytes if differs or dispatcher.returns else None)
            items.append((size.nbytes, (size.nbytes, item)))
        if compares_tables(self._context.sink_uri, self._context.sink_options):
            items = whole_tables(items, [(str(d.id), (d.schema, d.table)) for d in dispatchers])
        tasks_max = self._context.partitions
        if one_task(self._context.sink_uri, self._context.sink_options):
            tasks_max, items = 1, sorted(items, key=lambda sized: sized[1][1].work.dispatcher)
        groups = pack_by_bytes(items, tasks_for([nbytes for nbytes, _ in items], tasks_max))
        return [PlannedPartition(tuple(item for _, item in group), sum(nbytes for nbytes, _ in group)) for group in groups]

    def leave_out(self, from_ts: int, to_ts: int, failed: Mapping[int, PenstockError]) -> None:
        """Let tables leave the recorded window whose filter failed in it; every later attempt does without them as well.

        What they wrote of it is in the target and stays there: they come back with what differs from that.
        """
        plan = decoded(self._pending(from_ts, to_ts).plan, WindowPlan)
        plan = msgspec.structs.replace(plan, stopped=plan.stopped | {table_id: str(error) for table_id, error in failed.items()})
        encoded = msgspec.json.encode(plan).decode()
        self._recorded = self._meta.amend_window(self._context.feed, self._context.epoch, from_ts, to_ts, encoded)

    def _pending(self, from_ts: int, to_ts: int) -> PendingWindow:
        pending = self._recorded
        if pending is None or (pending.from_ts, pending.to_ts) != (from_ts, to_ts):
            pending = self._meta.pending_window(self._context.feed)
        if pending is None or (pending.from_ts, pending.to_ts) != (from_ts, to_ts):
            raise InvariantError(f"window ({from_ts}, {to_ts}] is not the recorded one")
        return pending

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
        spans, tables = [d.span.span_id for d in dispatchers], sorted({d.id.table_id for d in dispatchers})
        try:
            plan = self._store.plan_resnapshot(spans, tables, TS_ZERO, self._context.patterns.patterns)
        except PenstockError as error:
            if error.code != "SPAN_UNKNOWN":
                raise
            return TS_ZERO
        if plan.to_ts == TS_ZERO or self._first_dispatchers_changed(dispatchers, plan.ddls):
            return TS_ZERO
        plan = msgspec.structs.replace(plan, ddls=(), inner_ddls=(), kind=WindowKind.CHANGES)
        encoded = msgspec.json.encode(plan).decode()
        return self._meta.begin_window(self._context.feed, self._context.epoch, TS_ZERO, plan.to_ts, encoded).to_ts

    def _first_dispatchers_changed(self, dispatchers: tuple[Dispatcher, ...], ddls: tuple[DdlEvent, ...]) -> bool:
        """Write down what DDLs made of the dispatchers while the first state was read; return whether that was anything.

        What the log tells from before the feed was created ends in the tables that it was created with, so all of it may be followed.
        """
        after = first_dispatchers(follow(dispatchers, ddls, self._context.patterns))
        if after == dispatchers:
            return False
        self._meta.replace_first_dispatchers(self._context.feed, self._context.epoch, [to_record(d) for d in after])
        self.dispatcher_changes += 1
        return True

    def _go_on(self, pending: PendingWindow) -> int:
        """Return the end of a window that an earlier attempt recorded. After the loss of the event store it is pulled again first."""
        plan = decoded(pending.plan, WindowPlan)
        of_state = pending.from_ts == TS_ZERO or is_resnapshot(plan)
        if not of_state and self._snapshot_is_asked() and compares_tables(self._context.sink_uri, self._context.sink_options):
            # It may be the very window that the target does not take, because it lacks what came before.
            return self._resnapshot_anyway(pending.from_ts, PenstockError("SNAPSHOT_DUE", "an operator asked for it"))
        idle = not of_state and not plan.spans and not plan.inner_ddls
        try:
            # One without rows needs nothing of the store; it may even leave out rows that the store has no more.
            reached = idle or (self._resnapshots.readable(plan) if of_state else self._reached(pending))
        except PenstockError as error:
            if error.code == "SPAN_UNKNOWN":
                return pending.from_ts
            return self._resnapshot(pending.from_ts, error)
        self._recorded = pending if reached else None
        return pending.to_ts if reached else pending.from_ts

    def _resnapshot(self, from_ts: int, error: PenstockError) -> int:
        """Plan a window that takes the place of the history that is gone; raise the error where it says something else."""
        if not self._resnapshots.allowed(error):
            raise error
        return self._resnapshot_anyway(from_ts, error)

    def _resnapshot_anyway(self, from_ts: int, error: PenstockError) -> int:
        live = [d for d in live_dispatchers(self._context, self._meta, from_ts) if not d.with_state]
        return self._resnapshots.begin(from_ts, live, error)

    def _snapshot_is_asked(self) -> bool:
        """Return whether an operator asked for a new snapshot that did not begin yet."""
        asked_ts = self._context.resnapshot_from_ts
        if asked_ts is not None and not self._snapshot_begun:
            self._snapshot_begun = self._meta.resnapshots(self._context.feed, asked_ts) > 0
        return asked_ts is not None and not self._snapshot_begun

    def _plan_skip(self, from_ts: int) -> WindowPlan:
        """Plan a window that leaves all rows out, up to the ts that the feed was reset to; each DDL on the way ends one."""
        tables = sorted({d.id.table_id for d in self._dispatchers(from_ts)})
        nbytes_max = self._context.settings.window_bytes_max
        plan = self._store.plan_window(WindowWish((), tables, from_ts, nbytes_max, self._context.patterns.patterns, ()))
        return ended_at(plan, self._context.skip_until_ts)

    def _reached(self, pending: PendingWindow) -> bool:
        """Return whether the store has everything of a recorded window."""
        plan = self._plan(pending.from_ts, TS_MAX >> 1)
        if plan is None or plan.resolved_ts < pending.to_ts:
            return False
        recorded = {s.span_id for s in decoded(pending.plan, WindowPlan).spans}
        missing = recorded - {s.span_id for s in plan.spans}
        ready = {s.span_id for s in self._known_state(missing, pending.to_ts) if s.resolved_ts >= pending.to_ts} if missing else set()
        return missing <= ready

    def _plan(self, from_ts: int, nbytes_max: int) -> WindowPlan | None:
        """Ask the store where a window ends; None while the span of a table is not captured yet."""
        dispatchers = self._dispatchers(from_ts)
        count = Counter(d.id.table_id for d in dispatchers)
        spans = [d.span.span_id for d in dispatchers if not d.with_state]
        unsplit = [d.id.table_id for d in dispatchers if count[d.id.table_id] == 1 and not d.with_state]
        if ddls_end_windows(self._context.sink_uri, self._context.sink_options):
            unsplit = []
        elif self._context.settings.filter.is_sql:
            # Spark SQL sees one version of a table at a time, so its DDLs end windows.
            typed = {d.id.table_id for d in dispatchers if self._context.settings.filter.sql_rule(d.schema, d.table) is not None}
            unsplit = [table_id for table_id in unsplit if table_id not in typed]
        try:
            plan = self._store.plan_window(WindowWish(spans, sorted(count), from_ts, nbytes_max, self._context.patterns.patterns, unsplit))
        except PenstockError as error:
            if error.code != "SPAN_UNKNOWN":
                raise
            return None
        if self._context.settings.until_ts:
            plan = ended_at(plan, self._context.settings.until_ts)
        # The state at a DDL is one in the table's new version, which the target does not know before the window ends: it joins later.
        changed = frozenset().union(*(d.table_ids for d in plan.ddls))
        joining = [d for d in dispatchers if d.with_state and not d.stopped and d.id.table_id not in changed]
        self._learn_versions(d.id.table_id for d in joining)
        return self._with_joining(plan, [d for d in joining if self._exists(d, plan.to_ts)])

    def _exists(self, dispatcher: Dispatcher, ts: int) -> bool:
        """Return whether a table is known to exist at a ts: one that an operator brought in may have been made since."""
        history = self._histories.get(dispatcher.id.table_id)
        return history is None or not history.versions() or history.versions()[0].version <= ts

    def _dispatchers(self, ts: int) -> tuple[Dispatcher, ...]:
        """Return the dispatchers while the checkpoint is this ts. Before the first window others may still come in their place."""
        if ts == TS_ZERO or self._known is None or self._known[0] != ts:
            self._known = (ts, live_dispatchers(self._context, self._meta, ts))
        return self._known[1]

    def _with_joining(self, plan: WindowPlan, joining: list[Dispatcher]) -> WindowPlan | None:
        """Add the spans whose state is known at the window's end; None where one of them is known and only has to catch up.

        A table that is still being read is not waited for: the others keep their lag. All spans of a table join together, because a
        target that holds tables makes room for its state once.
        """
        if not joining or plan.to_ts == plan.from_ts:
            return plan
        known = self._known_state([d.span.span_id for d in joining], plan.to_ts)
        there = {s.span_id for s in known}
        late = {(d.schema, d.table) for d in joining if d.span.span_id not in there}
        ready = {d.span.span_id for d in joining if (d.schema, d.table) not in late}
        known = [s for s in known if s.span_id in ready]
        if any(s.resolved_ts < plan.to_ts for s in known):
            return None
        heavy = self._context.settings.window_bytes_max
        return msgspec.structs.replace(plan, spans=(*plan.spans, *(SpanWindow(s.span_id, 0, heavy) for s in known)))

    def _known_state(self, span_ids: Iterable[int], ts: int) -> list[SpanStats]:
        status = self._store.span_status()
        found = [status[i] for i in sorted(span_ids) if i in status]
        return [s for s in found if s.base_ts is not None and s.base_ts <= ts]

    def _learn_versions(self, table_ids: Iterable[int]) -> None:
        """Ask for the versions of tables that have others than those that are known: one question, however many tables there are."""
        known = {i: self._histories[i].versions() if i in self._histories else () for i in table_ids}
        changed = self._store.changed_histories({i: (len(v), v[-1].version if v else 0) for i, v in known.items()}) if known else {}
        self._histories |= {table_id: SchemaHistory(table_id, versions) for table_id, versions in changed.items()}

    def _table(self, dispatcher: Dispatcher, from_ts: int, to_ts: int) -> TableSchema:
        """Return the version in which the dispatcher's rows begin: a state's is that of its ts, a tail's that of its start."""
        as_of = to_ts if from_ts == TS_ZERO else from_ts
        table_id = dispatcher.id.table_id
        history = self._histories.get(table_id) or SchemaHistory(table_id, ())
        versions = history.versions()
        if versions and from_ts != TS_ZERO and versions[0].version > as_of:
            # A feed that starts at an old ts, before the table was made.
            return versions[0]
        try:
            return history.at(as_of)
        except PenstockError as error:
            raise PenstockError("STALE_READ", f"{dispatcher.schema}.{dispatcher.table}: {error.detail}") from error


def ended_at(plan: WindowPlan, ts: int) -> WindowPlan:
    """Return a plan of changes that ends at a ts at the latest."""
    if plan.to_ts <= ts:
        return plan
    inner = tuple(ddl for ddl in plan.inner_ddls if ddl.commit_ts <= ts)
    return msgspec.structs.replace(plan, to_ts=ts, ddls=(), inner_ddls=inner)
