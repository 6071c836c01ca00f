"""When the events of a dispatcher count as flushed: each with the file that takes the last of its rows.

Invariant: every callback is given out once, in the order of the events. Not thread safe. Runs on executors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Callbacks = tuple[Callable[[], None], ...]


class FlushCallbacks:
    """Callbacks by the row behind which their event stands."""

    def __init__(self) -> None:
        self._placed = 0
        self._cut = 0
        self._unplaced: list[Callable[[], None]] = []
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def rows_wait(self) -> bool:
        """Return whether rows wait for their file to be cut."""
        return self._cut < self._placed

    def add(self, callback: Callable[[], None]) -> None:
        """Take the callback of an event whose rows came."""
        self._unplaced.append(callback)

    def place(self, rows: int) -> None:
        """Count rows that are on their way into files."""
        self._placed += rows

    def settle(self) -> None:
        """Say that no row of the events so far is held back any more."""
        self._waiting.extend((self._placed, callback) for callback in self._unplaced)
        self._unplaced.clear()

    def cut(self, rows: int) -> None:
        """Count the rows of a file that was cut."""
        self._cut += rows

    def take(self) -> Callbacks:
        """Return the callbacks of events whose rows were all cut."""
        done = []
        while self._waiting and self._waiting[0][0] <= self._cut:
            done.append(self._waiting.popleft()[1])
        return tuple(done)
