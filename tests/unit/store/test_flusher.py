"""The thread that works on spans: each waiting span once, and later where it asked for that."""

import threading

from penstock.model.clock import SystemClock
from penstock.store.flusher import Flusher
from testing.twins.clock import SimulatedClock

WAIT_S = 60.0


def test_a_span_that_waits_is_flushed_once_however_often_it_is_asked_for() -> None:
    begun, go, flushed = threading.Event(), threading.Event(), []

    def flush(span_id: int) -> None:
        flushed.append(span_id)
        begun.set()
        assert go.wait(WAIT_S)

    flusher = Flusher("test", flush, SystemClock())
    flusher.request(1)
    assert begun.wait(WAIT_S)
    for span_id in (2, 3, 2, 2, 1):
        flusher.request(span_id)
    assert not flusher.wait_idle(0.0)
    go.set()
    assert flusher.wait_idle(WAIT_S)
    flusher.close()
    assert flushed == [1, 2, 3, 1]


def test_a_span_that_is_not_due_is_asked_again_later() -> None:
    clock, calls, called = SimulatedClock(), [], threading.Semaphore(0)

    def flush(span_id: int) -> float | None:
        calls.append((span_id, clock.monotonic_s()))
        called.release()
        return 5.0 if len(calls) == 1 else None

    start_s = clock.monotonic_s()
    flusher = Flusher("test", flush, clock)
    flusher.request(7)
    assert called.acquire(timeout=WAIT_S)
    assert flusher.wait_idle(WAIT_S)
    clock.wait_for_waiters(1)
    clock.advance(5.0)
    assert called.acquire(timeout=WAIT_S)
    flusher.close()
    assert calls == [(7, start_s), (7, start_s + 5.0)]
