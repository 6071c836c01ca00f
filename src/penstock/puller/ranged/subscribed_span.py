"""A subscribed span: its range lock, its place in the pipeline, and the resolved ts that was emitted last.

Owns the throttle: a resolved ts leaves at most once per advance interval, and only if it is larger than the last one. Runs in the log
service; every method takes the span's lock, callers hold none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import msgspec

from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.puller.contract import SpanState
from penstock.puller.ranged.range_lock import PieceState, RangeLock, RangePiece
from penstock.puller.span_pipeline import Registration


class Survey(msgspec.Struct, frozen=True):
    """Pieces that wait for a region, whose resolved ts lags; memory of delivered keys that no resolved ts covers."""

    waiting: int
    lagging: int
    delivered_bytes: int


class SubscribedSpan:
    """One subscription of one span. ``request_id`` is new for every subscription, so messages of an older one are recognised."""

    def __init__(
        self,
        span: Span,
        request_id: int,
        start_ts: int,
        keys: tuple[bytes, bytes],
        advance_interval_s: float,
        on_failed: Callable[[PenstockError], None] | None,
    ) -> None:
        self.span = span
        self.sub_id = span.span_id
        self.request_id = request_id
        self.start_ts = start_ts
        self.registration: Registration
        self.last_error: PenstockError | None = None
        self.due_s: float | None = None
        """When the puller looks its ranges up next; the puller's own lock guards it."""
        self.lookup_failures = 0
        self._state = SpanState.RUNNING
        self._ranges = RangeLock(keys[0], keys[1], start_ts)
        self._emitted_ts = start_ts
        self._emitted_at_s = float("-inf")
        self._advance_interval_s = advance_interval_s
        self._on_failed = on_failed
        self._lock = threading.Lock()

    @property
    def state(self) -> SpanState:
        """Return whether it is being pulled."""
        return self._state

    @property
    def running(self) -> bool:
        """Return whether events of the span still matter."""
        return self._state is SpanState.RUNNING

    @property
    def emitted_ts(self) -> int:
        """Return the resolved ts that was emitted last."""
        return self._emitted_ts

    def lock_range(self, start_key: bytes, end_key: bytes, region_id: int, now_s: float) -> RangePiece | None:
        """Lock a range for a region; None if a part is locked, or failed so recently that it must wait."""
        with self._lock:
            if not self.running:
                return None
            return self._ranges.lock(start_key, end_key, region_id, now_s)

    def unlock_range(self, piece: RangePiece, delay_s: Callable[[int], float], now_s: float) -> float:
        """Give a piece back and return the seconds after which it is tried again, growing with each failure in a row."""
        with self._lock:
            if piece.state is not PieceState.LOCKED:
                return 0.0
            self._ranges.unlock(piece)
            piece.failures += 1
            wait_s = delay_s(piece.failures)
            piece.not_before_s = now_s + wait_s
            return wait_s

    def next_retry_s(self, now_s: float) -> float | None:
        """Return the seconds until the first unlocked piece may be tried, None if everything is locked."""
        with self._lock:
            waits = [max(0.0, p.not_before_s - now_s) for p in self._ranges.unlocked()]
            return min(waits) if waits else None

    def resolve(self, pieces: Sequence[RangePiece], ts: int, now_s: float) -> int | None:
        """Apply a resolved ts to the pieces of its regions (``update_region_resolved_ts``).

        Returns the span's resolved ts to emit (``maybe_advance_span_resolved_ts``): at most one, if it grew and the advance interval has
        passed since the last one.
        """
        with self._lock:
            for piece in pieces:
                if piece.state is PieceState.LOCKED:
                    piece.raise_resolved(ts)
            if now_s - self._emitted_at_s < self._advance_interval_s:
                return None
            span_ts = self._ranges.resolved_ts()
            if span_ts <= self._emitted_ts or self._state is not SpanState.RUNNING:
                return None
            self._emitted_ts = span_ts
            self._emitted_at_s = now_s
            return span_ts

    def resolved_ts(self) -> int:
        """Return the smallest resolved ts over all pieces, emitted or not."""
        with self._lock:
            return self._ranges.resolved_ts()

    def regions(self) -> tuple[int, int]:
        """Return how many pieces are being pulled, and how many wait for a region."""
        with self._lock:
            pieces = self._ranges.pieces()
            locked = sum(p.state is PieceState.LOCKED for p in pieces)
            return locked, len(pieces) - locked

    def survey(self, below_ts: int) -> Survey:
        """Return what the metrics show of the span."""
        with self._lock:
            pieces = self._ranges.pieces()
            locked = lagging = delivered_bytes = 0
            for piece in pieces:
                locked += piece.state is PieceState.LOCKED
                lagging += piece.resolved_ts < below_ts
                delivered_bytes += piece.delivered.nbytes
                for prior in piece.priors:
                    delivered_bytes += prior.nbytes
            return Survey(len(pieces) - locked, lagging, delivered_bytes)

    def check(self) -> None:
        """Raise unless the pieces partition the span."""
        with self._lock:
            self._ranges.check()

    def fail(self, error: PenstockError) -> None:
        """Stop the span with an error and tell its owner, once."""
        with self._lock:
            if not self.running:
                return
            self._state = SpanState.FAILED
            self.last_error = error
        if self._on_failed is not None:
            self._on_failed(error)

    def stop(self) -> None:
        """Mark the span unsubscribed."""
        with self._lock:
            self._state = SpanState.STOPPED
