"""How a feed is shown: by the API, and through it by the command line.

Invariant: no credentials, whatever the feed's configuration holds. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from penstock.config.feed_group import full_name, together
from penstock.feed.window.following import from_record
from penstock.meta.database import MetaDatabase
from penstock.meta.records import Actor, DispatcherRecord, FeedRecord, RetryRecord, SubscribeRecord
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.timestamp import lag_seconds, physical_ms, to_datetime
from penstock.server.doubts.table_control import DoubtedOf, TableControl
from penstock.server.feeds.creation import FeedCreator, FeedDocument, members_of
from penstock.server.feeds.ports import Liveness, RunStatus
from penstock.server.health.feed_watch import FeedProblem
from penstock.server.health.report import ServerHealth
from penstock.server.http.answers import error_body
from penstock.server.http.table_views import feed_tables, find_table, progress_view, range_view, stopped_view, table_view, uncovered
from penstock.server.verify.verification import Verdict
from penstock.settings.masking import mask_text, mask_tree, mask_uri
from penstock.sink.catalog import kind_of
from penstock.target.settings import CONNECTION_SCHEME


class ShownFeeds:
    """What callers are told of feeds, and creating one, for the routes of the API and for SQL alike. Thread safe."""

    def __init__(
        self,
        meta: MetaDatabase,
        creator: FeedCreator,
        table_control: TableControl,
        supervisor: Liveness,
        clock: Clock,
        health: ServerHealth,
        doubted_of: DoubtedOf,
        verification: Callable[[str], dict[str, Any] | None],
        kept_s: int,
    ) -> None:
        """``verification`` gives what verification on a schedule found; ``kept_s`` is for how long history is kept for a feed."""
        self._meta = meta
        self._creator = creator
        self._supervisor = supervisor
        self._clock = clock
        self._health = health
        self._doubted_of = doubted_of
        self._verification = verification
        self._kept_s = kept_s
        self._table_control = table_control

    def create(self, tree: Mapping[str, Any], by: str) -> dict[str, Any]:
        """Create a feed for a caller; return it as it is shown."""
        feeds = self._creator.create_all(tree, Actor(by))
        self._supervisor.wake()
        made = [feed_detail(feed, self._meta.feed_tables(feed.name), None, self._clock, kept_s=self._kept_s) for feed in feeds]
        return made[0] if "sinks" not in tree else _group(str(tree["name"]), made)

    def all(self) -> list[dict[str, Any]]:
        """Return a line for every feed."""
        retries, told, status = self._meta.retries(), self._health.problems(), self._supervisor.status
        feeds = self._meta.list_feeds()
        return [feed_summary(f, status(f.name), self._clock, retries.get(f.name), told.get(f.name)) for f in feeds]

    def show(self, name: str) -> dict[str, Any]:
        """Return everything that may be shown of a feed."""
        meta, name = self._meta, full_name(name)
        if members := members_of(meta, name):
            return _group(name, [self.show(member.name) for member in members])
        feed, retry = meta.get_feed(name), meta.retries().get(name)
        views = self._tables(feed)
        status, problem = self._supervisor.status(name), self._health.problem(name)
        shown = feed_detail(feed, meta.feed_tables(name), status, self._clock, meta.dispatchers(name), views, retry, problem, self._kept_s)
        return shown | {"verification": self._verification(name)}

    def tables(self, name: str) -> list[dict[str, Any]]:
        """Return every table of a feed as it is shown."""
        return self._tables(self._meta.get_feed(full_name(name)))

    def ranges(self, name: str, table: str = "") -> list[dict[str, Any]]:
        """Return how far each range of a feed's tables is, or of one table; no key is shown, because keys are rows."""
        feed = self._meta.get_feed(full_name(name))
        records = self._meta.dispatchers(feed.name)
        live = FeedDocument.of(feed).dispatchers if records is None else [from_record(record) for record in records]
        if table:
            named = find_table(feed_tables(self._meta.feed_tables(feed.name), records), table)
            live = [one for one in live if one.id.table_id in named.table_ids]
        delivered = {one.range_id: one for one in self._meta.range_progress(feed.name)}
        return [range_view(feed, one, delivered.get(str(one.id)), self._clock) for one in live]

    def _tables(self, feed: FeedRecord) -> list[dict[str, Any]]:
        doubted = self._doubted_of(feed)
        tables, records = self._table_control.tables(feed, doubted), self._meta.dispatchers(feed.name) or []
        delivered = {one.table_id: one for one in self._meta.table_progress(feed.name)}
        live = [from_record(record) for record in records]
        joining = {d.id.table_id for d in live if d.with_state}
        views = zip(self._table_control.views(tables, feed, doubted), tables, strict=True)
        shown = [(stopped_view(view, table, live), table) for view, table in views]
        return [view | {"progress": progress_view(feed, table, delivered, joining, self._clock)} for view, table in shown]


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
        **_target(document),
        "config": mask_tree(document.config),
        "dispatchers": len(document.dispatchers if dispatchers is None else dispatchers),
        "tables": shown,
        "uncovered": uncovered(shown, feed.checkpoint_ts),
        "history": _kept(feed, clock, kept_s),
    }


def _group(name: str, members: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a group of feeds: what they have in common, and each of them."""
    states = {key: together(str(member[key]) for member in members) for key in ("state", "requested_state")}
    return {"name": name, **states, "tables": members[0]["tables"], "config": members[0]["config"], "members": members}


def _target(document: FeedDocument) -> dict[str, str]:
    """Return where a feed delivers to, and which kind of target that is; behind a connection the server alone knows."""
    sink = document.config.get("sink")
    uri = str(sink.get("uri", "")) if isinstance(sink, dict) else str(sink or "")
    kind = "connection" if uri.startswith(f"{CONNECTION_SCHEME}:") else kind_of(uri).name
    return {"kind": kind, "target": mask_uri(uri)}


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
