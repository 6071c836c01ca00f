"""The lanes of a task: threads with one connection each, which post the messages that they are given in their order.

Invariants: a lane has one message under way; together they hold at most so many bytes, apart from one larger message; after a failure
nothing more is posted, and everybody who waits is told. Thread safe. Runs on executors.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from penstock.model.errors import PenstockError
from penstock.sink.failure_latch import FailureLatch
from penstock.sink.http.delivery import Delivery
from penstock.sink.http.messages import Message

_BYTES_MAX = 32 << 20


class Lanes:
    """Threads that post. A lane begins with its first message."""

    def __init__(self, count: int, make: Callable[[], Delivery], latch: FailureLatch) -> None:
        self._make = make
        self._latch = latch
        self._changed = latch.condition()
        self._queues: list[deque[Message]] = [deque() for _ in range(count)]
        self._threads: dict[int, threading.Thread] = {}
        self._stop = threading.Event()
        self._bytes = 0
        self._given = [0] * count
        self._done = [0] * count
        latch.listen(self._stop.set)

    def put(self, lane: int, message: Message) -> None:
        """Give a lane a message; waits while there are too many bytes."""
        with self._latch.lock:
            size = len(message.body)
            self._latch.wait_for(self._changed, lambda: not self._bytes or self._bytes + size <= _BYTES_MAX)
            self._latch.check()
            self._bytes += size
            self._given[lane] += 1
            self._queues[lane].append(message)
            self._changed.notify_all()
            if lane not in self._threads:
                self._threads[lane] = threading.Thread(target=self._run, args=(lane,), name=f"http-lane-{lane}", daemon=True)
                self._threads[lane].start()

    def drain(self) -> None:
        """Wait until everything that was given so far is taken; raise where that fails."""
        with self._latch.lock:
            wanted = list(self._given)
            self._latch.wait_for(self._changed, lambda: all(done >= given for done, given in zip(self._done, wanted, strict=True)))

    def join(self) -> None:
        """Wait for the threads to end, after a failure or the end of the sink."""
        for thread in self._threads.values():
            thread.join()

    def _run(self, lane: int) -> None:
        delivery: Delivery | None = None
        try:
            delivery = self._make()
            while True:
                with self._latch.lock:
                    self._latch.wait_for(self._changed, lambda: bool(self._queues[lane]))
                    self._latch.check()
                    message = self._queues[lane].popleft()
                delivery.deliver(message, self._stop)
                with self._latch.lock:
                    self._bytes -= len(message.body)
                    self._done[lane] += 1
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - whatever ends a thread ends the sink
            self._latch.trip(error if isinstance(error, PenstockError) else PenstockError("INTERNAL", f"a lane failed: {error!r}"))
        finally:
            if delivery is not None:
                delivery.close()
