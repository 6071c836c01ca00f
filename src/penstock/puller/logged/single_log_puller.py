"""The puller of an upstream whose tables share one log: one reader, many spans.

Owns the thread that reads the log, the routing of every step to the spans that want it, and the journal of positions. A span gets the rows
of its table and key range above the ts that it has already, and the resolved ts of every position behind them. A span that joins
further back than the reader is makes it read again from there; what the others have already is left out for them. A mark is in the journal
before its ts is resolved. A connection that breaks is opened again from the last position, with bounded backoff; an error that
only an operator can end fails all spans, and their owner subscribes them again. Runs in the log service.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.meta.positions import JournalEntry
from penstock.model.batch import KEY, ChangeBatch, commit_ts_array
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.errors import ErrorKind, InvariantError, PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO, lag_seconds
from penstock.puller.logged.step_capture import SpanStep
from penstock.puller.metrics import LogPullerMetrics
from penstock.puller.ranged.log_puller import SpanProgress
from penstock.puller.ranged.subscribed_span import SpanState
from penstock.puller.span_pipeline import Advance, Consume, OnError, Registration, SpanPipeline
from penstock.source.single_log import LogPosition, LogStep, SingleLogUpstream

_log = logging.getLogger(__name__)
_JOURNALED_MAX = 65_536


@dataclass(frozen=True)
class SingleLogPullerSettings:
    """Intervals and backoffs of the reader."""

    retry_min_s: float = 0.1
    retry_max_s: float = 10.0
    advance_interval_s: float = 0.1
    """How often a resolved ts leaves at most while changes arrive."""
    journal_interval_s: float = 1.0
    journal_bytes: int = 64 << 20
    gather_s: float = 0.05
    """How long the reader waits for further spans before it reads again from further back."""
    settle_timeout_s: float = 120.0
    confirm_interval_s: float = 5.0
    """How often the upstream is told what is durable here; a store makes a resolved ts durable well within this time."""


class Journal(Protocol):
    """Where positions, marks and table versions are kept; see ``meta/positions.py``."""

    def save(self, entry: JournalEntry) -> None:
        """Make a position or mark durable."""

    def start_for(self, ts: int) -> JournalEntry | None:
        """Return the newest position at or below a ts."""

    def first(self) -> JournalEntry | None:
        """Return the oldest position."""

    def marks_from(self, ts: int) -> list[JournalEntry]:
        """Return the marks above a ts, oldest first."""

    def save_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Make table versions durable."""

    def schemas(self) -> list[TableSchema]:
        """Return every table version that was seen."""


class _Subscription:
    """One span. ``handed_ts`` is the ts up to which everything was handed over; the puller's lock guards the state."""

    def __init__(self, span: Span, start_ts: int, on_failed: OnError | None) -> None:
        self.span = span
        self.handed_ts = start_ts
        self.emitted_ts = start_ts
        self.advanced_ts = start_ts
        """Up to here the store has everything."""
        self.registration: Registration
        self.state = SpanState.RUNNING
        self.last_error: PenstockError | None = None
        self.joined = False
        self._on_failed = on_failed

    def fail(self, error: PenstockError) -> None:
        """Stop with an error and tell the owner, once."""
        if self.state is not SpanState.RUNNING:
            return
        self.state = SpanState.FAILED
        self.last_error = error
        if self._on_failed is not None:
            self._on_failed(error)


