"""Why and when files are flushed.

By size: after the chunk that fills a file. By interval: for each dispatcher by itself, when its oldest row that is in no file has
waited for the flush interval. By DDL, at another commit date, at close: when a dispatcher is drained. ``IntervalFlush`` is the clock
among them: one thread that sleeps until the oldest entry of the active set is due, and asks for a cut through the dispatcher's own
channel. It starts with the first row, so idle dispatchers and short windows cost nothing. Runs on executors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Generic, TypeVar

from penstock.model.clock import Clock
from penstock.sink.failure_latch import FailureLatch
from penstock.sink.storage.encode.active_set import ActiveSet

K = TypeVar("K")
_IDLE_WAIT_S = 3600.0
_WAIT_S_MIN = 0.001


class FlushReason(StrEnum):
    """Why a file was cut; the label of the flush metrics. A flush that failed counts as ``error``."""

    SIZE = "size"
    INTERVAL = "interval"
    DDL = "ddl"
    DATE = "date"
    CLOSE = "close"
    ERROR = "error"


class IntervalFlush(Generic[K]):
    """Asks for cuts when their time has come. Thread safe."""

    def __init__(self, interval_s: float, clock: Clock, latch: FailureLatch, request: Callable[[K], None]) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._latch = latch
        self._request = request
        self._active: ActiveSet[K] = ActiveSet()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self.ticks = 0
        """How often the thread woke up."""
        latch.listen(self._changed.set)

    @property
    def active(self) -> int:
        """Return how many dispatchers hold something that is in no file."""
        return len(self._active)

    def touch(self, key: K, since_s: float) -> None:
        """Make a dispatcher active: it holds rows, the oldest since then."""
        with self._lock:
            if key in self._active:
                return
            first = not self._active
            self._active.add(key, since_s)
            if self._thread is None and self._latch.error is None:
                self._thread = threading.Thread(target=self._run, name="storage-interval", daemon=True)
                self._thread.start()
            elif first:
                self._changed.set()

    def settle(self, key: K) -> None:
        """Make a dispatcher inactive: all it had is cut."""
        with self._lock:
            self._active.discard(key)

    def join(self) -> None:
        """Wait for the thread's end, after the latch tripped."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            self._keep_asking()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that calls the sink
            self._latch.trip(error)

    def _keep_asking(self) -> None:
        while self._latch.error is None:
            with self._lock:
                self.ticks += 1
                self._changed.clear()
                earliest_s = self._active.earliest_s()
            if self._latch.error is not None:
                return
            now_s = self._clock.monotonic_s()
            if earliest_s is None or earliest_s > now_s - self._interval_s:
                # A wait that rounding made nothing would be a loop.
                wait_s = _IDLE_WAIT_S if earliest_s is None else max(earliest_s + self._interval_s - now_s, _WAIT_S_MIN)
                self._clock.wait(self._changed, wait_s)
                continue
            with self._lock:
                due = self._active.due(now_s - self._interval_s)
            for key in due:
                self._request(key)
