from __future__ import annotations

import pytest

from penstock.feed.window.fence import OwnerFence, driver_meta, shared_meta
from penstock.meta.engine import sqlite_url
from penstock.model.errors import PenstockError
from testing.twins.clock import SimulatedClock


class Owner:
    """Who answers whether an epoch is the feed's."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.error: PenstockError | None = None

    def check(self, feed: str, epoch: int) -> None:
        self.asked.append((feed, epoch))
        if self.error is not None:
            raise self.error


def test_an_answer_counts_for_a_moment() -> None:
    owner, clock = Owner(), SimulatedClock()
    fence = OwnerFence("f", 3, owner.check, fresh_s=1.0, clock=clock)
    for _ in range(5):
        fence()
    assert owner.asked == [("f", 3)]
    clock.advance(1.0)
    fence()
    assert len(owner.asked) == 2


def test_what_is_lost_stays_lost_and_nobody_is_asked_again() -> None:
    owner = Owner()
    fence = OwnerFence("f", 3, owner.check, fresh_s=0.0, clock=SimulatedClock())
    fence()
    owner.error = PenstockError("FENCED", "another owner")
    for _ in range(3):
        with pytest.raises(PenstockError, match="FENCED"):
            fence()
    owner.error = None
    with pytest.raises(PenstockError, match="FENCED"):
        fence()
    assert len(owner.asked) == 2


def test_a_database_that_does_not_answer_stops_a_write_and_loses_nothing() -> None:
    owner = Owner()
    fence = OwnerFence("f", 3, owner.check, clock=SimulatedClock())
    owner.error = PenstockError("META_UNAVAILABLE", "gone")
    with pytest.raises(PenstockError, match="META_UNAVAILABLE"):
        fence()
    owner.error = None
    fence()
    assert len(owner.asked) == 2


def test_a_database_file_of_another_machine_fences_nothing_here(tmp_path) -> None:
    url = sqlite_url(tmp_path / "not-here.db")
    assert shared_meta(url) is None
    with pytest.raises(PenstockError, match="META_UNAVAILABLE"):
        driver_meta(url)
