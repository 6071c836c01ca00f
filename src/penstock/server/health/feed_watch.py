"""Knows which feeds have a problem, at what stage, and what to do about it.

A feed that is asked to run and does not, one that makes no progress while there is work, one whose source loops or stands still: each has
a problem with the stage at which it is. Invariants: progress of any kind ends a problem; reading a first state, however long it takes, is
progress as long as parts of it end. What comes and goes is logged once. One thread looks; any may ask. Runs in the server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from penstock.config.server_tree import SupervisorSettings
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord, ReachedState, RequestedState, RetryRecord
from penstock.model.clock import Clock
from penstock.model.errors import CODES
from penstock.server.feeds.ports import RunStatus, SnapshotStatus
from penstock.server.health.watch import ComponentHealth
from penstock.settings.masking import mask_text

log = logging.getLogger(__name__)

_SLOW = 10
"""What shows nothing while it works (the tasks of a window, a part of a first state, a start) has so many times the usual patience."""

_FLUSHES = 2
"""Work waits for a flush, so it stands still only after some of them."""
_FALLS_MAX = 3
"""A source that went back more often than that without getting further is in a loop."""

_HINTS = {
    "failed": "Remove the cause, then run penstock feed resume.",
    "retrying": "It is tried again by itself; remove the cause if it lasts.",
    "claim": "Start a server that captures the feed's source and shares this meta database.",
    "start": "Look at the log of this server, at Spark and at the source: what a run begins with does not answer.",
    "snapshot": "Look at the load of the source and of the executors, and for statements that wait for a lock at the source.",
    "capture": "See the log of this server for what the source answers; run penstock doctor on the source.",
    "plan": "Look at the meta database and at the log of this server.",
    "spark": "Spark gives the job no executor: free cores or memory in the cluster, or lower spark.cores.max of other servers.",
    "deliver": "A window takes long: look at the target and at the load of the executors.",
}


class FeedProblem(msgspec.Struct, frozen=True):
    """What keeps a feed from going on: at what stage, since when, and what to do."""

    stage: str
    text: str
    hint: str
    since_ms: int


class _Seen(msgspec.Struct):
    """How far a feed was at the last look, and since when it stands there."""

    checkpoint_ts: int
    checkpoint_since_s: float
    resolved_ts: int
    resolved_since_s: float
    owned_since_s: float
    begun_since_s: float
    """Since when nothing moved in what a run begins with: starting it, reading the first state."""
    begun: tuple[bool, SnapshotStatus | None] | None = None
    highest_ts: int = 0
    falls: int = 0
    """How often the resolved ts went back since it was at its highest."""


class FeedWatch:
    """Looks at the feeds of one server, and at those that nobody has."""

    def __init__(
        self,
        owner: str,
        meta: MetaDatabase,
        status: Callable[[str], RunStatus | None],
        spark_waits: Callable[[], str],
        accepts: Callable[[FeedRecord], bool],
        settings: SupervisorSettings,
        clock: Clock,
        flush_interval_s: Callable[[FeedRecord], float] = lambda _: 0.0,
    ) -> None:
        """``spark_waits`` says what Spark's jobs wait for, in words, or nothing; ``flush_interval_s`` how long a feed lets work wait."""
        self._owner = owner
        self._meta = meta
        self._status = status
        self._spark_waits = spark_waits
        self._accepts = accepts
        self._settings = settings
        self._clock = clock
        self._flush_interval_s = flush_interval_s
        self._seen: dict[str, _Seen] = {}
        self._problems: dict[str, FeedProblem] = {}

    def problem(self, name: str) -> FeedProblem | None:
        """Return the problem of a feed, or None."""
        return self._problems.get(name)

    def problems(self) -> dict[str, FeedProblem]:
        """Return all problems by feed."""
        return self._problems

    def look(self) -> ComponentHealth:
        """Look at all feeds once."""
        feeds, retries = self._meta.list_feeds(), self._meta.retries()
        mine = [f for f in feeds if f.requested_state is RequestedState.RUNNING and f.owner in {"", self._owner} and self._accepts(f)]
        found: dict[str, FeedProblem] = {}
        for feed in mine:
            problem = self._judge(feed, retries.get(feed.name))
            if problem is not None:
                found[feed.name] = problem
        self._seen = {feed.name: self._seen[feed.name] for feed in mine if feed.name in self._seen}
        self._tell(found)
        self._problems = found
        facts = {feed.name: found[feed.name].stage if feed.name in found else feed.reached_state.value for feed in mine}
        if not found:
            return ComponentHealth(ok=True, facts=facts)
        first = sorted(found)[0]
        return ComponentHealth(ok=False, detail=f"{first}: {found[first].text}", hint=found[first].hint, facts=facts)

    def _judge(self, feed: FeedRecord, retry: RetryRecord | None) -> FeedProblem | None:
        status = self._status(feed.name) if feed.owner == self._owner else None
        seen = self._move(feed, status)
        if feed.reached_state is ReachedState.FAILED:
            hint = CODES[feed.error_code].hint if feed.error_code in CODES else ""
            text = f"[{feed.error_code}] {feed.error_text}"
            return self._problem("failed", text, feed.updated_ms, f"{hint} {_HINTS['failed']}".strip())
        if retry is not None:
            return self._problem("retrying", f"[{feed.error_code}] {feed.error_text}", retry.since_ms)
        if not feed.owner:
            return self._stands("claim", "no server runs it", seen.owned_since_s, 2 * self._settings.lease_s)
        if status is None or status.snapshot is not None or status.starting:
            return self._begins(seen, status)
        return self._captures(seen, status) or self._delivers(feed, seen)

    def _begins(self, seen: _Seen, status: RunStatus | None) -> FeedProblem | None:
        """Return where a run stands that does not deliver yet, if it does."""
        if status is None:
            return None
        stage, text = "start", "its run does not begin"
        if status.snapshot is not None:
            stage, text = "snapshot", f"no part of the first state was read: {status.snapshot.parts_done} of {status.snapshot.parts} are"
        return self._stands(stage, text, seen.begun_since_s, self._settings.stall_s * _SLOW)

    def _captures(self, seen: _Seen, status: RunStatus) -> FeedProblem | None:
        """Return where the source of a running feed stands, if it does."""
        text = status.capture_problems[0] if status.capture_problems else f"the source does not get beyond ts {seen.resolved_ts}"
        return self._stands("capture", text, seen.resolved_since_s, self._settings.stall_s)

    def _delivers(self, feed: FeedRecord, seen: _Seen) -> FeedProblem | None:
        """Return where a feed stands that has work and whose checkpoint does not move."""
        since_s, stall_s = seen.checkpoint_since_s, self._settings.stall_s
        if self._clock.monotonic_s() - since_s < stall_s:
            return None
        stall_s += _FLUSHES * self._flush_interval_s(feed)
        if self._meta.pending_window(feed.name) is None:
            return self._stands("plan", "there is work, and no window is planned", since_s, stall_s)
        waits = self._spark_waits()
        if waits:
            return self._stands("spark", waits, since_s, stall_s)
        return self._stands("deliver", "the window under way is not committed", since_s, stall_s * _SLOW)

    def _move(self, feed: FeedRecord, status: RunStatus | None) -> _Seen:
        """Note how far a feed is. A resolved ts goes back where a table joins; one that keeps going back and rising again loops."""
        now_s, resolved_ts = self._clock.monotonic_s(), status.resolved_ts if status is not None else 0
        seen = self._seen.setdefault(feed.name, _Seen(feed.checkpoint_ts, now_s, resolved_ts, now_s, now_s, now_s))
        begun = (status.starting, status.snapshot) if status is not None else None
        if begun != seen.begun:
            seen.begun, seen.begun_since_s = begun, now_s
        if feed.checkpoint_ts != seen.checkpoint_ts:
            seen.checkpoint_ts, seen.checkpoint_since_s = feed.checkpoint_ts, now_s
        highest = resolved_ts > seen.highest_ts
        rises = highest or (resolved_ts > seen.resolved_ts and seen.falls <= _FALLS_MAX)
        if rises or status is None or status.snapshot is not None:
            seen.resolved_since_s = now_s
        seen.falls = 0 if highest else seen.falls + (resolved_ts < seen.resolved_ts)
        seen.highest_ts, seen.resolved_ts = max(seen.highest_ts, resolved_ts), resolved_ts
        if status is None or status.snapshot is not None or resolved_ts <= feed.checkpoint_ts:
            # There is nothing to deliver yet, so nothing is late.
            seen.checkpoint_since_s = now_s
        if feed.owner:
            seen.owned_since_s = now_s
        return seen

    def _stands(self, stage: str, text: str, since_s: float, bound_s: float) -> FeedProblem | None:
        stood_s = self._clock.monotonic_s() - since_s
        if stood_s < bound_s:
            return None
        return self._problem(stage, f"{text}, for {stood_s:.0f} s", self._clock.now_ms() - round(stood_s * 1000))

    @staticmethod
    def _problem(stage: str, text: str, since_ms: int, hint: str = "") -> FeedProblem:
        return FeedProblem(stage, mask_text(text.partition("\n")[0]), hint or _HINTS[stage], since_ms)

    def _tell(self, found: dict[str, FeedProblem]) -> None:
        for name, problem in found.items():
            before = self._problems.get(name)
            if before is None or before.stage != problem.stage:
                fields = {"feed": name, "stage": problem.stage, "problem": problem.text, "hint": problem.hint}
                log.warning("feed has a problem", extra=fields)
        for name in self._problems.keys() - found.keys():
            log.info("feed goes on", extra={"feed": name})
