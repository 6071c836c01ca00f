"""The one failure of a sink."""

import threading

import pytest

from penstock.sink.failure_latch import FailureLatch

WAIT_S = 60.0


def test_the_first_error_stays_and_everybody_hears_of_it_once() -> None:
    latch, heard = FailureLatch(), []
    latch.listen(lambda: heard.append("before"))
    latch.check()
    latch.trip(KeyError("first"))
    latch.trip(KeyError("second"))
    latch.listen(lambda: heard.append("after"))
    assert heard == ["before", "after"]
    with pytest.raises(KeyError, match="first"):
        latch.check()


def test_a_trip_ends_every_wait_and_a_predicate_that_holds_comes_before_it() -> None:
    latch, errors = FailureLatch(), []
    condition, waits = latch.condition(), threading.Event()

    def hold() -> bool:
        waits.set()
        return False

    def wait() -> None:
        with latch.lock, pytest.raises(KeyError) as caught:
            latch.wait_for(condition, hold)
        errors.append(caught.value)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(WAIT_S)
    latch.trip(KeyError("gone"))
    thread.join(WAIT_S)
    assert errors == [latch.error]
    with latch.lock:
        latch.wait_for(condition, lambda: True)