class SingleLogPuller:
    """Reads one log for many spans. Thread safe."""

    def __init__(
        self,
        upstream: SingleLogUpstream,
        pipeline: SpanPipeline,
        journal: Journal,
        settings: SingleLogPullerSettings | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        metrics: LogPullerMetrics | None = None,
        publish: Callable[[Sequence[TableSchema]], None] | None = None,
        needed_from: Callable[[], int] | None = None,
    ) -> None:
        """``publish`` makes new table versions known to the store before rows of them arrive; ``needed_from`` as for the log service."""
        self.settings = settings or SingleLogPullerSettings()
        self.metrics = metrics or LogPullerMetrics()
        self._upstream = upstream
        self._pipeline = pipeline
        self._journal = journal
        self._publish = publish
        self._needed_from = needed_from
        self._clock = clock or SystemClock()
        self._rng = rng or system_random()
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._spans: dict[int, _Subscription] = {}
        self._by_table: dict[int, tuple[_Subscription, ...]] = {}
        self._position: LogPosition | None = None
        self._start: LogPosition | None = None
        """Where the reader is about to begin; only its thread looks at it."""
        self._failures = 0
        self._last_error: PenstockError | None = None
        self._journaled_s = float("-inf")
        self._journal_weight = 0
        self._emitted_s = float("-inf")
        self._journaled: deque[LogPosition] = deque(maxlen=_JOURNALED_MAX)
        self._confirmed_s = self._clock.monotonic_s()
        self._durable_ts = 0
        self._stop = threading.Event()
        self._again = threading.Event()
        self._wake = threading.Event()
        upstream.adopt_schemas(journal.schemas())
        self._thread = threading.Thread(target=self._run, name="single-log-puller", daemon=True)
        self._thread.start()

    def subscribe(self, span: Span, start_ts: int, consume: Consume, advance: Advance, on_failed: OnError | None = None) -> int:
        """Begin to give a span what lies above ``start_ts``; the same promises as ``LogPuller.subscribe``, with ``SpanStep`` payloads."""
        with self._lock:
            if self._stop.is_set():
                raise PenstockError("CANCELLED", "the log puller is closed")
            if span.span_id in self._spans:
                raise InvariantError(f"span {span.span_id} is subscribed twice")
        subscription = _Subscription(span, start_ts, on_failed)

        def advanced(ts: int) -> None:
            advance(ts)
            subscription.advanced_ts = ts

        subscription.registration = self._pipeline.register(span.span_id, consume, advanced, subscription.fail)
        with self._lock:
            self._spans[span.span_id] = subscription
        self._wake.set()
        return span.span_id

    def keep_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Keep table versions in the journal, for the upstream to take over after a restart. Any thread may call it."""
        self._journal.save_schemas(versions)

    def unsubscribe(self, span_id: int) -> None:
        """Stop giving a span anything: neither of its functions is called after this returns. Does nothing if it is not subscribed."""
        with self._lock:
            subscription = self._spans.pop(span_id, None)
            self._route()
        if subscription is not None:
            subscription.state = SpanState.STOPPED
            self._pipeline.unregister(subscription.registration)

    def progress(self, span_id: int) -> SpanProgress | None:
        """Return where a subscription stands, None if there is none."""
        with self._lock:
            found = self._spans.get(span_id)
            error = (found.last_error if found else None) or self._last_error
            if found is None:
                return None
            reading = int(found.joined and self._last_error is None)
            return SpanProgress(found.emitted_ts, reading, 1 - reading, found.state, str(error) if error else "")

    def settled_ts(self) -> int:
        """Wait until the reader has passed what the log holds now; return a ts at or above every commit acknowledged before the call."""
        end = self._upstream.log_end()
        deadline_s = self._clock.monotonic_s() + self.settings.settle_timeout_s
        with self._moved:
            while not self._stop.is_set():
                if self._position is not None and self._upstream.reached(self._position.text, end):
                    return self._position.ts
                if self._clock.monotonic_s() > deadline_s:
                    raise self._last_error or PenstockError("CONGESTED", f"the log is not read up to {end} yet")
                self._moved.wait(1.0)
        raise PenstockError("CANCELLED", "the log puller is closed")

    def begin_again(self) -> int:
        """Note the end of the log as a place from which it can be read, because it was purged before; return its ts.

        Spans that begin there, or later, go on; what lies between the purged part and the end is in no log that anyone captures.
        """
        position = self._upstream.first_position()
        with self._lock:
            lowest = max([position.ts, *(s.handed_ts + 1 for s in self._spans.values())])
            if self._position is not None:
                lowest = max(lowest, self._position.ts + 1)
        self._journal.save(JournalEntry(lowest, position.text, mark=True))
        _log.warning("single log puller: capture begins again at the end of the log", extra={"ts": lowest})
        return lowest

    def close(self) -> None:
        """Stop reading. The pipeline's owner closes the pipeline before, so that nothing waits for its quota."""
        self._stop.set()
        self._again.set()
        self._wake.set()
        with self._moved:
            self._moved.notify_all()
        self._thread.join()

    # -- the reader's thread

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            with self._lock:
                anyone = any(s.state is SpanState.RUNNING for s in self._spans.values())
            if not anyone:
                self._clock.wait(self._wake, 3600.0)
                continue
            try:
                self._read()
                error = None
            except PenstockError as failed:
                error = failed
            except Exception as failed:  # noqa: BLE001 - whatever a driver raises must not end the thread in silence
                _log.exception("single log puller: the reader failed")
                error = PenstockError("UPSTREAM_UNREACHABLE", f"{type(failed).__name__}: {failed}")
            if error is not None and not self._stop.is_set():
                self._on_error(error)

    def _on_error(self, error: PenstockError) -> None:
        self._failures += 1
        self.metrics.errors.labels(error.code).inc()
        _log.warning("single log puller: the log broke off", extra={"code": error.code, "failures": self._failures})
        with self._lock:
            self._last_error = error
            subscriptions = list(self._spans.values())
        if error.kind is not ErrorKind.TRANSIENT:
            for subscription in self._hit_by(error, subscriptions):
                subscription.fail(error)
        longest_s = min(self.settings.retry_max_s, self.settings.retry_min_s * 2.0 ** min(self._failures - 1, 20))
        self._clock.wait(self._stop, longest_s * (0.75 + self._rng.random() / 4))

    def _hit_by(self, error: PenstockError, subscriptions: Sequence[_Subscription]) -> list[_Subscription]:
        """Return the spans that an error ends: of a purged log those that need the place that is gone, otherwise all."""
        start, self._start = self._start, None
        if error.code != "LOG_PURGED" or start is None:
            return list(subscriptions)
        needed = {s.span.span_id: self._journal.start_for(s.handed_ts) for s in subscriptions}
        return [s for s in subscriptions if (place := needed[s.span.span_id]) is None or place.ts <= start.ts]

    def _read(self) -> None:
        """Read from the place that serves the span furthest back, until a span joins that is further back still."""
        start = self._join_all()
        if start is None:
            return
        marks = [LogPosition(m.ts, m.text) for m in self._journal.marks_from(start.ts)]
        self._again.clear()
        if self._stop.is_set():
            # Closed between the two: the flag that would have ended the reader is the one that was just taken back.
            return
        self._start = start
        steps = self._upstream.read_log(start, marks, self._is_wanted, self._again)
        with self._moved:
            self._position = start
            self._moved.notify_all()
        for step in steps:
            # The place was there: whatever breaks from now on concerns everyone.
            self._start = None
            if self._again.is_set():
                return
            self._give(step)
            self._failures = 0
            self._last_error = None
            if self._wake.is_set():
                self._wake.clear()
                if self._must_go_back():
                    return

    def _join_all(self) -> LogPosition | None:
        """Let every span join, and return where to read from; spans that the journal does not reach back to fail."""
        first = self._journal.first()
        if first is None:
            position = self._upstream.first_position()
            first = JournalEntry(position.ts, position.text)
            self._journal.save_schemas(self._upstream.list_tables())
            self._journal.save(first)
        with self._lock:
            running = [s for s in self._spans.values() if s.state is SpanState.RUNNING]
        for subscription in running:
            if subscription.handed_ts == TS_ZERO or subscription.span == DDL_SPAN:
                # Nothing is older than the beginning of capture.
                subscription.handed_ts = max(subscription.handed_ts, first.ts)
            elif subscription.handed_ts < first.ts:
                subscription.fail(PenstockError("LOG_PURGED", f"span {subscription.span.span_id}: capture begins after its resolved ts"))
        with self._lock:
            running = [s for s in self._spans.values() if s.state is SpanState.RUNNING]
            if not running:
                return None
            for subscription in running:
                subscription.joined = True
            self._route()
            lowest = min(s.handed_ts for s in running)
        found = self._journal.start_for(lowest) or first
        _log.info("single log puller: reading", extra={"ts": found.ts, "spans": len(running)})
        return LogPosition(found.ts, found.text)

    def _must_go_back(self) -> bool:
        """Let new spans join where they are; return whether one needs what the reader has passed already."""
        with self._lock:
            new = [s for s in self._spans.values() if not s.joined and s.state is SpanState.RUNNING]
            at = self._position.ts if self._position is not None else 0
            if all(s.handed_ts >= at for s in new):
                for subscription in new:
                    subscription.joined = True
                self._route()
                return False
        self._clock.wait(self._stop, self.settings.gather_s)
        return True

    def _route(self) -> None:
        """Recompute who wants which table; under the lock."""
        by_table: dict[int, list[_Subscription]] = {}
        for subscription in self._spans.values():
            if subscription.joined and subscription.state is SpanState.RUNNING:
                by_table.setdefault(subscription.span.table_id, []).append(subscription)
        self._by_table = {table: tuple(found) for table, found in by_table.items()}

    def _is_wanted(self, table_id: int) -> bool:
        return table_id in self._by_table

    def _give(self, step: LogStep) -> None:
        """Hand a step to its spans; then, in this order: the journal, and the resolved ts that relies on it."""
        routes = self._by_table
        if step.schemas:
            self._journal.save_schemas(step.schemas)
        if step.ddls:
            versions = [table for ddl in step.ddls for table in ddl.tables]
            self._journal.save_schemas(versions)
            if self._publish is not None and versions:
                self._publish(versions)
            weight = sum(len(d.query) + 256 for d in step.ddls)
            for subscription in routes.get(DDL_SPAN.table_id, ()):
                ddls = tuple(d for d in step.ddls if d.commit_ts > subscription.handed_ts)
                if ddls:
                    self._enqueue(subscription, SpanStep(ddls=ddls, nbytes=weight))
        for table_id in dict.fromkeys(c.header.table_id for c in step.changes):
            changes = [c for c in step.changes if c.header.table_id == table_id]
            for subscription in routes.get(table_id, ()):
                mine = tuple(_part(c, subscription.span, subscription.handed_ts) for c in changes)
                kept = tuple(c for c in mine if c is not None)
                if kept:
                    self._enqueue(subscription, SpanStep(kept, nbytes=sum(c.header.nbytes for c in kept)))
        if step.position is not None:
            self._resolve(step, step.position, routes)

    def _enqueue(self, subscription: _Subscription, payload: SpanStep) -> None:
        if subscription.state is SpanState.RUNNING and not self._pipeline.enqueue_data(subscription.registration, payload):
            self._again.set()

    def _resolve(self, step: LogStep, position: LogPosition, routes: dict[int, tuple[_Subscription, ...]]) -> None:
        now_s = self._clock.monotonic_s()
        self._journal_weight += step.nbytes
        due = now_s - self._journaled_s >= self.settings.journal_interval_s or self._journal_weight >= self.settings.journal_bytes
        if step.mark or due:
            self._journal.save(JournalEntry(position.ts, position.text, step.mark))
            self._journaled.append(position)
            self._journaled_s, self._journal_weight = now_s, 0
        emit = step.mark or now_s - self._emitted_s >= self.settings.advance_interval_s
        for subscriptions in routes.values():
            for subscription in subscriptions:
                subscription.handed_ts = max(subscription.handed_ts, position.ts)
                if emit and position.ts > subscription.emitted_ts and subscription.state is SpanState.RUNNING:
                    subscription.emitted_ts = position.ts
                    self._pipeline.enqueue_resolved(subscription.registration, position.ts)
        if emit:
            self._emitted_s = now_s
            self.metrics.resolved_lag.set(lag_seconds(position.ts, self._clock))
        if now_s - self._confirmed_s >= self.settings.confirm_interval_s:
            self._confirm(now_s)
        with self._moved:
            self._position = position
            self._moved.notify_all()

    def _confirm(self, now_s: float) -> None:
        """Tell the upstream the newest position in the journal from which no span will ever be read again.

        What the spans had reached one interval ago counts, because by now it is durable with its resolved ts. A span that failed and waits
        to be read again counts too, and so does what no span asks for yet: feeds that a server has not begun with, or would take over.
        """
        newest: LogPosition | None = None
        while self._journaled and self._journaled[0].ts <= self._durable_ts:
            newest = self._journaled.popleft()
        if newest is not None:
            self._upstream.confirm(newest)
        self._confirmed_s = now_s
        with self._lock:
            durable_ts = min((s.advanced_ts for s in self._spans.values()), default=TS_ZERO)
        self._durable_ts = min(durable_ts, self._needed_from()) if self._needed_from is not None else durable_ts


