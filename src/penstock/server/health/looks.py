"""How each component of a server is looked at: meta database, upstream, Spark, event store.

Invariant: a look costs next to nothing: the upstream and the store are judged by what their users met, not asked again. Runs in the server.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.feed.spark.load import SparkLoad
from penstock.meta.database import MetaDatabase
from penstock.model.clock import Clock
from penstock.model.errors import CODES, PenstockError
from penstock.puller.log_service import CaptureState, SpanStatus
from penstock.server.health.watch import ComponentHealth
from penstock.settings.masking import mask_text

_FREE_BYTES_MIN = 256 << 20
_STORE_CODES = frozenset({"STORE_FAILED", "WAL_CORRUPT", "OBJECT_CORRUPT", "OBJECT_MISSING", "OBJECT_UNAVAILABLE", "STORE_UNREACHABLE"})
_NO_EXECUTOR_S = 15.0
"""As long as Spark itself waits before it warns of a job without resources."""


def meta_look(meta: MetaDatabase, failure: Callable[[], PenstockError | None] = lambda: None) -> ComponentHealth:
    """Return whether the meta database answers; ``failure`` is what whoever writes to it met last.

    One that can be read and not written is no meta database: a disk that is full, a replica, a lock that somebody holds.
    """
    meta.retries()
    error = failure()
    return ComponentHealth(ok=True) if error is None else ComponentHealth(ok=False, detail=mask_text(str(error)), hint=error.hint)


class CaptureLook:
    """Judges the upstream and the store by what the captures of spans met: one that failed is well again when it has moved."""

    def __init__(self, status: Callable[[], Sequence[SpanStatus]], directory: Path) -> None:
        self._status = status
        self._directory = directory
        self._failing: dict[int, SpanStatus] = {}
        self._moved: dict[int, SpanStatus] = {}

    def upstream(self) -> ComponentHealth:
        """Return whether the upstream gives what it is asked for."""
        spans = self._look()
        return self._judged(spans, [s for s in self._failing.values() if _code(s).startswith("UPSTREAM_")])

    def store(self) -> ComponentHealth:
        """Return whether the event store takes what it is given, and has room for more."""
        health = self._judged(self._look(), [s for s in self._failing.values() if _code(s) in _STORE_CODES])
        free = shutil.disk_usage(self._directory).free
        if health.ok and free < _FREE_BYTES_MIN:
            return ComponentHealth(
                ok=False, detail=f"{free >> 20} MiB are left for it", hint="Free disk space.", facts={"free_bytes": free}
            )
        return ComponentHealth(health.ok, health.detail, health.hint, {**health.facts, "free_bytes": free})

    def _look(self) -> Sequence[SpanStatus]:
        spans = self._status()
        known = {span.span_id: span for span in spans}
        stood = [old for old in self._failing.values() if old.span_id in known and known[old.span_id].resolved_ts <= old.resolved_ts]
        failing = [span for span in spans if span.state is CaptureState.RETRYING or self._stands(span)]
        self._failing = {span.span_id: span for span in (*stood, *failing)}
        self._moved = {span_id: span for span_id, span in self._moved.items() if span_id in known}
        return spans

    def _stands(self, span: SpanStatus) -> bool:
        """Return whether a span met an error since it moved: the reader of a log tries again without giving its spans up."""
        moved = self._moved.get(span.span_id)
        if moved is None or moved.resolved_ts != span.resolved_ts:
            # What it met before that is over; an error that lasts comes again, as another one.
            self._moved[span.span_id] = span
            return False
        return span.last_error is not None and span.last_error is not moved.last_error

    @staticmethod
    def _judged(spans: Sequence[SpanStatus], failing: Sequence[SpanStatus]) -> ComponentHealth:
        facts = {"spans": len(spans), "failing": len(failing)}
        if not failing:
            return ComponentHealth(ok=True, facts=facts)
        return ComponentHealth(ok=False, detail=mask_text(str(failing[0].last_error)), hint=CODES[_code(failing[0])].hint, facts=facts)


def closed_look(failure: PenstockError | None) -> ComponentHealth:
    """Return how a source fares that is not open: well, unless it could not be opened."""
    facts = {"open": False}
    if failure is None:
        return ComponentHealth(ok=True, facts=facts)
    return ComponentHealth(ok=False, detail=mask_text(str(failure)), hint=failure.hint, facts=facts)


class SparkLook:
    """Judges Spark: whether it lives, whether its jobs get executors, and whether those can read changes."""

    def __init__(
        self, lost: Callable[[], int | None], load: Callable[[], SparkLoad], stall_s: float, clock: Clock, *, here_only: bool = False
    ) -> None:
        """``here_only`` says that the event store is reached on this machine alone."""
        self._here_only = here_only
        self._lost = lost
        self._load = load
        self._stall_s = stall_s
        self._clock = clock
        self._waiting_since_s: dict[int, float] = {}
        self._words = ""

    def waits(self) -> str:
        """Return what jobs wait for, in words, as it was at the last look; empty where none waits for long."""
        return self._words

    def look(self) -> ComponentHealth:
        """Look once."""
        code = self._lost()
        if code is not None:
            return ComponentHealth(ok=False, detail=f"Spark's JVM ended with {code}", hint=CODES["SPARK_LOST"].hint)
        load, now_s = self._load(), self._clock.monotonic_s()
        self._waiting_since_s = {job: self._waiting_since_s.get(job, now_s) for job in load.waiting}
        longest_s = max((now_s - since_s for since_s in self._waiting_since_s.values()), default=0.0)
        stuck = bool(load.waiting) and longest_s >= (self._stall_s if load.executors else _NO_EXECUTOR_S)
        facts: dict[str, Any] = {"executors": load.executors, "jobs": load.jobs, "jobs_waiting": len(load.waiting)}
        facts |= {"running": list(load.running)} if load.running else {}
        self._words = f"{len(load.waiting)} jobs wait for an executor for {longest_s:.0f} s, {load.executors} are granted" if stuck else ""
        if stuck:
            return ComponentHealth(ok=False, detail=self._words, hint=_NO_EXECUTOR_HINT, facts=facts)
        if self._here_only and load.elsewhere:
            detail = f"executors on {', '.join(load.elsewhere[:_HOSTS_SHOWN])} do not reach the event store, which is served on loopback"
            return ComponentHealth(ok=False, detail=detail, hint=_FLIGHT_HINT, facts=facts)
        return ComponentHealth(ok=True, facts=facts)


_HOSTS_SHOWN = 3
_FLIGHT_HINT = "Give flight-host, the address of this machine that executors reach, or 0.0.0.0; see docs/cluster.md."
_NO_EXECUTOR_HINT = "Free cores or memory in the cluster, or lower spark.cores.max of the servers and other applications in it."


def _code(span: SpanStatus) -> str:
    return span.last_error.code if span.last_error is not None else ""
