"""Re-snapshot: how a feed goes on whose history is gone.

Instead of the changes that nobody has any more, the window delivers the difference between what the target holds and the state at a ts
that the event store knows: deletes of rows that vanished meanwhile, inserts of new ones, updates of those that changed; rows that are equal
give nothing. The window is on record with its kind before anything of it is written, and with the positions up to which the target is read,
so every attempt gives the same rows. Runs in the driver; the difference is read
on executors, by ``feed/bootstrap/difference_reader.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from penstock.feed.filters.views import FeedViews
from penstock.feed.window.assignment import Dispatcher, FeedContext
from penstock.feed.window.fence import OwnerFence
from penstock.feed.window.following import follow, written_parts
from penstock.meta.progress import ProgressDatabase
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import SchemaHistory
from penstock.model.timestamp import TS_ZERO
from penstock.sink.catalog import open_maintainer, open_state
from penstock.store.contract import WindowKind, WindowPlan
from penstock.store.flight.client import FlightStoreClient

log = logging.getLogger(__name__)
_LOOKS_MAX = 10
_PARTITIONS = frozenset(
    {
        DdlType.ADD_PARTITION,
        DdlType.DROP_PARTITION,
        DdlType.TRUNCATE_PARTITION,
        DdlType.REORGANIZE_PARTITION,
        DdlType.EXCHANGE_PARTITION,
    }
)
"""What moves rows between tables that share a name: the target cannot tell whose they were."""


class ResnapshotPlanner:
    """Plans the windows that take the place of lost history."""

    def __init__(self, context: FeedContext, meta: ProgressDatabase, store: FlightStoreClient) -> None:
        self._context = context
        self._meta = meta
        self._store = store
        self.views = FeedViews(context.settings.filter)

    def allowed(self, error: PenstockError) -> bool:
        """Return whether an error means that history is gone and the feed goes on with a new snapshot."""
        settings = self._context.settings
        return error.code == "STALE_READ" and settings.on_stale_read == "resnapshot" and settings.start_ts == TS_ZERO

    def begin(self, from_ts: int, dispatchers: Sequence[Dispatcher], error: PenstockError) -> int:
        """Record a window from the checkpoint to a ts whose state is known, and return that; the checkpoint while there is none yet.

        A recorded window that can no longer be delivered gives way. What it wrote is in the target already and stays there, so the
        positions are taken from the target, and the difference is that to everything that is there.
        """
        plan = self._plan(from_ts, dispatchers)
        if plan.to_ts == from_ts:
            self._check_known(dispatchers)
            return from_ts
        moved = [d for d in plan.ddls if d.type in _PARTITIONS]
        if moved:
            raise PenstockError(
                "DDL_UNSUPPORTED",
                f"{error.detail}; and a {moved[0].type.name} at ts {moved[0].commit_ts} lies in the history that is gone",
                "Create a new feed into a prefix of its own; this one cannot tell which rows belonged to which partition.",
            )
        if self._meta.pending_window(self._context.feed) is not None:
            plan = msgspec.structs.replace(plan, positions=self.positions(dispatchers, plan.to_ts))
        encoded = msgspec.json.encode(plan).decode()
        recorded = self._meta.begin_resnapshot(self._context.feed, self._context.epoch, from_ts, plan.to_ts, encoded)
        extra = {"feed": self._context.feed, "from_ts": from_ts, "to_ts": recorded.to_ts, "cause": error.detail}
        log.warning("history is gone: the feed delivers what differs from a new snapshot", extra=extra)
        return recorded.to_ts

    def _plan(self, from_ts: int, dispatchers: Sequence[Dispatcher]) -> WindowPlan:
        """Ask the store for a window over the dispatchers that are still there after the DDLs on the way."""
        patterns = self._context.patterns
        tables = sorted({d.id.table_id for d in dispatchers})
        staying = list(dispatchers)
        for _ in range(_LOOKS_MAX):
            plan = self._store.plan_resnapshot([d.span.span_id for d in staying], tables, from_ts, patterns.patterns)
            if from_ts == TS_ZERO:
                # Before the first checkpoint nobody has seen a version, so no DDL is news.
                plan = msgspec.structs.replace(plan, ddls=())
            known = {(d.id, d.begin_ts) for d in follow(dispatchers, plan.ddls, patterns)}
            kept = [d for d in dispatchers if (d.id, d.begin_ts) in known]
            if plan.to_ts == from_ts or kept == staying:
                return plan
            staying = kept
        raise PenstockError(
            "UPSTREAM_CHANGING", f"feed {self._context.feed}: tables came and went {_LOOKS_MAX} times while a window was planned"
        )

    def _check_known(self, dispatchers: Sequence[Dispatcher]) -> None:
        """Raise ``SNAPSHOT_DUE`` where a state is not known and must be read from the upstream, which the next run does."""
        status = self._store.span_status()
        unknown = [d for d in dispatchers if d.span.span_id in status and status[d.span.span_id].base_ts is None]
        if unknown:
            names = ", ".join(sorted({f"{d.schema}.{d.table}" for d in unknown}))
            raise PenstockError("SNAPSHOT_DUE", f"the history of {names} is gone, and its state is not known")

    def readable(self, plan: WindowPlan) -> bool:
        """Return whether the store has the states of a recorded window; raises ``STALE_READ`` where it never will again."""
        resolved_ts = self._store.plan_resnapshot([s.span_id for s in plan.spans], (), plan.from_ts).resolved_ts
        if resolved_ts < plan.to_ts:
            return False
        for span in plan.spans:
            self._store.view(span.span_id, TS_ZERO, plan.to_ts)
        return True

    def write_ddls(self, plan: WindowPlan, dispatchers: Sequence[Dispatcher]) -> None:
        """Tell the target of the DDLs on the way: the rows of the window come after all of them. Idempotent."""
        if plan.ddls:
            patterns = self._context.patterns
            fence = OwnerFence(self._context.feed, self._context.epoch, self._meta.check_owner, fresh_s=0.0)
            maintainer = open_maintainer(self._context.sink_uri, self._context.sink_options, fence, run=self._context.sink_run)
            for ddl in plan.ddls:
                for part in written_parts(ddl, dispatchers, patterns, self.views):
                    maintainer.write_block_event(part)
                dispatchers = follow(dispatchers, [ddl], patterns)

    def positions(self, dispatchers: Sequence[Dispatcher], ts: int) -> dict[str, dict[str, int]]:
        """Return where dispatchers stand after everything that the target has of them, also of a window that was never committed."""
        if not dispatchers:
            return {}
        state = open_state(self._context.sink_uri, self._context.sink_options)
        committed = self._meta.progress(self._context.feed).positions
        found = {}
        for dispatcher in dispatchers:
            history = SchemaHistory(dispatcher.id.table_id, self._store.schema_history(dispatcher.id.table_id))
            # Under a name that is new, the target has nothing that was not committed.
            found[str(dispatcher.id)] = state.position(dispatcher.id, history.at(ts)) or committed.get(str(dispatcher.id), {})
        return found


def begun_with_state(after: Sequence[Dispatcher], before: Sequence[Dispatcher]) -> tuple[Dispatcher, ...]:
    """Return the dispatchers after a re-snapshot: those that began on the way deliver their state, because their changes are gone."""
    known = {(d.id, d.begin_ts) for d in before}
    return tuple(d if (d.id, d.begin_ts) in known else msgspec.structs.replace(d, with_state=True) for d in after)


def is_resnapshot(plan: WindowPlan) -> bool:
    """Return whether a window delivers a difference."""
    return plan.kind is WindowKind.RESNAPSHOT
