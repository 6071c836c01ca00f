"""Keyed encoder shards: work of one dispatcher in order, work of different dispatchers side by side.

Every key has a queue of its own; a few threads carry the queues that have something, one job at a time, the queues in turn. So a
dispatcher's jobs run one after the other in the order in which they came, and a slow one holds up one thread and no other dispatcher.
There is no order across keys, and nothing is put back in order afterwards. Threads start when there is work for them. Invariant: after a
failure no further job runs. Runs on executors.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable

from penstock.model.errors import InvariantError
from penstock.sink.failure_latch import FailureLatch

QUEUED_MAX = 1 << 16
"""Callers bound their events by wakes; one that does not is stopped here."""

Job = Callable[[], None]


class _Shard:
    __slots__ = ("jobs", "queued")

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.queued = False
        """Whether it is in the ready line or a thread has it."""


class EncoderShards:
    """Runs jobs by key. Thread safe."""

    def __init__(self, threads_max: int, latch: FailureLatch) -> None:
        self._threads_max = threads_max
        self._latch = latch
        self._work = latch.condition()
        self._shards: dict[Hashable, _Shard] = {}
        self._ready: deque[_Shard] = deque()
        self._queued = 0
        self._idle = 0
        self._threads: list[threading.Thread] = []

    @property
    def queued(self) -> int:
        """Return how many jobs wait."""
        return self._queued

    def open(self, key: Hashable) -> None:
        """Make a shard."""
        with self._latch.lock:
            self._shards[key] = _Shard()

    def close(self, key: Hashable) -> None:
        """Remove a shard; what it has not done is dropped."""
        with self._latch.lock:
            shard = self._shards.pop(key, None)
            if shard is not None:
                self._queued -= len(shard.jobs)
                shard.jobs.clear()

    def submit(self, key: Hashable, job: Job) -> bool:
        """Queue a job; never waits. Returns False where the shard is gone; raises the failure of an earlier job."""
        with self._latch.lock:
            self._latch.check()
            shard = self._shards.get(key)
            if shard is None:
                return False
            if self._queued >= QUEUED_MAX:
                raise InvariantError(f"{self._queued} events wait to be encoded: the caller does not wait for wakes")
            shard.jobs.append(job)
            self._queued += 1
            if not shard.queued:
                self._make_ready(shard)
        return True

    def join(self) -> None:
        """Wait for the threads' end, after the latch tripped."""
        with self._latch.lock:
            # None starts after the trip.
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _make_ready(self, shard: _Shard) -> None:
        shard.queued = True
        self._ready.append(shard)
        if self._idle >= len(self._ready):
            self._work.notify()
        elif self._latch.error is None and len(self._threads) < self._threads_max:
            thread = threading.Thread(target=self._run, name=f"storage-encoder-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        try:
            while (shard := self._take()) is not None:
                job = self._pop(shard)
                if job is not None:
                    job()
                self._give_back(shard)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that calls the sink
            self._latch.trip(error)

    def _take(self) -> _Shard | None:
        with self._latch.lock:
            while not self._ready and self._latch.error is None:
                self._idle += 1
                self._work.wait()
                self._idle -= 1
            return None if self._latch.error is not None else self._ready.popleft()

    def _pop(self, shard: _Shard) -> Job | None:
        with self._latch.lock:
            if not shard.jobs:
                return None
            self._queued -= 1
            return shard.jobs.popleft()

    def _give_back(self, shard: _Shard) -> None:
        with self._latch.lock:
            if shard.jobs:
                # Behind the others that wait: no dispatcher has a thread for itself.
                self._ready.append(shard)
            else:
                shard.queued = False
