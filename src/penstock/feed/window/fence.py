"""The fence: whoever lost the lease of a feed writes nothing more to its target.

Every write to the target asks first whether the feed's epoch is still the run's own; an answer counts for a moment, so that many small
files cost few questions. What slips through that moment, or where an executor does not reach the meta database (an SQLite file on
another machine), is harmless all the same: a task writes only the window that is on record, and the next owner's attempt of it has the same
names and bytes. Runs on executors and in the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.feed.window.assignment import FeedContext
from penstock.meta.engine import sqlite_file
from penstock.meta.progress import ProgressDatabase
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError

FRESH_S = 1.0


class OwnerFence:
    """Raises ``FENCED`` once another owner has the feed. Thread safe."""

    def __init__(
        self, feed: str, epoch: int, check_owner: Callable[[str, int], None], fresh_s: float = FRESH_S, clock: Clock | None = None
    ) -> None:
        self._feed = feed
        self._epoch = epoch
        self._check_owner = check_owner
        self._fresh_s = fresh_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._asked_s: float | None = None
        self._lost: PenstockError | None = None

    def __call__(self) -> None:
        """Ask unless the last answer is fresh; once lost, it stays so."""
        with self._lock:
            if self._lost is not None:
                raise self._lost
            now_s = self._clock.monotonic_s()
            if self._asked_s is not None and now_s - self._asked_s < self._fresh_s:
                return
            try:
                self._check_owner(self._feed, self._epoch)
            except PenstockError as error:
                if error.code == "FENCED":
                    self._lost = error
                raise
            self._asked_s = now_s


def task_fence(context: FeedContext) -> OwnerFence | None:
    """Return the fence of a task, or None where the meta database is a file that is not on this machine."""
    meta = shared_meta(context.meta_url)
    return None if meta is None else OwnerFence(context.feed, context.epoch, meta.check_owner)


def driver_meta(url: str) -> ProgressDatabase:
    """Return the driver's connections for windows, which all its feeds share. They are not those that leases are renewed by."""
    meta = shared_meta(url)
    if meta is None:
        raise PenstockError("META_UNAVAILABLE", "the meta database is a file that is not on the driver's machine")
    return meta


_shared: dict[str, ProgressDatabase] = {}
_shared_lock = threading.Lock()


def shared_meta(url: str) -> ProgressDatabase | None:
    """Return the process's connections to a meta database, or None where it is a file that is not on this machine.

    A Python worker of Spark lives through many tasks, and the server through many windows. Nobody closes them.
    """
    file = sqlite_file(url)
    if file is not None and not file.exists():
        return None
    with _shared_lock:
        if url not in _shared:
            _shared[url] = ProgressDatabase(url)
        return _shared[url]
