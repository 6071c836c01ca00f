"""Where the reader of a log is, for its own thread and for those who wait for it.

Runs in the log service. Only the reader's thread moves it; ``is_between`` is read by that thread alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.source.single_log import LogPosition


class ReaderPlace:
    """The position of one reader; None while nobody reads. Thread safe."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self.position: LogPosition | None = None
        self.is_between = False
        """Whether no transaction is open here."""

    def move(self, position: LogPosition | None) -> None:
        """Note where the reader is."""
        with self._moved:
            self.position = position
            self._moved.notify_all()

    def wait_for(self, there: Callable[[LogPosition], bool], timeout_s: float) -> LogPosition | None:
        """Wait until the reader is where it should be, at most so long; return its position then."""
        with self._moved:
            self._moved.wait_for(lambda: self.position is not None and there(self.position), timeout_s)
            return self.position if self.position is not None and there(self.position) else None
