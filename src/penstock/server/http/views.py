"""How a feed is shown: by the API, and through it by the command line.

Invariant: no credentials, whatever the feed's configuration holds. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.meta.records import DispatcherRecord, FeedRecord, RetryRecord, SubscribeRecord
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.timestamp import lag_seconds, physical_ms, to_datetime
from penstock.server.feeds.creation import FeedDocument
from penstock.server.feeds.ports import RunStatus
from penstock.server.health.feed_watch import FeedProblem
from penstock.server.http.answers import error_body
from penstock.server.http.table_views import feed_tables, table_view, uncovered
from penstock.server.verify.verification import Verdict
from penstock.settings.masking import mask_text, mask_tree, mask_uri


def feed_summary(
    feed: FeedRecord, status: RunStatus | None, clock: Clock, retry: RetryRecord | None = None, problem: FeedProblem | None = None
) -> dict[str, Any]:
    """Return one line of the list of feeds."""
    checkpoint_ts = feed.checkpoint_ts
    return {
        "name": feed.name,
        "state": feed.reached_state.value,
        "requested_state": feed.requested_state.value,
        "checkpoint_ts": checkpoint_ts,
        "checkpoint_time": to_datetime(checkpoint_ts).isoformat() if checkpoint_ts else None,
        "lag_s": round(lag_seconds(checkpoint_ts, clock), 3) if checkpoint_ts else None,
        "resolved_ts": status.resolved_ts if status else 0,
        "rows": feed.rows_total,
        "bytes": feed.nbytes_total,
        "files": feed.files_total,
        "windows": feed.windows_total,
        "owner": feed.owner,
        "epoch": feed.epoch,
        "snapshot": msgspec.to_builtins(status.snapshot) if status and status.snapshot else None,
        "error": _error(feed),
        "retry": msgspec.to_builtins(retry) if retry else None,
        "problem": msgspec.to_builtins(problem) if problem else None,
        "capture_problems": [mask_text(problem) for problem in status.capture_problems] if status else [],
    }


def feed_detail(
    feed: FeedRecord,
    tables: list[SubscribeRecord],
    status: RunStatus | None,
    clock: Clock,
    dispatchers: Sequence[DispatcherRecord] | None = None,
    table_views: Sequence[dict[str, Any]] | None = None,
    retry: RetryRecord | None = None,
    problem: FeedProblem | None = None,
    kept_s: int | None = None,
) -> dict[str, Any]:
    """Return everything that may be shown of one feed; ``dispatchers`` are those that it has now.

    ``kept_s`` says for how long history is kept for it while it does not get on.
    """
    document = FeedDocument.of(feed)
    shown = [table_view(t, ()) for t in feed_tables(tables, dispatchers)] if table_views is None else list(table_views)
    return feed_summary(feed, status, clock, retry, problem) | {
        "uuid": feed.uuid,
        "created_ms": feed.created_ms,
        "updated_ms": feed.updated_ms,
        "source": mask_uri(document.source),
        "config": mask_tree(document.config),
        "dispatchers": len(document.dispatchers if dispatchers is None else dispatchers),
        "tables": shown,
        "uncovered": uncovered(shown, feed.checkpoint_ts),
        "history": _kept(feed, clock, kept_s),
    }


def _kept(feed: FeedRecord, clock: Clock, kept_s: int | None) -> dict[str, Any] | None:
    """Return until when the history is kept that a feed needs next; None where nothing is kept, or it has no checkpoint yet."""
    if kept_s is None or not feed.checkpoint_ts or feed.is_over:
        return None
    until_ms = physical_ms(feed.checkpoint_ts) + kept_s * 1000
    return {"kept_until_ms": until_ms, "remaining_s": max(0, until_ms - clock.now_ms()) / 1000}


def verdict_body(verdict: Verdict) -> dict[str, Any]:
    """Return the outcome of a verification."""
    return {
        "identical": verdict.identical,
        "checkpoint_ts": verdict.checkpoint_ts,
        "checkpoint_time": to_datetime(verdict.checkpoint_ts).isoformat(),
        "stops_at_checkpoint": verdict.stops_at_checkpoint,
        "rows": verdict.rows,
        "tables": [msgspec.to_builtins(table) | {"identical": table.identical} for table in verdict.tables],
    }


def _error(feed: FeedRecord) -> dict[str, str] | None:
    return error_body(PenstockError(feed.error_code, feed.error_text)) if feed.error_code else None
