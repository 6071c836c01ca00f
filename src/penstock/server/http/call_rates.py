"""How often callers may call: one bucket each, which fills with time and of which every call takes a drop.

Invariant: memory is bounded, whoever calls: the caller that was silent longest is forgotten first, which only ever allows more. Called by
the event loop alone. Runs in the server.
"""

from __future__ import annotations

from penstock.model.clock import Clock

CALLERS_MAX = 4_096


class CallRates:
    """The rates of many callers; each may call ``burst`` times at once."""

    def __init__(self, per_second: float, burst: float, clock: Clock) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._levels: dict[str, tuple[float, float]] = {}

    def take(self, caller: str) -> bool:
        """Count a call; return False where it is one too many."""
        now_s = self._clock.monotonic_s()
        level, at_s = self._levels.pop(caller, (self._burst, now_s))
        level = min(self._burst, level + (now_s - at_s) * self._per_second)
        allowed = level >= 1
        # Put back last: the first in the dict was silent longest.
        self._levels[caller] = (level - 1 if allowed else level, now_s)
        if len(self._levels) > CALLERS_MAX:
            del self._levels[next(iter(self._levels))]
        return allowed
