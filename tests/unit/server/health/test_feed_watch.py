"""A feed that does not go on has a problem, with its stage; one that goes on has none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.config.server_tree import SupervisorSettings
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.records import FeedRecord, RetryRecord
from penstock.server.feeds.ports import RunStatus, SnapshotStatus
from penstock.server.health.feed_watch import FeedWatch
from testing.twins.clock import SimulatedClock

STALL_S = 60.0


class Rig:
    """A feed ``f`` that this server owns, and what its run says."""

    def __init__(self, folder: Path) -> None:
        self.clock = SimulatedClock()
        self.meta = MetaDatabase(sqlite_url(folder / "meta.db"), self.clock)
        self.meta.create_feed(FeedRecord("f", "u", "{}"), [])
        self.epoch = self.meta.claim("f", "me", 3_600_000) or 0
        self.status: RunStatus | None = RunStatus(True, 10)
        self.waits = ""
        self.flush_interval_s = 0.0
        self.watch = FeedWatch(
            "me",
            self.meta,
            lambda _: self.status,
            lambda: self.waits,
            lambda feed: feed.name != "foreign",
            SupervisorSettings(stall_s=STALL_S),
            self.clock,
            lambda _: self.flush_interval_s,
        )

    def stage(self, after_s: float = 0.0) -> str:
        """Return the stage of the problem after so many seconds, each of them looked at."""
        for _ in range(int(after_s)):
            self.watch.look()
            self.clock.advance(1)
        health = self.watch.look()
        problem = self.watch.problem("f")
        assert health.ok is (problem is None)
        return problem.stage if problem else ""

    def deliver(self, to_ts: int) -> None:
        from_ts = self.meta.get_feed("f").checkpoint_ts
        self.meta.begin_window("f", self.epoch, from_ts, to_ts, "{}")
        self.meta.commit_window("f", self.epoch, from_ts, to_ts, {})


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    opened = Rig(tmp_path)
    yield opened
    opened.meta.close()


def test_a_feed_that_goes_on_has_no_problem(rig: Rig) -> None:
    for ts in range(11, 20):
        rig.status = RunStatus(True, ts)
        rig.deliver(ts)
        assert rig.stage(STALL_S / 2) == ""
    assert rig.watch.look().facts == {"f": "created"}


def test_a_source_that_stands_still_or_loops(rig: Rig) -> None:
    rig.deliver(10)
    assert rig.stage(STALL_S - 1) == ""
    assert rig.stage(2) == "capture"
    problem = rig.watch.problem("f")
    assert problem is not None
    assert "does not get beyond ts 10" in problem.text
    rig.status = RunStatus(True, 12)
    assert rig.stage() == ""
    # A table that joins begins further back, and what it gains is progress.
    for ts in (2, 3, 4):
        rig.status = RunStatus(True, ts)
        assert rig.stage(STALL_S - 1) == ""


def test_a_source_that_rises_and_falls_gets_nowhere(rig: Rig) -> None:
    rig.deliver(10)
    stages = []
    for _ in range(20):
        for ts in (8, 9):
            rig.status = RunStatus(True, ts)
            stages.append(rig.stage(5))
    assert stages[0] == ""
    assert stages[-1] == "capture"


def test_what_keeps_the_source_from_being_captured_is_said(rig: Rig) -> None:
    rig.status = RunStatus(True, 0, ("DDL: [UPSTREAM_UNREACHABLE] mysql://u:hunter2@db (3 failures)",))
    assert rig.stage(STALL_S + 1) == "capture"
    problem = rig.watch.problem("f")
    assert problem is not None
    assert "UPSTREAM_UNREACHABLE" in problem.text
    assert "hunter2" not in problem.text


def work(rig: Rig, seconds: float) -> str:
    """Let the source move on each second while nothing is delivered; return the stage."""
    stage = ""
    for _ in range(int(seconds)):
        assert rig.status is not None
        rig.status = RunStatus(True, rig.status.resolved_ts + 1)
        stage = rig.stage()
        rig.clock.advance(1)
    return stage


def test_work_for_which_no_window_is_planned(rig: Rig) -> None:
    assert work(rig, STALL_S - 2) == ""
    assert work(rig, 4) == "plan"
    rig.deliver(20)
    assert rig.stage() == ""


def test_a_feed_that_is_flushed_seldom_has_more_time(rig: Rig) -> None:
    rig.flush_interval_s = 50.0
    assert work(rig, STALL_S + 90) == ""
    assert work(rig, 20) == "plan"


def test_a_window_that_gets_no_executor_and_one_that_is_slow(rig: Rig) -> None:
    rig.meta.begin_window("f", rig.epoch, 0, 10, "{}")
    assert work(rig, STALL_S + 2) == ""
    rig.waits = "1 jobs wait for an executor for 62 s, 0 are granted"
    assert work(rig, 1) == "spark"
    rig.waits = ""
    assert work(rig, 1) == ""
    rig.clock.advance(STALL_S * 9)
    assert work(rig, 1) == "deliver"


def test_reading_the_first_state_takes_as_long_as_it_takes(rig: Rig) -> None:
    rig.status = RunStatus(True, 0, (), SnapshotStatus(10, 1, 5))
    assert rig.stage(STALL_S * 3) == ""
    rig.status = RunStatus(True, 0, starting=True)
    assert rig.stage() == ""


def test_a_first_state_of_which_no_part_ends_and_a_run_that_does_not_begin(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.status = RunStatus(True, 0, starting=True)
    assert rig.stage(STALL_S * 10 - 1) == ""
    assert rig.stage(2) == "start"
    for done in range(3):
        rig.status = RunStatus(True, 0, (), SnapshotStatus(10, done, 5))
        assert rig.stage(STALL_S * 9) == ""
    assert rig.stage(STALL_S + 1) == "snapshot"
    problem = rig.watch.problem("f")
    assert problem is not None
    assert problem.text == "no part of the first state was read: 2 of 10 are, for 601 s"
    said = [(r.message, getattr(r, "stage", "")) for r in caplog.records]
    assert said == [("feed has a problem", "start"), ("feed has a problem", "snapshot")]
    rig.status = RunStatus(True, 0, (), SnapshotStatus(10, 3, 5))
    assert rig.stage() == ""


def test_failed_and_retrying_feeds_say_why(rig: Rig) -> None:
    rig.meta.record_error("f", rig.epoch, "SINK_UNAVAILABLE", "503", RetryRecord(5, 6, 1))
    assert rig.stage() == "retrying"
    rig.meta.record_error("f", rig.epoch, "SINK_UNWRITABLE", "no")
    assert rig.stage() == "failed"
    problem = rig.watch.problem("f")
    assert problem is not None
    assert problem.text == "[SINK_UNWRITABLE] no"
    assert problem.hint.endswith("then run penstock feed resume.")


def test_a_feed_that_nobody_has(rig: Rig) -> None:
    rig.meta.release("f", "me", rig.epoch)
    assert rig.stage(23) == ""
    assert rig.stage(2) == "claim"
    rig.meta.claim("f", "other", 3_600_000)
    assert rig.stage() == "", "another server's matter"
    rig.meta.create_feed(FeedRecord("foreign", "u", "{}"), [])
    rig.stage(60)
    assert rig.watch.problems() == {}
