"""Which span gets what of a log's step, and up to where each has everything.

Owns the subscribed spans and their way to the pipeline. A span gets the rows of its table and key range above the ts that it has already,
and the resolved ts of every position behind them. After a start the rows between its journaled place and its ts come once more, because
the store can tell then whether it lacks one. ``handed_ts`` moves only when everything of a step was taken: a refusal raises, and the step
counts as never given. Subscribing and unsubscribing come from any thread, the rest from the reader's; a span that is held gets corrections
from another one (``hand_over.py``). Runs in the log service.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import KEY, ChangeBatch, commit_ts_array
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.timestamp import TS_ZERO
from penstock.puller.contract import SpanState
from penstock.puller.logged.span_step import SpanStep
from penstock.puller.span_pipeline import Advance, Consume, Finish, OnError, Registration, SpanPipeline
from penstock.source.single_log import LogStep


class RefusedError(Exception):
    """The pipeline takes nothing more, because it closes: the step ends there, and nothing of it counts as handed over."""


class Subscription:
    """One span. ``handed_ts`` is the ts up to which everything was handed over."""

    def __init__(self, span: Span, start_ts: int, on_failed: OnError | None) -> None:
        self.span = span
        self.start_ts = start_ts
        self.handed_ts = start_ts
        self.emitted_ts = start_ts
        self.advanced_ts = start_ts
        """Up to here the store has everything."""
        self.registration: Registration
        self.state = SpanState.RUNNING
        self.last_error: PenstockError | None = None
        self.joined = False
        self.held = False
        """Whether nothing is resolved for now, because corrections are on their way."""
        self.checked_from_ts: int | None = None
        """Rows above this ts, up to where the span began, are given once more when they are read again: the store tells if it lacks one."""
        self._on_failed = on_failed

    @property
    def given_above_ts(self) -> int:
        """Return above which ts rows are given: what was handed over already, but for the first rows after a start."""
        if self.checked_from_ts is None or self.handed_ts > self.start_ts:
            return self.handed_ts
        return min(self.checked_from_ts, self.handed_ts)

    def fail(self, error: PenstockError) -> None:
        """Stop with an error and tell the owner, once."""
        if self.state is not SpanState.RUNNING:
            return
        self.state = SpanState.FAILED
        self.last_error = error
        if self._on_failed is not None:
            self._on_failed(error)


class SpanRoutes:
    """The subscribed spans of one log. Thread safe."""

    def __init__(self, pipeline: SpanPipeline) -> None:
        self._pipeline = pipeline
        self._lock = threading.Lock()
        self._resolving = threading.Lock()
        self._spans: dict[int, Subscription] = {}
        self._by_table: dict[int, tuple[Subscription, ...]] = {}

    def add(self, span: Span, start_ts: int, consume: Consume, advance: Advance, on_failed: OnError | None) -> None:
        """Register a span with the pipeline; it joins when the reader lets it."""
        with self._lock:
            if span.span_id in self._spans:
                raise InvariantError(f"span {span.span_id} is subscribed twice")
        subscription = Subscription(span, start_ts, on_failed)

        def advanced(ts: int) -> None:
            advance(ts)
            subscription.advanced_ts = ts

        def taken(step: SpanStep, finish: Finish) -> bool:
            noted = step.on_persisted
            if noted is None:
                return consume(step, finish)

            def persisted() -> None:
                finish()
                noted()

            return consume(step, persisted)

        subscription.registration = self._pipeline.register(span.span_id, taken, advanced, subscription.fail)
        with self._lock:
            self._spans[span.span_id] = subscription

    def remove(self, span_id: int) -> None:
        """End a subscription: neither of its functions is called after this returns."""
        with self._lock:
            subscription = self._spans.pop(span_id, None)
            self._route()
        if subscription is not None:
            subscription.state = SpanState.STOPPED
            self._pipeline.unregister(subscription.registration)

    def get(self, span_id: int) -> Subscription | None:
        """Return a subscription, None if there is none."""
        with self._lock:
            return self._spans.get(span_id)

    def all(self) -> list[Subscription]:
        """Return every subscription, in whatever state."""
        with self._lock:
            return list(self._spans.values())

    def running(self) -> list[Subscription]:
        """Return those that want the log."""
        return [s for s in self.all() if s.state is SpanState.RUNNING]

    def of_table(self, table_id: int) -> list[Subscription]:
        """Return the subscriptions of a table, in whatever state."""
        return [s for s in self.all() if s.span.table_id == table_id]

    def advanced_ts(self) -> int:
        """Return up to where the store has everything of every span; those that failed count too."""
        return min((s.advanced_ts for s in self.all()), default=TS_ZERO)

    def emitted_ts(self) -> int | None:
        """Return the resolved ts of the span that is furthest behind, or where it begins; None where there is none."""
        return min((ts for s in self.all() if (ts := s.emitted_ts or s.handed_ts)), default=None)

    def wants(self, table_id: int) -> bool:
        """Return whether a span that joined has this table."""
        return table_id in self._by_table

    def join(self, subscriptions: Sequence[Subscription]) -> None:
        """Let spans have what comes from now on."""
        with self._lock:
            for subscription in subscriptions:
                subscription.joined = True
            self._route()

    def give(self, step: LogStep) -> None:
        """Hand the rows and DDLs of a step to its spans; raises ``RefusedError`` where one is not taken."""
        routes = self._by_table
        weight = sum(len(d.query) + 256 for d in step.ddls)
        for subscription in routes.get(DDL_SPAN.table_id, ()) if step.ddls else ():
            ddls = tuple(d for d in step.ddls if d.commit_ts > subscription.handed_ts)
            if ddls:
                self.enqueue(subscription, SpanStep(ddls=ddls, nbytes=weight))
        for table_id in dict.fromkeys(c.header.table_id for c in step.changes):
            changes = [c for c in step.changes if c.header.table_id == table_id]
            for subscription in routes.get(table_id, ()):
                mine = tuple(_part(c, subscription.span, subscription.given_above_ts) for c in changes)
                kept = tuple(c for c in mine if c is not None)
                if kept:
                    self.enqueue(subscription, SpanStep(kept, nbytes=sum(c.header.nbytes for c in kept)))

    def enqueue(self, subscription: Subscription, payload: SpanStep) -> None:
        """Hand one span its part; raises ``RefusedError`` where the pipeline does not take it."""
        if subscription.state is SpanState.RUNNING and not self._pipeline.enqueue_data(subscription.registration, payload):
            raise RefusedError

    def handed(self, ts: int, emit: bool) -> None:
        """Note that every joined span has everything up to a ts, and resolve it if it is to be emitted."""
        for subscriptions in self._by_table.values():
            for subscription in subscriptions:
                subscription.handed_ts = max(subscription.handed_ts, ts)
        if emit:
            with self._resolving:
                for subscriptions in self._by_table.values():
                    for subscription in subscriptions:
                        if not subscription.held:
                            self._resolve(subscription, ts)

    def let_go(self, subscription: Subscription, resolve: bool) -> None:
        """Hold a span no longer; where its corrections are all there, resolve what the reader could not meanwhile."""
        with self._resolving:
            subscription.held = False
            if resolve:
                self._resolve(subscription, subscription.handed_ts)

    def _resolve(self, subscription: Subscription, ts: int) -> None:
        if ts > subscription.emitted_ts and subscription.state is SpanState.RUNNING:
            subscription.emitted_ts = ts
            self._pipeline.enqueue_resolved(subscription.registration, ts)

    def _route(self) -> None:
        """Recompute who wants which table; under the lock."""
        by_table: dict[int, list[Subscription]] = {}
        for subscription in self._spans.values():
            if subscription.joined and subscription.state is SpanState.RUNNING:
                by_table.setdefault(subscription.span.table_id, []).append(subscription)
        self._by_table = {table: tuple(found) for table, found in by_table.items()}


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
