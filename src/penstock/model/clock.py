"""The seams for wall clock, waiting and randomness. Nothing else in Penstock asks the system for them.

Production code receives a ``Clock`` and a ``random.Random`` by constructor; tests pass ``SimulatedClock`` of ``testing/twins/clock.py``
and a seeded generator. Runs anywhere.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Time as a component sees it."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since the Unix epoch."""

    def monotonic_s(self) -> float:
        """Return seconds that never go backwards; only differences mean anything."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set or the time has passed; return whether it was set."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return the machine's monotonic seconds."""
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait for the event, at most the given seconds."""
        return event.wait(timeout_s)


def system_random() -> random.Random:
    """Return an unseeded generator, for jitter and ids in production."""
    return random.Random()