def _part(change: ChangeBatch, span: Span, above_ts: int) -> ChangeBatch | None:
    """Return the rows of a change that lie in a span above a ts, under the span's id."""
    records = change.records
    if change.header.max_ts <= above_ts:
        return None
    if change.header.min_ts <= above_ts:
        records = records.slice(int(np.searchsorted(commit_ts_array(records), np.uint64(above_ts), side="right")))
    if span.start_key or span.end_key:
        inside = _inside(records.column(KEY), span)
        if not bool(inside.all()):
            records = records.filter(pa.array(inside))
    if records.num_rows == 0:
        return None
    header = msgspec.structs.replace(change.header, span_id=span.span_id)
    if records is not change.records:
        ts = commit_ts_array(records)
        share = max(1, header.nbytes * records.num_rows // header.rows)
        header = msgspec.structs.replace(header, min_ts=int(ts.min()), max_ts=int(ts.max()), rows=records.num_rows, nbytes=share)
    return ChangeBatch(header, records)


def _inside(keys: pa.Array, span: Span) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    inside = np.ones(len(keys), dtype=np.bool_)
    if span.start_key:
        inside &= pc.greater_equal(keys, pa.scalar(span.start_key, pa.binary())).to_numpy(zero_copy_only=False)
    if span.end_key:
        inside &= pc.less(keys, pa.scalar(span.end_key, pa.binary())).to_numpy(zero_copy_only=False)
    return inside
