"""What the server asks the meta database does not grow with its feeds: statements and calls are counted, not time."""

from __future__ import annotations

import cProfile
import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from penstock.config.server_tree import SupervisorSettings
from penstock.feed.window.assignment import Dispatcher
from penstock.feed.window.following import to_record
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.server.feeds.capture import DispatcherCapture
from penstock.server.feeds.feed_pins import FeedPins
from penstock.server.feeds.sharing import share_of
from penstock.server.feeds.supervisor import Supervisor
from penstock.sink.contract import DispatcherId
from penstock.store.history import HistoryNeeds
from penstock.store.settings import StoreSettings
from testing.checks.looked_inside import pins_of
from testing.paths.wide_feed import BASE_TS, SOURCE, LivingRuns, StatementCounter, context_of, create_feed, dispatchers_for, tables_of
from testing.twins.clock import SimulatedClock

SETTINGS = SupervisorSettings(lease_s=9, scan_interval_s=1)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def meta(tmp_path: Path, clock: SimulatedClock) -> Iterator[MetaDatabase]:
    with closing(MetaDatabase(sqlite_url(tmp_path / "meta.db"), clock)) as opened:
        yield opened


def add_feeds(meta: MetaDatabase, first: int, count: int) -> None:
    for number in range(first, first + count):
        create_feed(meta, f"f{number:03}", tables_of(2, 10 * number + 100))


def scan_counts(meta: MetaDatabase, clock: SimulatedClock, feeds: int) -> tuple[int, int]:
    """Return statements and counted shares of a look at feeds that all run and are due to be renewed."""
    with ExitStack() as stack:
        supervisor = Supervisor("a", meta, LivingRuns(), SETTINGS, clock, random.Random(0))
        stack.callback(supervisor.stop)
        supervisor.scan()
        assert sum(f.owner == "a" for f in meta.list_feeds()) == feeds
        clock.advance(3)
        profile = cProfile.Profile()
        with StatementCounter() as counter:
            profile.runcall(supervisor.scan)
        until_ms = clock.now_ms() + 9_000
        assert {f.lease_until_ms for f in meta.list_feeds()} == {until_ms}
        shares = sum(entry.callcount for entry in profile.getstats() if entry.code is share_of.__code__)
        return counter.statements, shares


def test_a_look_at_the_feeds_asks_as_much_whatever_their_number(meta: MetaDatabase, clock: SimulatedClock) -> None:
    add_feeds(meta, 0, 3)
    few = scan_counts(meta, clock, 3)
    add_feeds(meta, 3, 9)
    # Claimed again after the first server has stopped; then nothing is claimed, and all leases are renewed.
    assert scan_counts(meta, clock, 12) == few
    assert few[1] == 2, "a share counts all feeds: once for the claims, once for what is handed over"


def test_a_server_below_its_share_does_not_try_leases_that_are_alive(meta: MetaDatabase, clock: SimulatedClock) -> None:
    add_feeds(meta, 0, 12)
    with ExitStack() as stack:
        first, second = (Supervisor(owner, meta, LivingRuns(), SETTINGS, clock, random.Random(0)) for owner in "ab")
        for supervisor in (first, second):
            stack.callback(supervisor.stop)
        first.scan()
        second.scan()
        with StatementCounter() as counter:
            second.scan()
        assert (counter.statements, counter.writes) == (1, 0)
        for _ in range(8):
            clock.advance(1)
            second.scan()
        assert {f.owner for f in meta.list_feeds()} == {"a"}
        clock.advance(1)
        second.scan()
        assert {f.owner for f in meta.list_feeds()} == {"b"}


def test_configurations_are_read_once_and_again_for_a_feed_of_the_same_name(meta: MetaDatabase, clock: SimulatedClock) -> None:
    add_feeds(meta, 0, 3)
    first = meta.list_feeds()
    with StatementCounter() as counter:
        assert meta.list_feeds() == first == [meta.get_feed(feed.name) for feed in first]
    assert counter.statements == 1 + 3
    meta.remove_feed("f001")
    clock.advance(1)
    create_feed(meta, "f001", tables_of(5, 900))
    (again,) = [feed for feed in meta.list_feeds() if feed.name == "f001"]
    assert again == meta.get_feed("f001")
    assert again.config != first[1].config


def test_pins_read_dispatchers_only_where_they_changed(meta: MetaDatabase, clock: SimulatedClock) -> None:
    add_feeds(meta, 0, 20)
    needs = HistoryNeeds(StoreSettings(history_seconds=60, checkpoint_seconds=60, gc_ttl_seconds=3_600), clock)
    pins = FeedPins(meta, needs, SOURCE, clock)
    pins.refresh()
    with StatementCounter() as counter:
        pins.refresh()
    assert counter.statements == 2
    (joined,) = dispatchers_for(tables_of(1, 7_000))
    epoch = meta.claim("f007", "a", 9_000) or 0
    meta.begin_window("f007", epoch, BASE_TS, BASE_TS + 9, "{}")
    before = [to_record(d) for d in dispatchers_for(tables_of(2, 170))]
    meta.commit_window("f007", epoch, BASE_TS, BASE_TS + 9, {}, followers=[*before, to_record(joined)])
    pins.refresh()
    assert set(pins_of(needs, joined.span.span_id)) == {"feed f007"}
    with StatementCounter() as counter:
        pins.refresh()
    assert counter.statements == 2


def test_capture_asks_when_the_run_changed_something_and_now_and_then(meta: MetaDatabase, clock: SimulatedClock, tmp_path: Path) -> None:
    dispatchers = create_feed(meta, "f", tables_of(3))
    context = context_of(meta, sqlite_url(tmp_path / "meta.db"), "f", dispatchers, tmp_path, 2)
    captured: list[DispatcherId] = []
    changes = 0

    def capture(dispatcher: Dispatcher) -> None:
        captured.append(dispatcher.id)

    watcher = DispatcherCapture(context, meta, None, capture, clock, lambda: changes)  # type: ignore[arg-type]

    def asked() -> bool:
        with StatementCounter() as counter:
            watcher.follow()
        return counter.statements > 0

    assert [asked(), asked()] == [True, False]
    assert captured == [d.id for d in dispatchers]
    changes += 1
    assert [asked(), asked()] == [True, False]
    clock.advance(9.9)
    assert not asked()
    clock.advance(0.2)
    assert [asked(), asked()] == [True, False]
