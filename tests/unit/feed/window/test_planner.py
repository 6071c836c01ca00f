"""When windows begin: an interval apart, at once where more waits, and more often while the feed catches up."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.feed.window.pace import BEHIND_INTERVALS
from penstock.feed.window.planner import WindowPlanner
from penstock.model.timestamp import physical_ms
from penstock.store.flight.client import FlightStoreClient
from testing.paths.whole_path import WholePath

SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "ab")]


class HandClock:
    """A clock that is set by hand; nobody waits for it."""

    def __init__(self) -> None:
        self.passed_s = 100.0
        self.wall_ms = 0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_s(self) -> float:
        return self.passed_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        raise AssertionError("a planner does not wait")


class Rig:
    """A feed that keeps up, and its planner."""

    def __init__(self, root: Path) -> None:
        self.path = WholePath(root, SETUP)
        self.path.drain()
        self.clock = HandClock()
        context = self.path.context
        self.store = FlightStoreClient(context.flight_location, context.flight_token)
        self.planner = WindowPlanner(context, self.path.meta, self.store, self.clock)
        self.written = 0

    @property
    def checkpoint_ts(self) -> int:
        return self.path.meta.get_feed("f").checkpoint_ts

    def close(self) -> None:
        self.store.close()
        self.path.close()

    def write(self) -> int:
        """Commit a change, and return its ts once the store has it."""
        self.written += 1
        ts = self.path.write({"d.a": {self.written: "x"}})
        self.path.wait_resolved(ts)
        return ts

    def begins(self) -> bool:
        """Return whether a window begins now; one that does is delivered and committed."""
        before = self.checkpoint_ts
        if self.planner.next_window_end(before) == before:
            return False
        self.path.feed.run_window()
        self.clock.wall_ms = physical_ms(self.checkpoint_ts)
        return True


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with contextlib.closing(Rig(tmp_path)) as opened:
        opened.clock.wall_ms = physical_ms(opened.checkpoint_ts)
        yield opened


def test_a_feed_that_keeps_up_waits_an_interval_between_windows(rig: Rig) -> None:
    interval_s = rig.path.context.settings.flush_interval_s
    rig.write()
    assert rig.begins()
    rig.write()
    assert not rig.begins()
    rig.clock.passed_s += interval_s / 2
    assert not rig.begins()
    rig.clock.passed_s += interval_s / 2
    assert rig.begins()


def test_a_feed_that_is_behind_does_not_wait(rig: Rig) -> None:
    interval_s = rig.path.context.settings.flush_interval_s
    rig.write()
    assert rig.begins()
    last = rig.write()
    assert not rig.begins()
    behind_ms = int(BEHIND_INTERVALS * interval_s * 1000) + 1
    rig.clock.wall_ms = physical_ms(rig.checkpoint_ts) + behind_ms
    assert physical_ms(last) > physical_ms(rig.checkpoint_ts)
    rig.clock.passed_s += rig.path.context.settings.trigger_interval_s
    assert rig.begins()


def test_while_capture_is_behind_windows_stay_apart_and_ever_more(rig: Rig) -> None:
    interval_s = rig.path.context.settings.flush_interval_s
    for apart_s in (interval_s / 4, interval_s / 2, interval_s, interval_s):
        rig.write()
        rig.clock.wall_ms += int(2 * BEHIND_INTERVALS * interval_s * 1000)
        assert not rig.begins()
        rig.clock.passed_s += apart_s / 2
        assert not rig.begins()
        rig.clock.passed_s += apart_s / 2
        assert rig.begins()


def test_what_waits_behind_a_ddl_is_not_kept_waiting(rig: Rig) -> None:
    rig.write()
    rig.path.upstream.execute_ddl("DROP TABLE d.b")
    last = rig.write()
    assert rig.begins()
    assert rig.checkpoint_ts < last
    assert rig.begins()
    assert rig.checkpoint_ts >= last
    rig.write()
    assert not rig.begins()
