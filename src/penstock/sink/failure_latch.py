"""The one failure of a sink, and the lock that its parts share.

Whoever fails trips the latch; everybody who waits on one of its conditions wakes up, and everybody who checks it sees the error. Closing
a sink is a trip as well, with CANCELLED, so there is one way in which threads end. Invariants: the first error stays; nobody waits on a
condition of the latch without looking at the error. Runs on executors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class FailureLatch:
    """A lock, its conditions, and the error that ends everything. Thread safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.error: BaseException | None = None
        self._conditions: list[threading.Condition] = []
        self._listeners: list[Callable[[], None]] = []

    def condition(self) -> threading.Condition:
        """Return a condition on the shared lock that a trip wakes."""
        condition = threading.Condition(self.lock)
        self._conditions.append(condition)
        return condition

    def listen(self, callback: Callable[[], None]) -> None:
        """Have this called after the trip, without the lock; at once if it was before."""
        with self.lock:
            if self.error is None:
                self._listeners.append(callback)
                return
        callback()

    def trip(self, error: BaseException) -> None:
        """End everything with this error, unless something else did before."""
        with self.lock:
            if self.error is not None:
                return
            self.error = error
            for condition in self._conditions:
                condition.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def check(self) -> None:
        """Raise the error, if there is one."""
        if self.error is not None:
            raise self.error

    def wait_for(self, condition: threading.Condition, predicate: Callable[[], bool]) -> None:
        """Wait with the lock held until something holds; raise the error if it comes first."""
        while not predicate():
            self.check()
            condition.wait()
