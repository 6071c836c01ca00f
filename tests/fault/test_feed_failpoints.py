"""A feed that dies before or after any durable step goes on with the same names and bytes; one that lost its lease writes nothing."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.feed.window.barrier import commit_recorded_window
from penstock.feed.window.fence import OwnerFence
from penstock.feed.window.planner import WindowPlanner
from penstock.model.errors import PenstockError
from penstock.model.failpoints import FEED_POINTS, arm
from penstock.readback.inspection import Extent, check_target
from penstock.sink.catalog import open_maintainer
from penstock.target.settings import from_uri
from penstock.target.storage import ObjectTarget
from testing.checks.target_audit import DeliveredChanges, checkpoint_of, data_files, digests, numbering_problems
from testing.paths.local_feed import LocalFeed
from testing.paths.whole_path import WholePath
from testing.twins.clock import SimulatedClock

SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "ab")]
# These depend on how much there is and how long it takes; the tests of the sink's engine reach them.
RARE = {"spool-write", "cut-record"}
# Those of a store on shared storage are passed in tests/integration/test_killed_machines.py, those of other targets in their own tests.
OWN = sorted(FEED_POINTS)


@pytest.fixture
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WholePath]:
    with contextlib.closing(WholePath(tmp_path, SETUP, sink_options=getattr(request, "param", None))) as opened:
        yield opened
    arm("")


def all_files(path: WholePath) -> dict[str, str]:
    folder = path.root / "files"
    indexes = (folder / ".penstock" / "transactions").glob("*")
    return digests(folder) | {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in indexes}


def run_until_it_fails(path: WholePath, until_ts: int) -> bool:
    """Run windows until one fails at a failpoint or everything is delivered; return whether one failed."""
    try:
        path.feed.drain(until_ts, 30)
    except PenstockError as error:
        if error.code != "FAILPOINT":
            raise
        return True
    return False


def check_published(path: WholePath, published: dict[str, str]) -> None:
    after = all_files(path)
    assert {name: after.get(name) for name in published} == published
    # What readers are told never leads what is committed.
    assert checkpoint_of(path.root / "files") <= path.feed.checkpoint_ts()


def work(path: WholePath, at: int) -> int:
    """Write around a DDL inside a window and one that ends it; return the ts up to which there is something to deliver."""
    path.write({"d.a": {at: f"a{at}"}, "d.b": {at: f"b{at}", 1000: f"changes {at}"}})
    path.upstream.execute_ddl(f"ALTER TABLE d.a ADD COLUMN x{at} INT DEFAULT {at}")
    path.write({"d.a": {at: f"later {at}"}})
    path.upstream.execute_ddl("TRUNCATE TABLE d.b")
    return path.write({"d.b": {at: "after"}})


# A feed of transactions does everything that another does, and writes its index besides.
@pytest.mark.parametrize("path", [{"transaction-atomicity": "transaction"}], ids=["transactions"], indirect=True)
@pytest.mark.parametrize("only_pass", [1, pytest.param(2, marks=pytest.mark.chaos), pytest.param(3, marks=pytest.mark.chaos)])
def test_any_point(path: WholePath, only_pass: int) -> None:
    reached = set()
    path.drain()
    for at, point in enumerate(OWN):
        until_ts = work(path, at)
        arm(f"{point}=raise@{only_pass}")
        if run_until_it_fails(path, until_ts):
            reached.add(point)
        arm("")
        published = all_files(path)
        check_published(path, published)
        if at % 3 == 0:
            path.restart(lose_store=at % 2 == 0)
        path.drain()
        check_published(path, published)
        assert numbering_problems(path.root / "files") == []
    path.verify().check()
    assert DeliveredChanges(path.reader()).problems() == []
    # Whatever step died, each file of a committed window has its checksum on record.
    extent = Extent()
    target_uri, settings = from_uri((path.root / "files").as_uri())
    assert list(check_target(ObjectTarget.open(target_uri), settings, extent=extent)) == []
    assert (extent.compared, extent.unrecorded) == (len(data_files(path.root / "files")), 0)
    # And each of its rows is in the index of its window.
    indexed = [file for window in path.reader().transaction_windows(0) for file in window.files]
    assert sorted(file.path for file in indexed) == sorted(data_files(path.root / "files"))
    assert only_pass > 1 or {p.partition(":")[0] for p in set(OWN) - reached} <= RARE


@pytest.mark.parametrize("query", ["ALTER TABLE d.a ADD COLUMN n INT DEFAULT 1", "TRUNCATE TABLE d.a"])
def test_a_ddl_is_not_told_before_all_rows_before_it_are_there(path: WholePath, query: str) -> None:
    path.drain()
    path.write({"d.a": {1: "before"}})
    ddl_ts = path.upstream.execute_ddl(query)
    last_ts = path.write({"d.a": {2: "after"}})
    path.wait_resolved(last_ts)
    for point in ("data-put:before", "index-put:before"):
        arm(f"{point}=raise")
        assert run_until_it_fails(path, last_ts)
        assert not list((path.root / "files").rglob(f"schema_{ddl_ts}_*.json"))
    arm("")
    path.drain()
    assert len(list((path.root / "files").rglob(f"schema_{ddl_ts}_*.json"))) == 1
    path.verify().check()


def test_two_attempts_of_a_window_at_once(path: WholePath) -> None:
    """A speculative task, or one that outlived its driver, beside the attempt that counts."""
    path.drain()
    for at in range(4):
        path.write({"d.a": {i: f"{at} {i}" for i in range(50)}, "d.b": {at: "x"}})
        path.feed.drain(path.snapshot_ts, 30)
        other = LocalFeed(path.context)
        with ThreadPoolExecutor(2) as pool:
            attempts = [pool.submit(feed.run_window, commit=False) for feed in (path.feed, other)]
            [attempt.result(60) for attempt in attempts]
        published = all_files(path)
        path.drain()
        check_published(path, published)
    path.verify().check()
    assert numbering_problems(path.root / "files") == []
    assert DeliveredChanges(path.reader()).problems() == []


@pytest.mark.parametrize("recorded", [False, True])
def test_who_lost_the_lease_writes_nothing(path: WholePath, recorded: bool) -> None:
    path.drain()
    path.write({"d.a": {1: "x"}, "d.b": {1: "y"}})
    path.upstream.execute_ddl("TRUNCATE TABLE d.b")
    last_ts = path.write({"d.b": {2: "z"}})
    path.wait_resolved(last_ts)
    if recorded:
        # The window is on record, and its tasks are about to write.
        with contextlib.closing(WindowPlanner.open(path.context)) as planner:
            assert planner.next_window_end(planner.checkpoint_ts()) > planner.checkpoint_ts()
    context = path.take_over()
    old = LocalFeed(context)
    before = {p: p.read_bytes() for p in (path.root / "files").rglob("*") if p.is_file()}
    late = open_maintainer(path.target_uri, {}, OwnerFence("f", context.epoch, path.meta.check_owner, fresh_s=0))
    for attempt in (old.run_window, lambda: commit_recorded_window(context, last_ts, []), lambda: late.publish_checkpoint(last_ts)):
        with pytest.raises(PenstockError, match="FENCED"):
            attempt()
    assert {p: p.read_bytes() for p in (path.root / "files").rglob("*") if p.is_file()} == before
    path.drain()
    path.verify().check()
    assert checkpoint_of(path.root / "files") == path.feed.checkpoint_ts()


def test_an_answer_of_the_fence_counts_for_a_moment_and_a_loss_for_good() -> None:
    clock, answers = SimulatedClock(), []

    def check_owner(feed: str, epoch: int) -> None:
        answers.append((feed, epoch))
        if len(answers) == 3:
            raise PenstockError("FENCED", "epoch 7 has ended")

    fence = OwnerFence("f", 7, check_owner, fresh_s=1.0, clock=clock)
    fence()
    fence()
    assert answers == [("f", 7)]
    clock.advance(1.5)
    fence()
    clock.advance(1.5)
    for _ in range(2):
        with pytest.raises(PenstockError, match="FENCED"):
            fence()
    assert len(answers) == 3
