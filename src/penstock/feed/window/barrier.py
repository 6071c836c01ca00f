"""The DDL barrier and the commit of a window, with the driver as maintainer.

When this runs, every dispatcher has drained: its files are in the target. Order: block events at the window's end, the checksums of its
files, progress in the meta database (fenced), checkpoint in the target. Progress never leads what is durable; the published checkpoint
never leads progress. Where a DDL at the end changes which dispatchers there are, that moves in the same transaction as progress. Runs in
the driver.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.feed.bootstrap.resnapshot import begun_with_state, is_resnapshot
from penstock.feed.filters.views import FeedViews
from penstock.feed.window.assignment import Dispatcher, FeedContext
from penstock.feed.window.coverage import publish_committed
from penstock.feed.window.fence import OwnerFence, driver_meta
from penstock.feed.window.following import (
    compared_again,
    follow,
    joined,
    live_dispatchers,
    to_records,
    with_filters,
    without_stopped,
    workers,
    written_parts,
)
from penstock.meta.records import Counted, PendingWindow
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.timestamp import TS_ZERO
from penstock.sink.catalog import compares_tables, open_maintainer
from penstock.sink.contract import DispatcherResult, TaskReport
from penstock.sink.metrics import add_to_text, ddl_report
from penstock.store.contract import WindowPlan


def commit_recorded_window(
    context: FeedContext,
    to_ts: int,
    results: Sequence[DispatcherResult],
    reports: Sequence[TaskReport] = (),
    known: tuple[int, tuple[Dispatcher, ...]] | None = None,
    views: FeedViews | None = None,
) -> tuple[Dispatcher, ...] | None:
    """Commit the recorded window, which ends at ``to_ts``; one that is already committed only has its checkpoint published again.

    ``known`` are the dispatchers as of a checkpoint, which need not be read again where the window starts there; ``views`` how the target
    sees tables. Returns the dispatchers from the window's end on; None where the window was committed before.
    """
    meta = driver_meta(context.meta_url)
    views = views or FeedViews(context.settings.filter)
    # Asked before each write, however short ago the last answer was: these writes are few, and the checkpoint must not go back.
    fence = OwnerFence(context.feed, context.epoch, meta.check_owner, fresh_s=0.0)
    maintainer = open_maintainer(context.sink_uri, context.sink_options, fence, run=context.sink_run)
    affected = 0
    followers: tuple[Dispatcher, ...] | None = None
    pending = meta.owned_window(context.feed, context.epoch)
    if pending is not None:
        plan = decoded(pending.plan, WindowPlan)
        at_hand = known is not None and known[0] == pending.from_ts != TS_ZERO
        dispatchers = known[1] if known is not None and at_hand else live_dispatchers(context, meta, pending.from_ts)
        _check_complete(pending, to_ts, {str(d.id) for d, _, _ in workers(dispatchers, plan)}, results)
        differs = is_resnapshot(plan)
        delivered = sorted(results, key=lambda r: r.dispatcher)
        maintainer.record_window(pending.from_ts, pending.to_ts, delivered)
        # A DDL may have a file for each of thousands of tables, the same whoever writes it: an answer counts for a moment here.
        writer = open_maintainer(
            context.sink_uri, context.sink_options, OwnerFence(context.feed, context.epoch, meta.check_owner), run=context.sink_run
        )
        for ddl in plan.ddls:
            # The rows of a re-snapshot come after its DDLs, which were written before them.
            for part in () if differs else written_parts(ddl, dispatchers, context.patterns, views):
                writer.write_block_event(part)
            touched = ddl.table_ids
            affected += sum(dispatcher.id.table_id in touched for dispatcher in dispatchers)
        followers = follow(joined(dispatchers, (s.span_id for s in plan.spans)), plan.ddls, context.patterns)
        if differs:
            followers = begun_with_state(followers, dispatchers)
        if compares_tables(context.sink_uri, context.sink_options):
            followers = compared_again(followers, plan.ddls)
        followers = without_stopped(with_filters(followers, plan.ddls, views), plan)
        meta.commit_window(
            context.feed,
            context.epoch,
            pending.from_ts,
            pending.to_ts,
            {str(r.dispatcher): r.position for r in results},
            rows=sum(r.rows for r in results),
            nbytes=sum(r.nbytes for r in results),
            files=sum(len(r.files) for r in results),
            followers=None if followers == dispatchers else to_records(followers, dispatchers, pending.to_ts),
            counts={str(r.dispatcher): Counted(r.rows, r.nbytes, len(r.files)) for r in results},
        )
    publish_committed(context, meta, maintainer, followers)
    if reports or affected:
        meta.add_sink_report(context.feed, context.epoch, lambda sum_: add_to_text(sum_, [*reports, ddl_report(affected)]))
    return followers


def _check_complete(window: PendingWindow, to_ts: int, wanted: set[str], results: Sequence[DispatcherResult]) -> None:
    """Raise unless exactly the dispatchers that work in the recorded window bring a result: these are of another window otherwise."""
    found = {str(r.dispatcher) for r in results}
    if found != wanted or window.to_ts != to_ts:
        missing, others = sorted(wanted - found), sorted(found - wanted)
        raise PenstockError(
            "WINDOW_OUT_OF_ORDER",
            f"feed {window.feed}: the results of the window that ends at {to_ts}, where ({window.from_ts}, {window.to_ts}] is recorded, "
            f"lack {missing} and have {others} too many",
        )
