"""The wake gate: how many events a task hands to its sink before they are woken.

A sink takes events over without waiting; this is where its caller waits instead. Invariants: at most so many events and bytes that were
not woken are in the sink, apart from one larger event, which passes alone; a sink that has failed opens the gate for good, and its next
call raises. Runs on executors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WakeGateSettings:
    """How much may wait for its wake."""

    events_max: int = 64
    bytes_max: int = 16 << 20


class WakeGate:
    """Counts events that were not woken yet. ``enter`` is called by one thread, wakes come from any."""

    def __init__(self, settings: WakeGateSettings | None = None) -> None:
        self._settings = settings or WakeGateSettings()
        self._changed = threading.Condition()
        self._events = 0
        self._bytes = 0
        self._open = False

    @property
    def events(self) -> int:
        """Return how many events wait for their wake."""
        return self._events

    def enter(self, nbytes: int) -> Callable[[], None]:
        """Wait until there is room for an event of this size; return its wake."""
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._has_room(nbytes))
            self._events += 1
            self._bytes += nbytes

        def wake() -> None:
            with self._changed:
                self._events -= 1
                self._bytes -= nbytes
                self._changed.notify_all()

        return wake

    def open(self) -> None:
        """Let everybody pass from now on: the sink has failed."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def _has_room(self, nbytes: int) -> bool:
        if not self._events:
            return True
        return self._events < self._settings.events_max and self._bytes + nbytes <= self._settings.bytes_max
