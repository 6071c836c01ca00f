import threading
from collections.abc import Callable

import pytest

from penstock.model.errors import PenstockError
from penstock.sink.failure_latch import FailureLatch
from penstock.sink.storage.encode.encoder_shards import QUEUED_MAX, EncoderShards

WAIT_S = 120


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
