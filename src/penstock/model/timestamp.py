"""Timestamps: 64-bit, physical milliseconds << 18 | logical counter.

A ts is a plain ``int``; this module owns its arithmetic. Windows are half-open ``(from_ts, to_ts]`` everywhere.
``TS_ZERO`` means "before all history"; a window that starts there is a snapshot. Runs anywhere.
"""

from __future__ import annotations

import datetime as dt
import threading

from penstock.model.clock import Clock

LOGICAL_BITS = 18
LOGICAL_MAX = (1 << LOGICAL_BITS) - 1
PHYSICAL_MS_MAX = (1 << (64 - LOGICAL_BITS)) - 1
TS_ZERO = 0
TS_MAX = (1 << 64) - 1
_UNIX_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def compose_ts(physical_ms: int, logical: int = 0) -> int:
    """Return the ts of a physical millisecond and a logical counter."""
    if not 0 <= physical_ms <= PHYSICAL_MS_MAX or not 0 <= logical <= LOGICAL_MAX:
        raise ValueError(f"ts out of range: physical_ms={physical_ms}, logical={logical}")
    return (physical_ms << LOGICAL_BITS) | logical


def physical_ms(ts: int) -> int:
    """Return the physical milliseconds of a ts."""
    return ts >> LOGICAL_BITS


def logical(ts: int) -> int:
    """Return the logical counter of a ts."""
    return ts & LOGICAL_MAX


def to_datetime(ts: int) -> dt.datetime:
    """Return the UTC wall-clock time of a ts."""
    return _UNIX_EPOCH + dt.timedelta(milliseconds=physical_ms(ts))


def lag_seconds(ts: int, clock: Clock) -> float:
    """Return how far a ts is behind the clock; never negative."""
    return max(0.0, (clock.now_ms() - physical_ms(ts)) / 1000)


class TimestampOracle:
    """Hands out strictly growing timestamps that follow a clock. Safe to call from many threads."""

    def __init__(self, clock: Clock, floor_ts: int = TS_ZERO) -> None:
        self._clock = clock
        self._last_ts = floor_ts
        self._lock = threading.Lock()

    def next_ts(self) -> int:
        """Return a ts that is larger than every ts returned before."""
        with self._lock:
            self._last_ts = max(self._last_ts + 1, compose_ts(self._clock.now_ms()))
            return self._last_ts
