import random
import threading

from penstock.model.errors import PenstockError
from penstock.sink.failure_latch import FailureLatch
from penstock.sink.storage.metrics import SinkCounters
from penstock.sink.storage.spool.watermarks import WakeLine, Watermarks

WAIT_S = 120


class Level:
    def __init__(self) -> None:
        self.value = 0


def wake_line() -> tuple[WakeLine, Level, SinkCounters, FailureLatch]:
    latch, counters, level = FailureLatch(), SinkCounters(), Level()
    return WakeLine(Watermarks(80, 60), latch, counters, lambda: level.value), level, counters, latch


def test_wakes_are_held_back_above_the_high_watermark_and_released_in_order_at_the_low_one() -> None:
    line, level, counters, _ = wake_line()
    fired: list[int] = []

    def offer(number: int, at: int) -> None:
        level.value = at
        line.offer(lambda: fired.append(number))

    offer(0, 80)
    assert fired == [0]
    offer(1, 81)
    offer(2, 79)
    offer(3, 61)
    assert (fired, line.waiting) == ([0], 3)
    level.value = 61
    line.fire()
    assert fired == [0]
    level.value = 60
    line.fire()
    assert (fired, line.waiting) == ([0, 1, 2, 3], 0)
    offer(4, 80)
    assert fired[-1] == 4
    assert (counters.wake_calls, counters.wake_suppressed) == (5, 3)


def test_a_failure_fires_no_wake() -> None:
    line, level, _, latch = wake_line()
    fired: list[int] = []
    level.value = 90
    line.offer(lambda: fired.append(1))
    latch.trip(PenstockError("SINK_UNAVAILABLE", "down"))
    level.value = 0
    line.fire()
    line.offer(lambda: fired.append(2))
    assert fired == []


def test_wakes_of_many_threads_fire_once_each() -> None:
    line, level, counters, latch = wake_line()
    fired: list[int] = []

    def work(start: int) -> None:
        rng = random.Random(start)
        for n in range(start, start + 500):
            with latch.lock:
                level.value = rng.randrange(100)
            line.offer(lambda n=n: fired.append(n))  # type: ignore[misc]

    threads = [threading.Thread(target=work, args=(k * 500,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    level.value = 0
    line.fire()
    assert sorted(fired) == list(range(2000))
    assert counters.wake_calls == 2000
    # Of one thread's events none overtakes another.
    for k in range(4):
        mine = [n for n in fired if n // 500 == k]
        assert mine == sorted(mine)
