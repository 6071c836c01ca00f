import threading

import pytest

from penstock.model.clock import Clock, SystemClock, system_random
from testing.twins.clock import SimulatedClock


class Waiting:
    """A thread that waits on a clock and keeps what the wait returned."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self.event = threading.Event()
        self.result: bool | None = None

        def run() -> None:
            self.result = clock.wait(self.event, timeout_s)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def join(self) -> bool | None:
        self.thread.join(120)
        assert not self.thread.is_alive()
        return self.result


def test_time_moves_only_by_advance() -> None:
    clock = SimulatedClock(now_ms=1_000)
    assert (clock.now_ms(), clock.monotonic_s()) == (1_000, 0.0)
    clock.advance(2.5)
    assert (clock.now_ms(), clock.monotonic_s()) == (3_500, 2.5)


def test_small_steps_add_up_exactly() -> None:
    clock = SimulatedClock(now_ms=0)
    for _ in range(1_000):
        clock.advance(0.001)
    assert (clock.now_ms(), clock.monotonic_s()) == (1_000, 1.0)


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="go back"):
        SimulatedClock().advance(-1)


def test_a_waiter_wakes_at_its_deadline_and_not_before() -> None:
    clock = SimulatedClock()
    waiting = Waiting(clock, 10)
    clock.wait_for_waiters(1)
    clock.advance(9.999)
    assert clock.waiters() == 1
    clock.advance(0.001)
    assert clock.waiters() == 0
    assert waiting.join() is False


def test_a_set_event_ends_the_wait_without_time() -> None:
    clock = SimulatedClock()
    waiting = Waiting(clock, 10)
    clock.wait_for_waiters(1)
    waiting.event.set()
    assert waiting.join() is True
    assert clock.monotonic_s() == 0.0


def test_no_wait_where_there_is_nothing_to_wait_for() -> None:
    clock = SimulatedClock()
    event = threading.Event()
    assert clock.wait(event, 0) is False
    assert clock.wait(event, -1) is False
    event.set()
    assert clock.wait(event, 5) is True


def test_waiters_leave_in_the_order_of_their_deadlines() -> None:
    clock = SimulatedClock()
    left: list[float] = []

    lock = threading.Lock()
    threads = []
    for timeout_s in (3.0, 1.0, 2.0):
        arrived = clock.waiters()

        def run(timeout_s: float = timeout_s) -> None:
            clock.wait(threading.Event(), timeout_s)
            with lock:
                left.append(timeout_s)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        threads.append(thread)
        clock.wait_for_waiters(arrived + 1)
    clock.advance(1.5)
    threads[1].join(10)
    assert (left, clock.waiters()) == ([1.0], 2)
    clock.advance(0.5)
    threads[2].join(10)
    assert (left, clock.waiters()) == ([1.0, 2.0], 1)
    clock.advance(5)
    threads[0].join(10)
    assert left == [1.0, 2.0, 3.0]


def test_one_advance_wakes_all_that_are_due() -> None:
    clock = SimulatedClock()
    waiting = [Waiting(clock, s) for s in (1, 2, 3)]
    clock.wait_for_waiters(3)
    clock.advance(3)
    assert [w.join() for w in waiting] == [False, False, False]


def test_missing_waiters_are_a_timeout() -> None:
    with pytest.raises(TimeoutError, match="0 of 1"):
        SimulatedClock().wait_for_waiters(1, real_timeout_s=0.01)


@pytest.mark.parametrize("clock", [SystemClock(), SimulatedClock()], ids=["system", "simulated"])
def test_both_clocks_keep_the_contract(clock: Clock) -> None:
    before_ms, before_s = clock.now_ms(), clock.monotonic_s()
    event = threading.Event()
    assert clock.wait(event, 0) is False
    event.set()
    assert clock.wait(event, 0) is True
    assert clock.wait(event, 60) is True
    assert clock.now_ms() >= before_ms > 1_600_000_000_000
    assert clock.monotonic_s() >= before_s


def test_system_random_is_not_seeded() -> None:
    assert system_random().random() != system_random().random()
