import threading
from collections.abc import Callable

from penstock.model.errors import PenstockError
from penstock.sink.failure_latch import FailureLatch
from penstock.sink.storage.encode.flush_policy import IntervalFlush
from testing.twins.clock import SimulatedClock

WAIT_S = 120


def close(latch: FailureLatch, *joined: Callable[[], None]) -> None:
    latch.trip(PenstockError("CANCELLED", "the test ends"))
    for join in joined:
        join()


def test_intervals_are_kept_for_each_dispatcher_and_idle_ones_cost_nothing() -> None:
    clock, latch = SimulatedClock(), FailureLatch()
    asked: list[tuple[str, float]] = []
    changed = threading.Condition()

    def request(key: str) -> None:
        with changed:
            asked.append((key, clock.monotonic_s()))
            changed.notify_all()

    flush: IntervalFlush[str] = IntervalFlush(5.0, clock, latch, request)
    flush.touch("a", clock.monotonic_s())
    clock.wait_for_waiters(1)
    clock.advance(2)
    flush.touch("b", clock.monotonic_s())
    flush.touch("c", clock.monotonic_s())
    flush.touch("a", clock.monotonic_s())
    flush.settle("c")
    clock.wait_for_waiters(1)
    clock.advance(3)
    with changed:
        assert changed.wait_for(lambda: len(asked) == 1, WAIT_S)
    clock.wait_for_waiters(1)
    clock.advance(2)
    with changed:
        assert changed.wait_for(lambda: len(asked) == 2, WAIT_S)
    assert asked == [("a", 5.0), ("b", 7.0)]
    clock.wait_for_waiters(1)
    ticks = flush.ticks
    clock.advance(1000)
    clock.wait_for_waiters(1)
    assert (flush.ticks, flush.active) == (ticks, 0)
    close(latch, flush.join)
