"""Pins and leases: what they hold back, for how long, and that there are never many."""

import pytest

from penstock.model.timestamp import TS_MAX, compose_ts
from penstock.store.history import EXPIRING_MAX, HistoryNeeds
from penstock.store.settings import StoreSettings
from testing.twins.clock import SimulatedClock

HOUR_S = 3_600


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


def ago(clock: SimulatedClock, hours: float) -> int:
    return compose_ts(clock.now_ms() - round(hours * HOUR_S * 1000))


def test_without_needs_the_kept_time_counts(clock: SimulatedClock) -> None:
    needs = HistoryNeeds(StoreSettings(), clock)
    assert needs.keep_above(1) == ago(clock, 1)
    assert needs.checkpoints_above(1) == ago(clock, 24)


def test_the_smallest_pin_of_a_span_holds_it_back_until_gc_ttl(clock: SimulatedClock) -> None:
    needs = HistoryNeeds(StoreSettings(), clock)
    for name, hours in (("a", 5), ("b", 3)):
        needs.pin(1, name, ago(clock, hours))
    assert needs.keep_above(1) == ago(clock, 5)
    assert needs.keep_above(2) == ago(clock, 1)
    needs.pin(1, "a", ago(clock, 30))
    assert needs.keep_above(1) == ago(clock, 24)
    needs.unpin("a")
    assert needs.keep_above(1) == ago(clock, 3)


def test_leases_end_when_they_are_released_or_expire(clock: SimulatedClock) -> None:
    needs = HistoryNeeds(StoreSettings(), clock)
    lease = needs.lease(1, ago(clock, 6))
    old = ago(clock, 7)
    needs.lease_until(1, old, clock.now_ms() + 60_000)
    assert needs.keep_above(1) == old
    clock.advance(61)
    assert needs.keep_above(1) < ago(clock, 6)
    needs.release(lease)
    needs.release(lease)
    assert needs.keep_above(1) == ago(clock, 1)


def test_many_readers_are_held_together_and_none_is_forgotten(clock: SimulatedClock) -> None:
    needs = HistoryNeeds(StoreSettings(), clock)
    started = [ago(clock, 9) + n for n in range(1_000)]
    for n, ts in enumerate(started):
        needs.lease_until(1, ts, clock.now_ms() + 60_000 + n)
    assert len(needs._expiring[1]) <= EXPIRING_MAX
    assert needs.keep_above(1) == started[0]
    clock.advance(60.999)
    assert needs.keep_above(1) <= started[-1]
    clock.advance(1)
    assert needs.keep_above(1) == ago(clock, 1) < TS_MAX


def test_a_feed_that_plans_its_windows_pins_what_it_has_not_read_until_gc_ttl(clock: SimulatedClock) -> None:
    needs = HistoryNeeds(StoreSettings(), clock)
    behind = ago(clock, 20)
    for _ in range(5):
        needs.pin_until(1, behind, clock.now_ms() + 15 * 60_000)
        assert needs.keep_above(1) == max(behind, ago(clock, 24))
        clock.advance(HOUR_S)
        assert needs.keep_above(1) == ago(clock, 1), "it has not planned again in time"
    needs.pin_until(1, behind, clock.now_ms() + 15 * 60_000)
    assert needs.keep_above(1) == ago(clock, 24) > behind
