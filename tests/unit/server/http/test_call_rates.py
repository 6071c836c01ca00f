from __future__ import annotations

from penstock.server.http.call_rates import CALLERS_MAX, CallRates
from testing.twins.clock import SimulatedClock


def test_a_burst_then_so_many_a_second() -> None:
    clock = SimulatedClock()
    rates = CallRates(2.0, 3.0, clock)
    assert [rates.take("a") for _ in range(5)] == [True, True, True, False, False]
    # A call that was refused costs nothing; another caller has a bucket of its own.
    assert rates.take("b")
    clock.advance(0.5)
    assert [rates.take("a") for _ in range(2)] == [True, False]
    clock.advance(3600.0)
    assert [rates.take("a") for _ in range(4)] == [True, True, True, False]


def test_memory_is_bounded_and_who_calls_often_is_not_forgotten() -> None:
    rates = CallRates(0.001, 1.0, SimulatedClock())
    assert rates.take("hasty")
    for number in range(2 * CALLERS_MAX):
        rates.take(f"once {number}")
        if number % 1000 == 0:
            assert not rates.take("hasty")
    assert not rates.take("hasty")
    assert rates.take("once 0"), "the caller that was silent longest is forgotten, which allows it more"
    assert not rates.take(f"once {2 * CALLERS_MAX - 1}")
