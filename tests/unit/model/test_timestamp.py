import datetime as dt
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.timestamp import (
    LOGICAL_MAX,
    PHYSICAL_MS_MAX,
    TS_MAX,
    TS_ZERO,
    TimestampOracle,
    compose_ts,
    lag_seconds,
    logical,
    physical_ms,
    to_datetime,
)
from testing.twins.clock import SimulatedClock

NOON = dt.datetime(2026, 11, 15, 12, 0, 0, 123_000, tzinfo=dt.UTC)
NOON_MS = 1_794_744_000_123


def test_known_values() -> None:
    assert compose_ts(NOON_MS, 7) == NOON_MS * 262_144 + 7
    assert to_datetime(compose_ts(NOON_MS, 7)) == NOON
    assert compose_ts(0) == TS_ZERO
    assert compose_ts(PHYSICAL_MS_MAX, LOGICAL_MAX) == TS_MAX


@given(st.integers(0, PHYSICAL_MS_MAX), st.integers(0, LOGICAL_MAX))
def test_parts_survive_and_order_is_physical_then_logical(ms: int, count: int) -> None:
    ts = compose_ts(ms, count)
    assert (physical_ms(ts), logical(ts)) == (ms, count)
    assert ts <= TS_MAX
    if count < LOGICAL_MAX:
        assert compose_ts(ms, count + 1) == ts + 1
    elif ms < PHYSICAL_MS_MAX:
        assert compose_ts(ms + 1) == ts + 1


@given(st.integers(0, PHYSICAL_MS_MAX))
def test_a_date_is_exact_to_the_millisecond(ms: int) -> None:
    since_epoch = to_datetime(compose_ts(ms, LOGICAL_MAX)) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert since_epoch // dt.timedelta(milliseconds=1) == ms
    assert since_epoch % dt.timedelta(milliseconds=1) == dt.timedelta(0)


@pytest.mark.parametrize(("ms", "count"), [(-1, 0), (0, -1), (0, LOGICAL_MAX + 1), (PHYSICAL_MS_MAX + 1, 0)])
def test_parts_out_of_range_are_refused(ms: int, count: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        compose_ts(ms, count)


def test_lag_is_never_negative() -> None:
    clock = SimulatedClock(now_ms=NOON_MS)
    assert lag_seconds(compose_ts(NOON_MS - 1_500), clock) == 1.5
    assert lag_seconds(compose_ts(NOON_MS + 1_500), clock) == 0.0


def test_the_oracle_follows_the_clock_and_grows_while_it_stands() -> None:
    clock = SimulatedClock(now_ms=NOON_MS)
    oracle = TimestampOracle(clock)
    first = oracle.next_ts()
    assert first == compose_ts(NOON_MS)
    assert oracle.next_ts() == first + 1
    clock.advance(1)
    assert oracle.next_ts() == compose_ts(NOON_MS + 1_000)


def test_the_oracle_never_goes_below_its_floor() -> None:
    floor = compose_ts(NOON_MS + 5_000, LOGICAL_MAX)
    oracle = TimestampOracle(SimulatedClock(now_ms=NOON_MS), floor_ts=floor)
    assert oracle.next_ts() == floor + 1 == compose_ts(NOON_MS + 5_001)


def test_threads_never_share_a_timestamp() -> None:
    oracle = TimestampOracle(SimulatedClock(now_ms=NOON_MS))
    taken: list[list[int]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda out=out: out.extend(oracle.next_ts() for _ in range(500))) for out in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len({ts for out in taken for ts in out}) == 2_000
    assert all(out == sorted(out) for out in taken)
