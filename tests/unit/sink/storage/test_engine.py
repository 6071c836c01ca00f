"""The parts of the engine one by one: wakes, gate, shards, active set, intervals, failpoints."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from penstock.model.errors import PenstockError
from penstock.model.failpoints import POINTS, Failpoints
from penstock.sink.storage.encode.active_set import ActiveSet
from penstock.sink.storage.encode.encoder_shards import QUEUED_MAX, EncoderShards
from penstock.sink.storage.encode.flush_policy import IntervalFlush
from penstock.sink.storage.failure_latch import FailureLatch
from penstock.sink.storage.metrics import SinkCounters
from penstock.sink.storage.spool.watermarks import WakeLine, Watermarks
from penstock.sink.wake_gate import WakeGate, WakeGateSettings
from penstock.testing.twins.clock import SimulatedClock

WAIT_S = 10


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


def test_the_gate_bounds_events_and_bytes_and_opens_at_a_failure() -> None:
    gate = WakeGate(WakeGateSettings(events_max=3, bytes_max=100))
    wakes = [gate.enter(40), gate.enter(40)]
    passed = threading.Event()

    def third() -> None:
        wakes.append(gate.enter(40))
        passed.set()

    thread = threading.Thread(target=third)
    thread.start()
    assert not passed.wait(0.05)
    wakes[0]()
    assert passed.wait(WAIT_S)
    thread.join()
    for wake in wakes[1:]:
        wake()
    assert gate.events == 0
    # A larger one passes alone.
    gate.enter(1_000)()
    gate.enter(99)
    late = threading.Thread(target=gate.enter, args=(99,))
    late.start()
    gate.open()
    late.join(WAIT_S)
    assert not late.is_alive()


def close(latch: FailureLatch, *joined: Callable[[], None]) -> None:
    latch.trip(PenstockError("CANCELLED", "the test ends"))
    for join in joined:
        join()


def test_shards_keep_the_order_of_a_key_and_a_slow_one_delays_nobody_else() -> None:
    latch = FailureLatch()
    shards = EncoderShards(3, latch)
    done: dict[int, list[int]] = {key: [] for key in range(10)}
    gate, finished = threading.Event(), threading.Semaphore(0)
    for key in done:
        shards.open(key)
    shards.submit(0, lambda: (gate.wait(WAIT_S), None)[1])
    for n in range(50):
        for key in done:
            shards.submit(key, lambda key=key, n=n: (done[key].append(n), finished.release())[1])  # type: ignore[misc]
    # All but the slow one end while it is still at its first job.
    assert all(finished.acquire(timeout=WAIT_S) for _ in range(9 * 50))
    assert done[0] == []
    assert all(done[key] == list(range(50)) for key in range(1, 10))
    gate.set()
    assert all(finished.acquire(timeout=WAIT_S) for _ in range(50))
    assert done[0] == list(range(50))
    assert shards.queued == 0
    shards.close(3)
    assert not shards.submit(3, lambda: None)
    close(latch, shards.join)


def test_a_failed_job_stops_all_shards() -> None:
    latch = FailureLatch()
    shards = EncoderShards(2, latch)
    shards.open("a")
    heard = threading.Event()
    latch.listen(heard.set)
    shards.submit("a", lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert heard.wait(WAIT_S)
    with pytest.raises(ZeroDivisionError):
        shards.submit("a", lambda: None)
    shards.join()


def test_a_caller_that_ignores_wakes_is_stopped() -> None:
    latch = FailureLatch()
    shards = EncoderShards(1, latch)
    shards.open("a")
    gate, started = threading.Event(), threading.Event()
    shards.submit("a", lambda: (started.set(), gate.wait(WAIT_S), None)[2])
    for _ in range(QUEUED_MAX - 1):
        shards.submit("a", lambda: None)
    started.wait(WAIT_S)
    shards.submit("a", lambda: None)
    with pytest.raises(PenstockError, match="does not wait for wakes"):
        shards.submit("a", lambda: None)
    latch.trip(PenstockError("CANCELLED", "the test ends"))
    gate.set()
    shards.join()


def test_the_active_set_holds_what_is_active_since_when() -> None:
    rng = random.Random(3)
    active: ActiveSet[int] = ActiveSet()
    model: dict[int, float] = {}
    for step in range(5000):
        key, now = rng.randrange(40), float(step)
        match rng.randrange(4):
            case 0 | 1:
                since = now - rng.random()
                active.add(key, since)
                model.setdefault(key, since)
            case 2:
                active.discard(key)
                model.pop(key, None)
            case _:
                before = now - rng.randrange(30)
                due = sorted((k for k, since in model.items() if since <= before), key=lambda k: model[k])
                assert active.due(before) == due
                for k in due:
                    del model[k]
        assert len(active) == len(model)
        assert active.earliest_s() == min(model.values(), default=None)
        assert (key in active) == (key in model)
    assert len(active._heap) < 200


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


def test_failpoints_act_when_armed_and_only_then() -> None:
    clock = SimulatedClock()
    points = Failpoints("data-put:before=raise@2,index-put:after=raise", clock)
    points.reach("data-put:before")
    points.reach("metadata:before")
    with pytest.raises(PenstockError, match=r"FAILPOINT.*pass 2"):
        points.reach("data-put:before")
    points.reach("data-put:before")
    for _ in range(2):
        with pytest.raises(PenstockError, match="FAILPOINT"):
            points.reach("index-put:after")
    with pytest.raises(PenstockError, match="INTERNAL"):
        points.reach("nonsense")
    points.arm("")
    points.reach("index-put:after")
    points.arm("progress:before=delay:3")
    thread = threading.Thread(target=points.reach, args=("progress:before",))
    thread.start()
    clock.wait_for_waiters(1)
    clock.advance(3)
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("script", ["data-put=kill", "data-put:before", "data-put:before=explode", "data-put:before=kill@x", "a:b=raise"])
def test_scripts_are_checked(script: str) -> None:
    with pytest.raises(PenstockError, match="CONFIG_INVALID"):
        Failpoints(script)


def test_a_failpoint_kills_another_process() -> None:
    script = "from penstock.model.failpoints import reach\nreach('progress:before')\nreach('progress:after')\n"
    environment = os.environ | {"PENSTOCK_FAILPOINTS": "progress:after=kill"}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert "spool-write:before" in POINTS
