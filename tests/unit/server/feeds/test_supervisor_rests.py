"""Feeds that shall not run: paused and cancelled ones, through restarts and takeovers."""

from __future__ import annotations

from collections.abc import Callable

from penstock.meta.database import MetaDatabase
from penstock.meta.records import NOBODY, FeedRecord, ReachedState, RequestedState
from penstock.model.errors import PenstockError
from penstock.server.feeds.supervisor import Supervisor
from testing.paths.feed_run import ScriptedFeedRunFactory
from testing.servers.waiting import wait_until
from testing.twins.clock import SimulatedClock

Build = Callable[..., tuple[Supervisor, ScriptedFeedRunFactory]]


def create(meta: MetaDatabase, name: str = "orders") -> None:
    meta.create_feed(FeedRecord(name, "u", "{}"), [])


def states(meta: MetaDatabase, name: str = "orders") -> tuple[str, str, str]:
    feed = meta.get_feed(name)
    return feed.requested_state.value, feed.reached_state.value, feed.owner


def ended(supervisor: Supervisor, name: str = "orders") -> None:
    keeper = supervisor._keepers.get(name)
    assert keeper is None or keeper.join(60)


def test_a_paused_feed_is_stopped_at_once_left_alone_and_goes_on_when_it_is_resumed(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    create(meta, "other")
    supervisor, factory = build()
    supervisor.scan()
    runs = {run.feed.name: run for run in (factory.next_run(), factory.next_run())}
    meta.lives.request("orders", RequestedState.PAUSED, NOBODY)
    supervisor.scan()
    assert runs["orders"].stopped.wait(60)
    assert runs["orders"].stopped_at_once
    ended(supervisor)
    supervisor.scan()
    assert states(meta) == ("paused", "paused", "")
    for _ in range(3):
        supervisor.scan()
    assert (factory.waiting(), runs["other"].stopped.is_set()) == (0, False)
    meta.lives.request("orders", RequestedState.RUNNING, NOBODY)
    supervisor.scan()
    assert factory.next_run().epoch == 2


def test_a_run_that_meets_the_pause_first_has_not_failed(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    supervisor, factory = build()
    supervisor.scan()
    run = factory.next_run()
    meta.lives.request("orders", RequestedState.PAUSED, NOBODY)
    run.end(PenstockError("FEED_PAUSED", "feed orders is paused"))
    ended(supervisor)
    supervisor.scan()
    assert states(meta) == ("paused", "paused", "")
    assert meta.get_feed("orders").error_code == ""


def test_a_pause_survives_restarts_and_the_loss_of_the_owner(meta: MetaDatabase, build: Build, clock: SimulatedClock) -> None:
    create(meta)
    first, factory = build("a")
    first.scan()
    factory.next_run()
    wait_until(lambda: meta.get_feed("orders").reached_state is ReachedState.RUNNING, "the feed runs", 60)
    meta.lives.request("orders", RequestedState.PAUSED, NOBODY)
    # The owner never looks again: who takes over finds that the feed rests, and runs nothing.
    second, second_factory = build("b")
    second.scan()
    assert states(meta) == ("paused", "running", "a")
    clock.advance(30)
    for _ in range(3):
        second.scan()
        clock.advance(30)
    assert states(meta) == ("paused", "paused", "")
    third, third_factory = build("b")
    third.scan()
    assert (second_factory.waiting(), third_factory.waiting()) == (0, 0)
    meta.lives.request("orders", RequestedState.RUNNING, NOBODY)
    third.scan()
    assert third_factory.next_run().feed.name == "orders"


def test_a_feed_that_waits_for_its_next_attempt_or_failed_is_paused(meta: MetaDatabase, build: Build, clock: SimulatedClock) -> None:
    for name in ("failed", "waits"):
        create(meta, name)
    supervisor, factory = build()
    supervisor.scan()
    runs = {run.feed.name: run for run in (factory.next_run(), factory.next_run())}
    runs["waits"].end(PenstockError("SINK_UNAVAILABLE", "503"))
    clock.wait_for_waiters(1)
    runs["failed"].end(PenstockError("SINK_UNWRITABLE", "no"))
    ended(supervisor, "failed")
    supervisor.scan()
    for name in runs:
        meta.lives.request(name, RequestedState.PAUSED, NOBODY)
    supervisor.scan()
    ended(supervisor, "waits")
    supervisor.scan()
    assert [states(meta, name) for name in sorted(runs)] == [("paused", "paused", "")] * 2
    assert meta.retries() == {}
    for name in runs:
        meta.lives.request(name, RequestedState.RUNNING, NOBODY)
    supervisor.scan()
    assert {factory.next_run().feed.name, factory.next_run().feed.name} == set(runs)


def test_a_feed_that_is_resumed_while_it_is_being_paused_runs(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    supervisor, factory = build()
    supervisor.scan()
    factory.next_run()
    meta.lives.request("orders", RequestedState.PAUSED, NOBODY)
    supervisor.scan()
    meta.lives.request("orders", RequestedState.RUNNING, NOBODY)
    ended(supervisor)
    supervisor.scan()
    assert factory.next_run().epoch == 2
    wait_until(lambda: meta.get_feed("orders").reached_state is ReachedState.RUNNING, "the feed runs", 60)


def test_a_cancelled_feed_is_let_go_of_and_stays_on_record(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    create(meta, "unclaimed")
    meta.lives.request("unclaimed", RequestedState.CANCELLED, NOBODY)
    supervisor, factory = build()
    supervisor.scan()
    run = factory.next_run()
    assert (run.feed.name, factory.forgotten) == ("orders", ["unclaimed"])
    meta.lives.request("orders", RequestedState.CANCELLED, NOBODY)
    supervisor.scan()
    assert run.stopped.wait(60)
    ended(supervisor)
    for _ in range(3):
        supervisor.scan()
    assert [states(meta, name) for name in ("orders", "unclaimed")] == [("cancelled", "cancelled", "")] * 2
    assert (factory.waiting(), factory.forgotten) == (0, ["unclaimed", "orders"])
    meta.lives.request("orders", RequestedState.REMOVED, NOBODY)
    supervisor.scan()
    assert [feed.name for feed in meta.list_feeds()] == ["unclaimed"]


def test_a_finished_feed_is_let_go_of_until_its_end_is_another(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    supervisor, factory = build()
    supervisor.scan()
    factory.next_run().end(PenstockError("FEED_FINISHED", "everything up to 7 is delivered"))
    ended(supervisor)
    supervisor.scan()
    assert states(meta) == ("running", "finished", "")
    assert (meta.get_feed("orders").error_code, factory.forgotten) == ("", ["orders"])
    second, second_factory = build("b")
    for _ in range(3):
        second.scan()
    assert second_factory.waiting() == 0
    assert meta.change_config(meta.get_feed("orders"), "{}", "alter", NOBODY, "", "") == 0
    second.scan()
    assert second_factory.next_run().feed.config_version == 1


def test_a_run_is_stopped_whose_feed_has_another_configuration(meta: MetaDatabase, build: Build) -> None:
    create(meta)
    supervisor, factory = build()
    supervisor.scan()
    run = factory.next_run()
    wait_until(lambda: meta.get_feed("orders").reached_state is ReachedState.RUNNING, "the feed runs", 60)
    meta.change_config(meta.get_feed("orders"), '{"new": 1}', "alter", NOBODY, "", "")
    supervisor.scan()
    assert run.stopped.wait(60)
    assert run.stopped_at_once
    ended(supervisor)
    supervisor.scan()
    again = factory.next_run()
    assert (again.feed.config, again.epoch) == ('{"new": 1}', 2)
    again.end(PenstockError("FEED_ALTERED", "another configuration from ts 5 on"))
    ended(supervisor)
    supervisor.scan()
    assert factory.next_run().epoch == 3
