"""The counters of the storage sink in one task.

A task counts by itself; its ``TaskReport`` travels to the driver in the commit message, and ``penstock.sink.metrics`` adds the reports up
and shows them. Runs on executors.
"""

from __future__ import annotations

import bisect
import threading
from dataclasses import dataclass, field

from penstock.model.metrics.names import (
    DDL_AFFECTED,
    FLUSH_COUNT,
    FLUSH_DURATION,
    FLUSH_FILE_SIZE,
    SPOOL_BYTES,
    SPOOL_ITEMS,
    SPOOL_SPILLED_BYTES,
    WAKE_CALLS,
    WAKE_SUPPRESSED,
)
from penstock.sink.contract import Histogram, TaskReport

SECONDS_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
BYTES_BOUNDS = tuple(float(1 << shift) for shift in range(10, 31, 2))


@dataclass
class _Counts:
    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def observe(self, value: float) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class SinkCounters:
    """The counters of one task. Plain numbers change under the sink's lock; ``observe`` has its own."""

    def __init__(self) -> None:
        self.wake_calls = 0
        self.wake_suppressed = 0
        self.spilled_bytes = 0
        self.spool_bytes_peak = 0
        self.spool_items_peak = 0
        self.ddl_dispatchers = 0
        self._flushes: dict[str, int] = {}
        self._histograms: dict[str, _Counts] = {}
        self._lock = threading.Lock()

    def observe(self, name: str, value: float, reason: str = "") -> None:
        """Count a value of a histogram."""
        bounds = BYTES_BOUNDS if name.endswith("_bytes") else SECONDS_BOUNDS
        with self._lock:
            self._histograms.setdefault(_labelled(name, reason), _Counts(bounds)).observe(value)

    def flushed(self, reason: str, seconds: float, nbytes: int) -> None:
        """Count a file that is in the target with its index."""
        self.count_flush(reason)
        self.observe(FLUSH_DURATION.key, seconds, reason)
        self.observe(FLUSH_FILE_SIZE.key, nbytes)

    def count_flush(self, reason: str) -> None:
        """Count a flush that ended in this way."""
        with self._lock:
            self._flushes[reason] = self._flushes.get(reason, 0) + 1

    def report(self) -> TaskReport:
        """Return the counts so far."""
        with self._lock:
            counters: dict[str, float] = {
                WAKE_CALLS.key: self.wake_calls,
                WAKE_SUPPRESSED.key: self.wake_suppressed,
                SPOOL_SPILLED_BYTES.key: self.spilled_bytes,
                DDL_AFFECTED.key: self.ddl_dispatchers,
            }
            counters.update({_labelled(FLUSH_COUNT.key, reason): count for reason, count in self._flushes.items()})
            histograms = {name: Histogram(h.bounds, tuple(h.counts), h.total) for name, h in self._histograms.items()}
        return TaskReport(counters, {SPOOL_BYTES.key: self.spool_bytes_peak, SPOOL_ITEMS.key: self.spool_items_peak}, histograms)


def _labelled(name: str, reason: str) -> str:
    return f"{name}{{reason={reason}}}" if reason else name
