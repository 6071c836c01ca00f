"""Several supervisors on one meta database: who takes which feeds, and who hands them over."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack

from penstock.config.server_tree import SupervisorSettings
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord, ServerRecord, ServerState
from penstock.server.feeds.supervisor import Supervisor
from testing.paths.feed_run import ScriptedFeedRunFactory
from testing.twins.clock import SimulatedClock

Build = Callable[..., tuple[Supervisor, ScriptedFeedRunFactory]]


def create(meta: MetaDatabase, name: str = "orders") -> None:
    meta.create_feed(FeedRecord(name, "u", "{}"), [])


def owners(meta: MetaDatabase) -> str:
    return "".join(sorted(feed.owner or "-" for feed in meta.list_feeds()))


def test_new_feeds_are_shared(meta: MetaDatabase, build: Build, clock: SimulatedClock) -> None:
    servers = [build(owner)[0] for owner in "abc"]
    for server in servers:
        server.scan()
    for number in range(7):
        create(meta, f"f{number}")
    for _ in range(3):
        for server in servers:
            server.scan()
        clock.advance(1)
    assert owners(meta) in {"aaabbcc", "aabbbcc", "aabbccc", "aaabbbc"}


def test_a_server_that_comes_later_is_given_its_part(meta: MetaDatabase, build: Build, clock: SimulatedClock) -> None:
    for number in range(4):
        create(meta, f"f{number}")
    first, factory = build("a")
    first.scan()
    runs = [factory.next_run() for _ in range(4)]
    second, _ = build("b")
    for _ in range(20):
        second.scan()
        clock.advance(1)
        first.scan()
        for keeper in first._owned():
            if keeper.stopping:
                assert keeper.join(30)
    assert owners(meta) == "aabb"
    assert sum(run.stopped.is_set() for run in runs) == 2


def test_what_others_leave_alone_is_taken(meta: MetaDatabase, build: Build, clock: SimulatedClock) -> None:
    """The other server says that it lives and claims nothing."""
    meta.announce(ServerRecord("b"), 9_000)
    create(meta, "f1")
    create(meta, "f2")
    server, factory = build("a")
    for _ in range(4):
        server.scan()
        clock.advance(1)
        meta.announce(ServerRecord("b"), 9_000)
    runs = [factory.next_run() for _ in range(2)]
    for _ in range(20):
        server.scan()
        clock.advance(1)
        meta.announce(ServerRecord("b"), 9_000)
    assert owners(meta) == "aa"
    assert not any(run.stopped.is_set() for run in runs), "and is not handed over to who leaves it alone"


def test_a_server_is_drained_and_takes_feeds_again(meta: MetaDatabase, build: Build, clock: SimulatedClock) -> None:
    for number in range(3):
        create(meta, f"f{number}")
    first, factory = build("a")
    first.scan()
    runs = [factory.next_run() for _ in range(3)]
    second, _ = build("b")
    second.scan()
    first.drain(True)
    first.scan()
    for keeper in first._owned():
        assert keeper.join(30)
    first.scan()
    assert all(run.stopped.is_set() for run in runs)
    assert {(s.owner, s.state) for s in first.servers} == {("a", ServerState.DRAINING), ("b", ServerState.ACTIVE)}
    for _ in range(3):
        second.scan()
        first.scan()
        clock.advance(1)
    assert owners(meta) == "bbb"
    first.drain(False)
    create(meta, "f3")
    first.scan()
    assert owners(meta) == "abbb"


def test_feeds_that_share_a_log_stay_together(meta: MetaDatabase, clock: SimulatedClock, settings: SupervisorSettings) -> None:
    with ExitStack() as stack:
        servers = [
            Supervisor(owner, meta, ScriptedFeedRunFactory(), settings, clock, random.Random(0), together=lambda _: True)
            for owner in ("a", "b")
        ]
        for server in servers:
            stack.callback(server.stop)
        create(meta, "f0")
        servers[1].scan()
        for number in range(1, 4):
            create(meta, f"f{number}")
        for _ in range(20):
            for server in servers:
                server.scan()
            clock.advance(1)
        assert owners(meta) == "bbbb"
        servers[1].drain(True)
        servers[1].scan()
        for keeper in servers[1]._owned():
            assert keeper.join(30)
        for _ in range(3):
            for server in reversed(servers):
                server.scan()
        assert owners(meta) == "aaaa"
