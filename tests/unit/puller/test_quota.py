from __future__ import annotations

import threading

import pytest

from penstock.model.errors import InvariantError
from penstock.puller.quota import ByteQuota
from testing.checks.looked_inside import wait_for_waiters

WAIT_S = 120


def test_a_heavy_waiter_is_not_starved_by_light_ones() -> None:
    quota = ByteQuota(10)
    assert quota.acquire(8)
    order: list[str] = []
    heavy = threading.Thread(target=lambda: (quota.acquire(10), order.append("heavy")))
    heavy.start()
    assert wait_for_waiters(quota, 1, WAIT_S)
    light = threading.Thread(target=lambda: (quota.acquire(1), order.append("light")))
    light.start()
    assert wait_for_waiters(quota, 2, WAIT_S)
    assert quota.held_bytes == 8
    quota.release(8)
    heavy.join(WAIT_S)
    assert order == ["heavy"]
    quota.release(10)
    light.join(WAIT_S)
    assert order == ["heavy", "light"]
    quota.release(1)
    assert quota.held_bytes == 0


def test_releasing_more_than_is_held_is_a_bug() -> None:
    quota = ByteQuota(10)
    quota.acquire(3)
    with pytest.raises(InvariantError):
        quota.release(4)
    with pytest.raises(InvariantError):
        ByteQuota(0)


def test_close_wakes_waiters_empty_handed() -> None:
    quota = ByteQuota(1)
    assert quota.acquire(1)
    outcome: list[bool] = []
    waiter = threading.Thread(target=lambda: outcome.append(quota.acquire(1)))
    waiter.start()
    quota.close()
    waiter.join(WAIT_S)
    assert outcome == [False]
    assert quota.acquire(1) is False
    quota.release(1)
    assert quota.held_bytes == 0
