"""A clock that moves only when a test says so.

Owns simulated time for everything that takes a ``penstock.model.clock.Clock``. Time never passes by itself: a component that waits on
this clock wakes when its event is set or when ``advance`` reaches its deadline, and never otherwise. Waiters whose time has come leave
``wait`` one after the other, in the order of their deadlines; those with one deadline, in the order in which they began to wait.
What a woken thread does then runs beside the test, so a test that drives periodic work advances by one period at a time and calls
``wait_for_waiters`` in between. Every real wait for a woken thread is bounded: a broken test fails instead of hanging. Runs in tests.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from penstock.model.clock import SystemClock

REAL_WAIT_S_MAX = 120.0
_EVENT_POLL_S = 0.005
NANOSECONDS = 1_000_000_000


@dataclass(order=True)
class _Waiter:
    """One thread inside ``wait``. Compared by deadline, then by the order of arrival."""

    deadline_ns: int
    order: int
    expired: bool = field(default=False, compare=False)


class SimulatedClock:
    """A ``Clock`` under the control of a test. Thread safe; ``advance`` is for one thread at a time."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._epoch_ms = now_ms
        self._elapsed_ns = 0
        self._arrivals = 0
        self._waiters: list[_Waiter] = []
        self._changed = threading.Condition()

    def now_ms(self) -> int:
        """Return simulated wall-clock milliseconds."""
        with self._changed:
            return self._epoch_ms + self._elapsed_ns // 1_000_000

    def monotonic_s(self) -> float:
        """Return simulated seconds since the clock was made."""
        with self._changed:
            return self._elapsed_ns / NANOSECONDS

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set or the simulated time has passed; return whether the event was set."""
        if event.is_set() or timeout_s <= 0:
            return event.is_set()
        with self._changed:
            self._arrivals += 1
            waiter = _Waiter(self._elapsed_ns + round(timeout_s * NANOSECONDS), self._arrivals)
            self._waiters.append(waiter)
            self._changed.notify_all()
            try:
                # An event cannot tell the condition that it was set, so it is looked at again every few real milliseconds.
                while not waiter.expired and not event.is_set():
                    self._changed.wait(_EVENT_POLL_S)
            finally:
                self._waiters.remove(waiter)
                self._changed.notify_all()
            return event.is_set()

    def advance(self, seconds: float) -> None:
        """Let time pass, waking each waiter at its own deadline; returns when every woken waiter has left ``wait``."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        with self._changed:
            target_ns = self._elapsed_ns + round(seconds * NANOSECONDS)
            while due := [w for w in self._waiters if w.deadline_ns <= target_ns]:
                self._wake(min(due))
            self._elapsed_ns = target_ns

    def _wake(self, waiter: _Waiter) -> None:
        """Move time to the waiter's deadline and see it leave. Called with the lock held."""
        self._elapsed_ns = max(self._elapsed_ns, waiter.deadline_ns)
        waiter.expired = True
        self._changed.notify_all()
        if not self._changed.wait_for(lambda: waiter not in self._waiters, REAL_WAIT_S_MAX):
            raise TimeoutError("a woken waiter did not leave its wait")

    def waiters(self) -> int:
        """Return how many threads wait on the clock now."""
        with self._changed:
            return len(self._waiters)

    def wait_for_waiters(self, count: int, real_timeout_s: float = REAL_WAIT_S_MAX) -> None:
        """Block in real time until at least this many threads wait on the clock; ``TimeoutError`` if they do not come."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._waiters) >= count, real_timeout_s):
                raise TimeoutError(f"{len(self._waiters)} of {count} waiters after {real_timeout_s} s")


class SimulatedTimeOfDay:
    """The time of day of a simulated clock, with real waiting: for threads whose waiting is not what a test is about."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        """Return the simulated time of day."""
        return self._clock.now_ms()

    def monotonic_s(self) -> float:
        """Return the simulated monotonic time."""
        return self._clock.monotonic_s()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait in real time."""
        return event.wait(timeout_s)


class HastyClock:
    """The machine's clock, ahead by all pauses: each is noted and takes no time. Thread safe."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []
        self._ahead_s = 0.0
        self._clock = SystemClock()
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """Return wall-clock milliseconds, pauses included."""
        return self._clock.now_ms() + int(self._ahead_s * 1000)

    def monotonic_s(self) -> float:
        """Return seconds that never go backwards, pauses included."""
        return self._clock.monotonic_s() + self._ahead_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Note a pause and go on."""
        with self._lock:
            self.pauses_s.append(timeout_s)
            self._ahead_s += timeout_s
        return event.is_set()
