"""The background uploader: cut files go to the target while the next ones are encoded.

Invariants: jobs run one at a time in the order in which they were submitted; a job is taken only when the one before it has ended, so a
task holds two files, one that is filled and one that is uploaded; after a failure nothing more runs and everyone who submits or
drains sees the error. Runs on executors.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from penstock.model.errors import InvariantError


class Uploader:
    """One thread and a bounded queue."""

    def __init__(self) -> None:
        # Bounded by the slot: at most one job, one drain marker and one end are in it.
        self._queue: queue.SimpleQueue[Callable[[], None] | threading.Event | None] = queue.SimpleQueue()
        self._slot = threading.Semaphore(1)
        self._failure: BaseException | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storage-uploader", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        """Hand over a job; waits while another one runs. Raises the failure of an earlier job."""
        self._slot.acquire()
        if self._failure is not None:
            self._slot.release()
            raise self._failure
        self._queue.put(job)

    def drain(self) -> None:
        """Return once every job submitted so far has succeeded; raise if one failed."""
        if self._closing.is_set():
            raise InvariantError("the uploader is closed")
        self._raise_failure()
        reached = threading.Event()
        self._queue.put(reached)
        reached.wait()
        self._raise_failure()

    def close(self) -> None:
        """Stop the thread; jobs that still wait are dropped."""
        if not self._closing.is_set():
            self._closing.set()
            self._queue.put(None)
            self._thread.join()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            if isinstance(job, threading.Event):
                # A drain marker fires even after a failure, or its waiter would wait for ever; the waiter then finds the failure.
                job.set()
            else:
                self._do(job)
                self._slot.release()

    def _do(self, job: Callable[[], None]) -> None:
        if self._failure is None and not self._closing.is_set():
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that submits
                self._failure = error
