from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from penstock.config.server_tree import SupervisorSettings
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import MetaSettings, sqlite_url
from penstock.meta.records import NOBODY, FeedRecord, ReachedState, RequestedState
from penstock.model.errors import PenstockError
from penstock.server.feeds.supervisor import Supervisor
from penstock.server.health.looks import meta_look
from testing.paths.feed_run import ScriptedFeedRun, ScriptedFeedRunFactory
from testing.servers.waiting import wait_until
from testing.twins.clock import SimulatedClock

SETTINGS = SupervisorSettings(lease_s=9, scan_interval_s=1, backoff_s=1, backoff_max_s=4, rebalance_interval_s=5)
Build = Callable[..., tuple[Supervisor, ScriptedFeedRunFactory]]
Outage = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def impatient(tmp_path: Path, clock: SimulatedClock) -> Iterator[MetaDatabase]:
    """The same database, which is away for whoever asks it here as soon as it does not answer for a moment."""
    with MetaDatabase(sqlite_url(tmp_path / "meta.db"), clock, MetaSettings(busy_timeout_s=0.5)) as database:
        yield database


@pytest.fixture
def outage(tmp_path: Path, meta: MetaDatabase) -> Callable[[], AbstractContextManager[None]]:
    """Give what keeps every writer out of the meta database for a while."""

    @contextmanager
    def away() -> Iterator[None]:
        with closing(sqlite3.connect(tmp_path / "meta.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")

    return away


def create(meta: MetaDatabase, name: str = "orders") -> None:
    meta.create_feed(FeedRecord(name, "u", "{}"), [])


def keeper_ended(supervisor: Supervisor, name: str = "orders") -> None:
    keeper = supervisor._keepers.get(name)
    assert keeper is None or keeper.join(120)


def test_new_feed_is_claimed_started_and_shown(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    supervisor, factory = build()
    supervisor.scan()
    run = factory.next_run()
    assert (run.feed.name, run.epoch) == ("orders", 1)
    status = supervisor.status("orders")
    assert status is not None
    assert status.active
    assert meta.get_feed("orders").owner == "a"
    assert supervisor.status("other") is None
    supervisor.scan()
    assert factory.waiting() == 0


def test_stop_ends_runs_and_releases_leases(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    supervisor, factory = build()
    supervisor.scan()
    run = factory.next_run()
    supervisor.stop()
    assert run.stopped.is_set()
    found = meta.get_feed("orders")
    assert (found.owner, found.reached_state) == ("", ReachedState.STOPPED)
    other, other_factory = build("b")
    other.scan()
    assert other_factory.next_run().epoch == 2


def test_lease_is_renewed_at_a_third(meta: MetaDatabase, build: Build, clock: SimulatedClock) -> None:
    create(meta)
    supervisor, factory = build()
    other, other_factory = build("b")
    supervisor.scan()
    run = factory.next_run()
    until_ms = meta.get_feed("orders").lease_until_ms
    clock.advance(2.9)
    supervisor.scan()
    assert meta.get_feed("orders").lease_until_ms == until_ms
    for _ in range(10):
        clock.advance(3)
        supervisor.scan()
        other.scan()
    assert meta.get_feed("orders").lease_until_ms == clock.now_ms() + 9_000
    assert not run.stopped.is_set()
    assert other_factory.waiting() == 0


def test_abandoned_feed_is_taken_over_and_the_old_run_stops(meta: MetaDatabase, build: Build, clock: SimulatedClock) -> None:
    create(meta)
    old, old_factory = build("a")
    old.scan()
    old_run = old_factory.next_run()
    clock.advance(8.9)
    new, new_factory = build("b")
    new.scan()
    assert new_factory.waiting() == 0
    clock.advance(0.1)
    new.scan()
    assert new_factory.next_run().epoch == 2
    old.scan()
    assert old_run.stopped.wait(120)
    keeper_ended(old)
    old.scan()
    assert meta.get_feed("orders").owner == "b"
    assert old.status("orders") is None
    assert old_factory.waiting() == 0


def test_fenced_run_stops_without_writing_anything(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    supervisor, factory = build()
    supervisor.scan()
    factory.next_run().end(PenstockError("FENCED", "epoch 1 has ended"))
    keeper_ended(supervisor)
    found = meta.get_feed("orders")
    assert (found.reached_state, found.error_code) == (ReachedState.RUNNING, "")


def test_transient_errors_restart_with_growing_pauses_for_as_long_as_it_takes(
    meta: MetaDatabase, build: Build, clock: SimulatedClock
) -> None:
    create(meta)
    supervisor, factory = build()
    supervisor.scan()
    for longest_s in (1, 2, *([4] * 40)):
        factory.next_run().end(PenstockError("SINK_UNAVAILABLE", "503 from s3://b?secret-access-key=hunter2"))
        clock.wait_for_waiters(1)
        found = meta.get_feed("orders")
        assert (found.reached_state, found.error_code) == (ReachedState.RETRYING, "SINK_UNAVAILABLE")
        assert "hunter2" not in found.error_text
        clock.advance(longest_s * 0.74)
        assert factory.waiting() == 0
        clock.advance(longest_s * 0.27)
    factory.next_run()
    assert meta.get_feed("orders").reached_state is not ReachedState.FAILED


def test_progress_between_failures_starts_the_count_again(meta: MetaDatabase, build: Build, clock: SimulatedClock) -> None:
    create(meta)
    supervisor, factory = build()
    supervisor.scan()
    for number in range(8):
        run = factory.next_run()
        meta.begin_window("orders", run.epoch, number, number + 1, "{}")
        meta.commit_window("orders", run.epoch, number, number + 1, {})
        run.end(PenstockError("SINK_UNAVAILABLE", "503"))
        clock.wait_for_waiters(1)
        clock.advance(1)
    assert factory.next_run() is not None


@pytest.mark.parametrize("code", ["SINK_UNWRITABLE", "SINK_CONFLICT", "CONFIG_INVALID", "INTERNAL"])
def test_other_errors_stop_this_feed_only(meta: MetaDatabase, build: Build, code: str) -> None:
    create(meta, "bad")
    create(meta, "good")
    supervisor, factory = build()
    supervisor.scan()
    runs = {run.feed.name: run for run in (factory.next_run(), factory.next_run())}
    runs["bad"].end(PenstockError(code, "no"))
    keeper_ended(supervisor, "bad")
    supervisor.scan()
    found = meta.get_feed("bad")
    assert (found.reached_state, found.error_code, found.owner) == (ReachedState.FAILED, code, "")
    supervisor.scan()
    assert factory.waiting() == 0
    assert not runs["good"].stopped.is_set()
    assert runs["bad"].stopped.is_set()


def test_failed_feed_is_tried_again_after_a_restart_of_the_server(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    first, factory = build("a")
    first.scan()
    factory.next_run().end(PenstockError("SINK_UNWRITABLE", "no"))
    keeper_ended(first)
    first.scan()
    second, second_factory = build("b")
    second.scan()
    second_factory.next_run()
    second.scan()
    assert meta.get_feed("orders").owner == "b"


def test_start_that_raises_anything_fails_the_feed(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    supervisor, factory = build("a", RuntimeError("[STALE_READ] history is gone"))
    supervisor.scan()
    run = factory.next_run()
    keeper_ended(supervisor)
    assert run.stopped.is_set()
    assert meta.get_feed("orders").error_code == "STALE_READ"


def test_run_that_ends_without_a_reason_is_restarted(meta: MetaDatabase, build: Build, clock: SimulatedClock) -> None:
    create(meta)
    supervisor, factory = build()
    supervisor.scan()
    factory.next_run().end()
    clock.wait_for_waiters(1)
    clock.advance(1)
    factory.next_run()
    assert meta.get_feed("orders").error_code in {"CANCELLED", ""}


def test_removal_stops_the_run_then_deletes(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    supervisor, factory = build()
    supervisor.scan()
    run = factory.next_run()
    meta.lives.request("orders", RequestedState.REMOVED, NOBODY)
    supervisor.scan()
    keeper_ended(supervisor)
    assert run.stopped.is_set()
    supervisor.scan()
    assert meta.list_feeds() == []
    assert factory.forgotten == ["orders"]


def test_failed_feed_can_be_removed(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    supervisor, factory = build("a", PenstockError("SINK_UNWRITABLE", "no"))
    supervisor.scan()
    factory.next_run()
    keeper_ended(supervisor)
    supervisor.scan()
    meta.lives.request("orders", RequestedState.REMOVED, NOBODY)
    supervisor.scan()
    assert meta.list_feeds() == []


def test_own_leases_of_a_dead_process_are_taken_at_once(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    create(meta, "other")
    meta.claim("orders", "a", 9_000)
    meta.claim("other", "b", 9_000)
    supervisor, factory = build("a")
    supervisor.take_over_own_leases()
    supervisor.scan()
    run = factory.next_run()
    assert (run.feed.name, run.epoch) == ("orders", 2)
    assert meta.get_feed("other").owner == "b"
    assert factory.waiting() == 0


def test_a_server_in_a_copy_of_the_data_directory_takes_the_feeds_and_the_other_is_fenced_and_told(
    meta: MetaDatabase, build: Build, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Both believe that the other is their dead predecessor, so neither may ever have the epoch of the other."""
    create(meta)
    one, factory = build("host-1~aaaa")
    one.scan()
    first = factory.next_run()
    copy, copy_factory = build("host-1~bbbb")
    copy.take_over_own_leases()
    for _ in range(4):
        clock.advance(4)
        one.scan()
        copy.scan()
    wait_until(lambda: factory.waiting() + copy_factory.waiting() > 0, "nobody runs it", 60.0)
    second = copy_factory.next_run() if copy_factory.waiting() else factory.next_run()
    assert first.stopped.wait(60), "who lost the lease stops"
    assert (first.epoch, second.epoch) == (1, 2)
    assert factory.waiting() + copy_factory.waiting() == 0, "one of them runs it"
    assert "works in a copy of this data directory" in caplog.text
    # A successor in the same directory is no copy.
    caplog.clear()
    one.stop()
    copy.stop()
    third, third_factory = build("host-1~cccc")
    third.take_over_own_leases()
    third.scan()
    assert third_factory.next_run().epoch == 3
    assert "copy" not in caplog.text


def test_thread_picks_up_a_new_feed_when_woken(meta: MetaDatabase, build: Build, clock: SimulatedClock) -> None:
    supervisor, factory = build()
    supervisor.start()
    clock.wait_for_waiters(1)
    create(meta)
    supervisor.wake()
    assert factory.next_run().feed.name == "orders"


def test_a_server_that_cannot_run_feeds_claims_none(meta: MetaDatabase, clock: SimulatedClock) -> None:
    create(meta)
    able = [False]
    factory = ScriptedFeedRunFactory()
    supervisor = Supervisor("a", meta, factory, SETTINGS, clock, random.Random(1), lambda: able[0])
    supervisor.scan()
    assert (factory.waiting(), meta.get_feed("orders").owner) == (0, "")
    able[0] = True
    supervisor.scan()
    factory.next_run()
    assert meta.get_feed("orders").owner == "a"
    supervisor.stop()


def test_a_meta_database_that_is_away_takes_no_feed_away(
    meta: MetaDatabase, impatient: MetaDatabase, build: Build, clock: SimulatedClock, outage: Outage
) -> None:
    """For much longer than a lease, and the other server looks first when it is back."""
    create(meta)
    owner, factory = build("a", through=impatient)
    other, other_factory = build("b", through=impatient)
    owner.scan()
    run = factory.next_run()
    other.scan()
    with outage():
        clock.advance(30)
        other.scan()
        owner.scan()
    assert not run.stopped.is_set()
    for _ in range(7):
        other.scan()
        owner.scan()
        clock.advance(1)
    found = meta.get_feed("orders")
    assert (found.owner, found.epoch, run.stopped.is_set()) == ("a", 1, False)
    assert other_factory.waiting() == 0


def test_a_meta_database_that_can_be_read_and_not_written_is_not_well(
    meta: MetaDatabase, impatient: MetaDatabase, outage: Outage, clock: SimulatedClock
) -> None:
    create(meta)
    supervisor = Supervisor("a", impatient, ScriptedFeedRunFactory(), SupervisorSettings(), clock, random.Random(0))
    with outage():
        supervisor.scan()
        look = meta_look(impatient, lambda: supervisor.meta_failure)
        assert (look.ok, "META_UNAVAILABLE" in look.detail, bool(look.hint)) == (False, True, True)
    supervisor.scan()
    assert meta_look(impatient, lambda: supervisor.meta_failure).ok
    supervisor.stop()


def test_an_owner_that_died_while_the_meta_database_was_away_is_followed(
    meta: MetaDatabase, impatient: MetaDatabase, build: Build, clock: SimulatedClock, outage: Outage
) -> None:
    create(meta)
    meta.claim("orders", "a", 9_000)
    other, other_factory = build("b", through=impatient)
    other.scan()
    with outage():
        clock.advance(20)
        other.scan()
    other.scan()
    assert meta.get_feed("orders").owner == "a"

    def taken_later() -> bool:
        clock.advance(1)
        other.scan()
        return other_factory.waiting() > 0

    wait_until(taken_later, "the other server takes it", 60)
    assert other_factory.next_run().epoch == 2


def test_runs_that_fail_while_the_meta_database_is_away_are_tried_again(
    meta: MetaDatabase, impatient: MetaDatabase, build: Build, clock: SimulatedClock, outage: Outage
) -> None:
    create(meta)
    supervisor, factory = build(through=impatient)
    supervisor.scan()
    with outage():
        for _ in range(2):
            factory.next_run().end(PenstockError("META_UNAVAILABLE", "gone"))
            clock.wait_for_waiters(1)
            clock.advance(4)
        factory.next_run().end(PenstockError("META_UNAVAILABLE", "gone"))
        clock.wait_for_waiters(1)
        supervisor.scan()
        assert factory.waiting() == 0

    def begun_at_once() -> bool:
        supervisor.scan()
        return factory.waiting() > 0

    wait_until(begun_at_once, "the pause ends with the outage", 60)
    assert meta.get_feed("orders").owner == "a"


def test_a_feed_that_is_tried_again_says_why_since_when_and_when_next(meta: MetaDatabase, build: Build, clock: SimulatedClock) -> None:
    create(meta)
    supervisor, factory = build()
    supervisor.scan()
    began_ms = clock.now_ms()
    for failures, longest_s in ((1, 1), (2, 2), (3, 4)):
        run = factory.next_run()
        if failures > 1:
            # It has begun again, which is no reason yet to call it sound.
            assert meta.get_feed("orders").reached_state is ReachedState.RETRYING
        run.end(PenstockError("FEED_FAILED", "Python worker failed to connect back."))
        clock.wait_for_waiters(1)
        retry = meta.retries()["orders"]
        assert (retry.since_ms, retry.failures) == (began_ms, failures)
        assert longest_s * 740 <= retry.next_attempt_ms - clock.now_ms() <= longest_s * 1000
        clock.advance(longest_s)
    run = factory.next_run()
    meta.begin_window("orders", run.epoch, 0, 1, "{}")
    meta.commit_window("orders", run.epoch, 0, 1, {})
    wait_until(lambda: meta.get_feed("orders").reached_state is ReachedState.RUNNING, "the feed runs", 60)
    assert (meta.retries(), meta.get_feed("orders").error_code) == ({}, "")


def test_a_run_that_lasts_is_sound_without_progress(meta: MetaDatabase, build: Build, clock: SimulatedClock) -> None:
    create(meta)
    supervisor, factory = build("a", RuntimeError("Connection reset by peer"))
    supervisor.scan()
    factory.next_run()
    clock.wait_for_waiters(1)
    assert meta.get_feed("orders").error_text == "RuntimeError: Connection reset by peer"
    clock.advance(1)
    factory.next_run()
    # What it does once it is started is beside this thread: its beginning is known only when it looked at the clock.

    def sound_later() -> bool:
        clock.advance(11)
        return meta.get_feed("orders").reached_state is ReachedState.RUNNING

    wait_until(sound_later, "the feed runs", 60)


def test_a_pause_is_cut_short(meta: MetaDatabase, build: Build, clock: SimulatedClock) -> None:
    create(meta)
    supervisor, factory = build()
    supervisor.scan()
    factory.next_run().end(PenstockError("SINK_UNAVAILABLE", "503"))
    clock.wait_for_waiters(1)
    supervisor.retry_now("orders")
    factory.next_run()
    supervisor.retry_now("nothing")


def test_a_failed_feed_runs_again_when_it_is_resumed(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    supervisor, factory = build("a", PenstockError("SINK_UNWRITABLE", "no"))
    supervisor.scan()
    factory.next_run()
    keeper_ended(supervisor)
    supervisor.scan()
    supervisor.scan()
    assert factory.waiting() == 0
    assert meta.lives.request("orders", RequestedState.RUNNING, NOBODY)
    supervisor.scan()
    assert factory.next_run().epoch == 2


def test_a_server_that_can_run_nothing_any_more_says_nothing_about_its_feeds(meta: MetaDatabase, clock: SimulatedClock) -> None:
    """The error of a run whose Spark died is no error of the feed, and the next server has it at once."""
    create(meta)
    able = [True]
    factory = ScriptedFeedRunFactory()
    supervisor = Supervisor("a", meta, factory, SETTINGS, clock, random.Random(1), lambda: able[0])
    supervisor.scan()
    run = factory.next_run()
    wait_until(lambda: meta.get_feed("orders").reached_state is ReachedState.RUNNING, "the feed runs", 60)
    able[0] = False
    run.end(PenstockError("FEED_FAILED", "ConnectionRefusedError"))
    keeper_ended(supervisor)
    supervisor.scan()
    found = meta.get_feed("orders")
    assert (found.owner, found.reached_state, found.error_code) == ("", ReachedState.RUNNING, "")
    assert factory.waiting() == 0
    supervisor.stop()


def test_feeds_start_a_few_at_a_time(meta: MetaDatabase, build: Build) -> None:
    for number in range(5):
        create(meta, f"f{number}")
    supervisor, factory = build()
    factory.starting = True
    supervisor.scan()
    started = []
    for _ in range(5 // SETTINGS.starts_at_once):
        runs = [factory.next_run() for _ in range(SETTINGS.starts_at_once)]
        assert factory.waiting() == 0
        started += runs
        for run in runs:
            run.starting = False
    started.append(factory.next_run())
    assert sorted(run.feed.name for run in started) == [f"f{number}" for number in range(5)]


def test_a_feed_that_waits_for_its_turn_stops_at_once(meta: MetaDatabase, build: Build) -> None:
    for number in range(SETTINGS.starts_at_once + 1):
        create(meta, f"f{number}")
    supervisor, factory = build()
    factory.starting = True
    supervisor.scan()
    for _ in range(SETTINGS.starts_at_once):
        factory.next_run()
    supervisor.stop()
    assert {feed.owner for feed in meta.list_feeds()} == {""}
    assert factory.waiting() == 0


def test_feeds_of_another_source_are_left_alone(meta: MetaDatabase, clock: SimulatedClock) -> None:
    create(meta, "mine")
    create(meta, "other")
    factory = ScriptedFeedRunFactory()
    supervisor = Supervisor(
        "a", meta, factory, SETTINGS, clock, random.Random(1), source_of=lambda feed: "" if feed.name == "mine" else None
    )
    supervisor.scan()
    assert factory.next_run().feed.name == "mine"
    clock.advance(60)
    supervisor.scan()
    assert {feed.name: feed.owner for feed in meta.list_feeds()} == {"mine": "a", "other": ""}
    supervisor.stop()


def test_a_feed_whose_target_hangs_keeps_no_other_from_starting(meta: MetaDatabase, build: Build) -> None:
    """A run asks its target before it starts: that takes as long as the target likes, and turns to start are few."""
    supervisor, factory = build()
    hanging, answers = threading.Event(), threading.Event()
    make = factory.create

    def create_run(feed: FeedRecord, epoch: int) -> ScriptedFeedRun:
        if feed.name.startswith("hangs"):
            hanging.set()
            assert answers.wait(60)
        return make(feed, epoch)

    factory.create = create_run  # type: ignore[method-assign]
    for at in range(supervisor._settings.starts_at_once + 1):
        create(meta, f"hangs-{at}")
    supervisor.scan()
    assert hanging.wait(60)
    create(meta, "sound")
    supervisor.scan()
    try:
        assert factory.next_run().feed.name == "sound"
    finally:
        answers.set()
