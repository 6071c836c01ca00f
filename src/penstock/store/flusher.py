"""A thread that works on spans one after the other: one turns grown memory into objects, away from the writer of the log, one merges.

Requests are span ids, each waiting at most once, so the queue is bounded by the number of spans. Work that is not due yet asks to be done
later. Runs in the log service.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.model.clock import Clock

IDLE_WAIT_S = 60.0


class Flusher:
    """Calls ``flush`` for requested spans, one after the other. Thread safe."""

    def __init__(self, name: str, flush: Callable[[int], float | None], clock: Clock) -> None:
        """``flush`` may return after how many seconds it wants to be called again for the span."""
        self._flush = flush
        self._clock = clock
        self._waiting: dict[int, None] = {}
        self._later: dict[int, float] = {}
        """When spans are due that asked for it; only the thread looks at it."""
        self._busy = False
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def request(self, span_id: int) -> None:
        """Ask for a span to be flushed; asking again before it happens changes nothing."""
        with self._lock:
            self._waiting[span_id] = None
        self._wake.set()

    @property
    def waiting(self) -> int:
        """Return how many spans wait; one that is under way does not count."""
        return len(self._waiting)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is waiting or under way; return False where that took longer."""
        with self._lock:
            return self._idle.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    def close(self) -> None:
        """Finish the flush that runs, leave the others (the log holds their rows), and stop."""
        self._closing.set()
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            now_s = self._clock.monotonic_s()
            self._clock.wait(self._wake, max(0.0, min([IDLE_WAIT_S, *(due_s - now_s for due_s in self._later.values())])))
            self._wake.clear()
            self._ask_due()
            self._flush_waiting()

    def _ask_due(self) -> None:
        now_s = self._clock.monotonic_s()
        for span_id in [span_id for span_id, due_s in self._later.items() if due_s <= now_s]:
            del self._later[span_id]
            self.request(span_id)

    def _flush_waiting(self) -> None:
        while not self._closing.is_set():
            with self._lock:
                self._busy = bool(self._waiting)
                if not self._busy:
                    self._idle.notify_all()
                    return
                span_id = next(iter(self._waiting))
                del self._waiting[span_id]
            again_s = self._flush(span_id)
            if again_s is not None:
                self._later[span_id] = self._clock.monotonic_s() + again_s
