"""The threads of a sink: what is done for one dispatcher is done in order, in one of a few lanes.

Invariants: jobs of one lane run one after the other; after the first failure no job runs any more, and everybody who waits is told of it.
Runs on executors.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from penstock.model.errors import PenstockError

Job = Callable[[], None]


class Lanes:
    """A few threads, started when they have something to do. ``submit`` and ``wait`` are called by one thread."""

    def __init__(self, count: int, idle: Callable[[int], None], idle_s: float) -> None:
        """``idle`` is called in a lane that had nothing to do for a while, with its number."""
        self._idle = idle
        self._idle_s = idle_s
        self._queues: list[queue.SimpleQueue[tuple[Job, Future[None]] | None]] = [queue.SimpleQueue() for _ in range(count)]
        self._threads: dict[int, threading.Thread] = {}
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._listeners: list[Callable[[], None]] = []

    def submit(self, lane: int, job: Job) -> Future[None]:
        """Have a job done after those that the lane has."""
        self.check()
        done: Future[None] = Future()
        self._queues[lane].put((job, done))
        if lane not in self._threads:
            thread = threading.Thread(target=self._run, args=(lane,), name=f"kafka-lane-{lane}", daemon=True)
            self._threads[lane] = thread
            thread.start()
        return done

    def wait(self, done: Future[None]) -> None:
        """Wait for a job; raise what made the sink fail."""
        done.exception()
        self.check()

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self._error is not None:
            raise self._error

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Have this called after the failure; at once if it was before."""
        with self._lock:
            if self._error is None:
                self._listeners.append(callback)
                return
        callback()

    def close(self) -> None:
        """End the threads; jobs that have not begun are dropped."""
        self._trip(PenstockError("CANCELLED", "the sink is closed"), tell=False)
        for lane in self._threads:
            self._queues[lane].put(None)
        for thread in self._threads.values():
            thread.join()

    def _run(self, lane: int) -> None:
        while True:
            try:
                taken = self._queues[lane].get(timeout=self._idle_s)
            except queue.Empty:
                self._guarded(lambda: self._idle(lane))
                continue
            if taken is None:
                return
            job, done = taken
            self._guarded(job)
            done.set_result(None)

    def _guarded(self, job: Job) -> None:
        if self._error is not None:
            return
        try:
            job()
        except BaseException as error:  # noqa: BLE001
            self._trip(error, tell=True)

    def _trip(self, error: BaseException, tell: bool) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            listeners = self._listeners if tell else []
        for listener in listeners:
            listener()
