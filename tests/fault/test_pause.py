"""A feed that is paused at any step of a window loses nothing, repeats nothing and goes no further; nor does one that ends there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.meta.records import NOBODY, ReachedState, RequestedState
from penstock.model.errors import PenstockError
from penstock.model.failpoints import FAILPOINTS, FEED_POINTS, arm
from testing.checks.target_audit import DeliveredChanges, checkpoint_of, digests, numbering_problems
from testing.paths.whole_path import WholePath

SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "ab")]
# These depend on how much there is and how long it takes.
RARE = {"spool-write", "cut-record"}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[WholePath]:
    # A feed of transactions does everything that another does, and writes its index besides.
    with contextlib.closing(WholePath(tmp_path, SETUP, sink_options={"transaction-atomicity": "transaction"})) as opened:
        yield opened
    arm("")


def work(path: WholePath, at: int) -> int:
    """Write around a DDL inside a window and one that ends it; return the ts up to which there is something to deliver."""
    path.write({"d.a": {at: f"a{at}"}, "d.b": {at: f"b{at}", 1000: f"changes {at}"}})
    path.upstream.execute_ddl(f"ALTER TABLE d.a ADD COLUMN x{at} INT DEFAULT {at}")
    path.write({"d.a": {at: f"later {at}"}})
    path.upstream.execute_ddl("TRUNCATE TABLE d.b")
    return path.write({"d.b": {at: "after"}})


def run_until_halted(path: WholePath, until_ts: int) -> bool:
    try:
        path.feed.drain(until_ts, 60)
    except PenstockError as error:
        if error.code != "FEED_PAUSED":
            raise
        return True
    return False


def test_pause_and_resume_at_any_point(path: WholePath) -> None:
    path.drain()
    reached = set()
    for at, point in enumerate(sorted(FEED_POINTS)):
        until_ts = work(path, at)
        stood = []

        def pause(point: str = point, stood: list[int] = stood) -> None:
            path.meta.lives.request("f", RequestedState.PAUSED, NOBODY)
            stood.append(path.meta.checkpoint_ts("f"))
            reached.add(point)

        FAILPOINTS.call(point, pause)
        halted = run_until_halted(path, until_ts)
        arm("")
        assert halted == bool(stood), point
        if stood:
            # From the answer to the pause on.
            assert path.meta.checkpoint_ts("f") == stood[0]
            assert path.meta.lives.rest("f", path.epoch) is ReachedState.PAUSED
        published = digests(path.target)
        if at % 3 == 0:
            path.restart(lose_store=at % 2 == 0)
        if at % 3 == 1:
            path.take_over(f"server {at}")
        assert not stood or run_until_halted(path, until_ts), "it stays paused through restarts and takeovers"
        assert digests(path.target) == published
        path.meta.lives.request("f", RequestedState.RUNNING, NOBODY)
        path.drain()
        after = digests(path.target)
        assert {name: after.get(name) for name in published} == published
        assert numbering_problems(path.target) == []
        assert checkpoint_of(path.target) == path.meta.checkpoint_ts("f")
    assert {p.partition(":")[0] for p in FEED_POINTS - reached} <= RARE
    path.verify().check()
    assert DeliveredChanges(path.reader()).problems() == []
