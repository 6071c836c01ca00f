"""Several supervisors on one meta database: who takes which feeds, and who hands them over."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack

from penstock.config.server_tree import SupervisorSettings
from penstock.meta.database import MetaDatabase
from penstock.meta.records import Actor, FeedRecord, ServerRecord, ServerState
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
                assert keeper.join(120)
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
        assert keeper.join(120)
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
            assert keeper.join(120)
        for _ in range(3):
            for server in reversed(servers):
                server.scan()
        assert owners(meta) == "aaaa"


def scan_all(clock: SimulatedClock, *servers: Supervisor, times: int = 6) -> None:
    """Let servers look again and again, each run that is to stop stopping at once."""
    for _ in range(times):
        for server in servers:
            server.scan()
            for keeper in server._owned():
                if keeper.stopping:
                    assert keeper.join(60)
        clock.advance(1)


def test_a_feed_is_moved_to_the_server_that_an_operator_chose_and_stays_there(
    meta: MetaDatabase, build: Build, clock: SimulatedClock
) -> None:
    first, _ = build("a")
    first.scan()
    for name in ("f1", "f2"):
        create(meta, name)
    first.scan()
    second, _ = build("b")
    scan_all(clock, first, second, times=2)
    assert owners(meta) == "aa"
    for name in ("f1", "f2"):
        assert meta.lives.move(first.companions(meta.get_feed(name)), "b", Actor("ada"))
    assert not meta.lives.move(["f1"], "b", Actor("ada"))
    scan_all(clock, first, second)
    assert owners(meta) == "bb"
    scan_all(clock, first, second, times=30)
    assert owners(meta) == "bb", "sharing does not undo it"
    second.stop()
    scan_all(clock, first, times=20)
    assert owners(meta) == "aa", "who is gone has nothing"
    assert [(e.by, e.what, e.old, e.new) for e in meta.lives.history("f1") if e.what == "move"] == [("ada", "move", "", "b")]


def test_feeds_that_share_a_log_are_moved_together(meta: MetaDatabase, clock: SimulatedClock) -> None:
    settings = SupervisorSettings(lease_s=9, scan_interval_s=1, backoff_s=1, backoff_max_s=4, rebalance_interval_s=5)
    with ExitStack() as stack:
        servers = []
        for owner in "ab":
            one = Supervisor(owner, meta, ScriptedFeedRunFactory(), settings, clock, random.Random(0), together=lambda _: True)
            stack.callback(one.stop)
            servers.append(one)
        for number in range(3):
            create(meta, f"f{number}")
        scan_all(clock, *servers)
        assert owners(meta) == "aaa"
        names = servers[1].companions(meta.get_feed("f1"))
        assert names == ["f0", "f1", "f2"]
        meta.lives.move(names, "b", Actor("ada"))
        scan_all(clock, *servers, times=12)
        assert owners(meta) == "bbb"
        scan_all(clock, *servers, times=20)
        assert owners(meta) == "bbb"
