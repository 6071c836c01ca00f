"""Turns: who may start a run now.

Starting a run is the most expensive thing that a feed does to a machine (processes begin, imports run), and Spark gives a process that
starts too slowly up. So only a few runs start at once, however many feeds were claimed or failed at the same time. Invariant: at most so
many turns are taken. Runs in the server.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_LOOK_S = 0.1


class StartTurns:
    """Turns for all feeds of one server. Called by many threads."""

    def __init__(self, at_once: int) -> None:
        self._free = threading.BoundedSemaphore(at_once)

    @contextlib.contextmanager
    def turn(self, stop: threading.Event) -> Iterator[bool]:
        """Wait for a turn and give it back at the end; gives whether there is one, because the feed may be stopped while it waits."""
        taken = False
        while not stop.is_set() and not taken:
            taken = self._free.acquire(timeout=_LOOK_S)
        try:
            yield taken and not stop.is_set()
        finally:
            if taken:
                self._free.release()
