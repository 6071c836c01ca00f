"""The pace of a feed: when its next window begins.

Windows begin a flush interval apart; at once where the last one ended before all that there was (a DDL, its size), and where the feed
is behind what is captured, because then every wait is lag. While capture itself is behind they stay apart, ever more up to the interval:
more comes anyway, and every window costs. Nothing here must survive: the next run of the feed begins with a new pace. Runs in
the driver.
"""

from __future__ import annotations

from penstock.feed.settings import FeedSettings
from penstock.model.clock import Clock
from penstock.model.timestamp import lag_seconds
from penstock.store.contract import WindowPlan

BEHIND_INTERVALS = 2
"""Who is further behind catches up: a feed that keeps up is one interval behind when its next window begins."""
CLOSEST_SHARE = 0.25
"""How close windows begin, as a share of the interval, when capture has just fallen behind."""


class WindowPace:
    """Tells when to look for a window and whether one that was found begins. One thread."""

    def __init__(self, settings: FeedSettings, clock: Clock) -> None:
        self._interval_s = settings.flush_interval_s
        # The run asks at multiples of its interval, never at exactly the right moment.
        self._early_s = settings.trigger_interval_s / 2
        self._clock = clock
        self._opened_s = clock.monotonic_s()
        self._began_s = float("-inf")
        self._apart_s = CLOSEST_SHARE * self._interval_s
        self._more_waits = False

    def looks(self, from_ts: int) -> bool:
        """Return whether it is time to look for the window after a ts."""
        return self._waited(self._began_s, self._interval_s) or self._more_waits or self._behind(from_ts)

    def begins(self, plan: WindowPlan) -> bool:
        """Return whether a window begins now, and count it: not while capture is behind, unless it is time or a whole window waits."""
        behind = self._behind(plan.resolved_ts)
        if behind and not self._more_waits and not self._waited(max(self._began_s, self._opened_s), self._apart_s):
            return False
        self._began_s, self._more_waits = self._clock.monotonic_s(), plan.to_ts < plan.resolved_ts
        self._apart_s = min(2 * self._apart_s, self._interval_s) if behind else CLOSEST_SHARE * self._interval_s
        return True

    def _waited(self, since_s: float, wait_s: float) -> bool:
        return self._clock.monotonic_s() - since_s >= wait_s - self._early_s

    def _behind(self, ts: int) -> bool:
        return lag_seconds(ts, self._clock) > BEHIND_INTERVALS * self._interval_s
