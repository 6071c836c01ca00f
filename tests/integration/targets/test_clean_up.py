"""Old files of a feed's target expire while the feed runs: each window has a maintainer of its own, the clean-up outlives them all."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.clean_up import FeedCleanUp
from testing.paths.whole_path import WholePath
from testing.twins.clock import SimulatedClock

SETUP = ["CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))"]
EXPIRING = {"file-expiration-days": "1", "file-cleanup-cron-spec": "@every 1h"}
LOOK_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Iterator[WholePath]:
    with contextlib.closing(WholePath(tmp_path, SETUP, sink_options=EXPIRING)) as path:
        path.write({"d.a": {1: "first"}})
        path.drain()
        yield path


def plant(path: WholePath, date: str) -> set[str]:
    """Put a file with its index into the directory of another date; return their paths."""
    version = path.table("d.a").version
    directory = path.target / "d" / "a" / str(version) / date
    (directory / "meta").mkdir(parents=True)
    (directory / "CDC00000000000000000001.csv").write_text("")
    (directory / "meta" / "CDC.index").write_text("CDC00000000000000000001.csv\n")
    return {str(f.relative_to(path.target)) for f in directory.rglob("*") if f.is_file()}


def files(path: WholePath) -> set[str]:
    return {str(f.relative_to(path.target)) for f in path.target.rglob("*") if f.is_file()} - {".penstock/clean-up"}


@contextlib.contextmanager
def running(context: FeedContext, clock: SimulatedClock) -> Iterator[FeedCleanUp]:
    clean_up = FeedCleanUp(context, clock)
    clean_up.start()
    clock.wait_for_waiters(1)
    try:
        yield clean_up
    finally:
        clean_up.stop()


def pass_minutes(path: WholePath, clock: SimulatedClock, minutes: int) -> None:
    """Let time pass as a feed sees it: a window now and then, and a look at the clock each minute."""
    for minute in range(minutes):
        if minute % 20 == 0:
            path.write({"d.a": {minute: f"{minute}"}})
            path.drain()
        clock.advance(LOOK_S)
        clock.wait_for_waiters(1)


def test_files_expire_while_windows_come_and_go(path: WholePath) -> None:
    old, clock = plant(path, "2020-01-01"), SimulatedClock()
    with running(path.context, clock):
        pass_minutes(path, clock, 40)
        assert old <= files(path)
    # The next run goes on where this one was.
    with running(path.context, clock):
        pass_minutes(path, clock, 15)
        assert old <= files(path)
        kept = files(path) - old
        pass_minutes(path, clock, 5)
        assert not old & files(path)
        assert kept <= files(path)
        again = plant(path, "2020-01-02")
        pass_minutes(path, clock, 59)
        assert again <= files(path)
        pass_minutes(path, clock, 1)
        assert not again & files(path)
    path.verify().check()


def test_a_time_that_nobody_ran_at_is_made_up_for(path: WholePath) -> None:
    old, clock = plant(path, "2020-01-01"), SimulatedClock()
    with running(path.context, clock):
        pass_minutes(path, clock, 1)
    clock.advance(86_400)
    assert old <= files(path)
    with running(path.context, clock):
        assert not old & files(path)


def test_who_lost_the_lease_deletes_nothing(path: WholePath) -> None:
    old, clock = plant(path, "2020-01-01"), SimulatedClock()
    with running(path.context, clock):
        pass_minutes(path, clock, 1)
    context = path.take_over()
    clock.advance(86_400)
    late = FeedCleanUp(context, clock)
    late.start()
    # It ends by itself.
    [t.join(120) for t in threading.enumerate() if t.name == "clean-up-f"]
    assert clock.waiters() == 0
    late.stop()
    assert old <= files(path)
    with running(path.context, clock):
        assert not old & files(path)


def test_a_target_that_does_not_let_go_stops_no_feed(path: WholePath, caplog: pytest.LogCaptureFixture) -> None:
    old, clock = plant(path, "2020-01-01"), SimulatedClock()
    metadata = path.target / "metadata"
    with running(path.context, clock):
        pass_minutes(path, clock, 59)
        content = metadata.read_bytes()
        metadata.write_text("torn")
        clock.advance(LOOK_S)
        clock.wait_for_waiters(1)
        assert [r.code for r in caplog.records if r.message == "clean-up failed"] == ["FILE_MALFORMED"]  # type: ignore[attr-defined]
        metadata.write_bytes(content)
        assert old <= files(path)
        pass_minutes(path, clock, 60)
        assert not old & files(path)


def test_nothing_expires_unless_asked(tmp_path: Path) -> None:
    with contextlib.closing(WholePath(tmp_path, SETUP)) as path:
        path.write({"d.a": {1: "first"}})
        path.drain()
        old, clock = plant(path, "2020-01-01"), SimulatedClock()
        clean_up = FeedCleanUp(path.context, clock)
        clean_up.start()
        assert clock.waiters() == 0
        clean_up.stop()
        assert old <= files(path)
