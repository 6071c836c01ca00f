"""Watermarks and the wake line: when *enqueued* fires.

Above the high watermark no event is woken any more, until what the spool holds has fallen to the low one: hysteresis, so that a slow
target neither fills the machine nor makes the dispatchers stutter. A transaction that must stay whole and is larger than that gets through
by urging: what waits is then woken once for every flush interval. Invariants: every callback fires once, in the order in which it was
offered; a failure fires none that waits. Callbacks run without the lock, one at a time. Runs on executors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.sink.failure_latch import FailureLatch
from penstock.sink.storage.metrics import SinkCounters

HIGH_RATIO = 0.8
LOW_RATIO = 0.6


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The two watermarks, in bytes."""

    high: int
    low: int

    @classmethod
    def of_quota(cls, quota_bytes: int) -> Watermarks:
        """Return the watermarks of a spool of this size."""
        return cls(int(quota_bytes * HIGH_RATIO), int(quota_bytes * LOW_RATIO))


class WakeLine:
    """Callbacks in order, held back between the watermarks. Thread safe; ``level`` is called with the latch's lock held."""

    def __init__(self, watermarks: Watermarks, latch: FailureLatch, counters: SinkCounters, level: Callable[[], int]) -> None:
        self._watermarks = watermarks
        self._latch = latch
        self._counters = counters
        self._level = level
        self._waiting: deque[Callable[[], None]] = deque()
        self._suppressed = False
        self._urged = 0
        self._firing = False

    @property
    def waiting(self) -> int:
        """Return how many callbacks wait."""
        return len(self._waiting)

    def offer(self, callback: Callable[[], None]) -> None:
        """Fire a callback now, or when the level allows it."""
        with self._latch.lock:
            self._waiting.append(callback)
            if not self._suppressed and self._level() > self._watermarks.high:
                self._suppressed = True
            if self._suppressed:
                self._counters.wake_suppressed += 1
        self.fire()

    def urge(self) -> None:
        """Fire what waits now whatever the level is: nothing of the spool can be written before more events come."""
        with self._latch.lock:
            self._urged = len(self._waiting)
        self.fire()

    def fire(self) -> None:
        """Fire what may fire, unless another thread is at it. Called after the level fell."""
        with self._latch.lock:
            if self._firing:
                return
            self._firing = True
        while (callback := self._next()) is not None:
            callback()

    def _next(self) -> Callable[[], None] | None:
        with self._latch.lock:
            if self._suppressed and self._level() <= self._watermarks.low:
                self._suppressed = False
            if (self._suppressed and not self._urged) or not self._waiting or self._latch.error is not None:
                self._firing = False
                return None
            self._urged = max(0, self._urged - 1)
            self._counters.wake_calls += 1
            return self._waiting.popleft()
