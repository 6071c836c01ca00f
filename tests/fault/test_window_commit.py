"""Only the results of the recorded window commit it: not an empty batch of a query that has just begun, nor those of another window."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.feed.window.packing import PlannedPartition
from penstock.feed.window.planner import WindowPlanner
from penstock.feed.window.source import DispatcherGroup, FeedStreamReader
from penstock.feed.window.writer import FeedStreamWriter, WindowPart
from penstock.model.errors import PenstockError
from testing.paths.whole_path import WholePath

SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "ab")]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[WholePath]:
    with contextlib.closing(WholePath(tmp_path, SETUP)) as opened:
        opened.drain()
        yield opened


def test_the_first_batch_of_a_query_does_not_commit_what_another_server_left(path: WholePath) -> None:
    ts = path.write({"d.a": {1: "x"}})
    path.wait_resolved(ts)
    path.feed.run_window(commit=False)
    path.take_over()
    left = path.meta.pending_window("f")
    assert left is not None
    # Its store has nothing yet, so the query begins with a batch from the checkpoint to the checkpoint.
    with contextlib.closing(WindowPlanner.open(path.context)) as planner:
        assert planner.partitions(left.from_ts, left.from_ts) == [PlannedPartition(())]
    for messages in ([], [WindowPart(b"[]")]):
        FeedStreamWriter(path.context).commit(messages, 0)
    assert path.meta.pending_window("f") == left
    assert path.meta.get_feed("f").checkpoint_ts == left.from_ts
    path.drain()
    verdict = path.verify()
    verdict.check()
    assert verdict.rows == 1


def test_a_commit_without_the_results_of_the_window_is_refused(path: WholePath) -> None:
    path.wait_resolved(path.write({"d.a": {1: "x"}, "d.b": {1: "y"}}))
    path.feed.run_window(commit=False)
    before = path.meta.pending_window("f")
    assert before is not None
    for to_ts in (before.to_ts, before.to_ts + 1):
        with pytest.raises(PenstockError, match=r"WINDOW_OUT_OF_ORDER.*lack \['1-0', '2-0'\]"):
            FeedStreamWriter(path.context).commit([WindowPart(b"[]", to_ts=to_ts)], 0)
    assert path.meta.pending_window("f") == before
    path.drain()
    path.verify().check()


def test_an_empty_window_has_one_part_and_is_committed(path: WholePath) -> None:
    path.wait_resolved(path.upstream.current_ts())
    with contextlib.closing(WindowPlanner.open(path.context)) as planner:
        from_ts = planner.checkpoint_ts()
        to_ts = planner.next_window_end(from_ts)
        assert to_ts > from_ts
        (part,) = planner.partitions(from_ts, to_ts)
        assert part == PlannedPartition((), to_ts)
    group = DispatcherGroup(msgspec.json.encode(part))
    message = FeedStreamWriter(path.context).write(FeedStreamReader(path.context).read(group))
    FeedStreamWriter(path.context).commit([message], 0)
    assert path.meta.get_feed("f").checkpoint_ts == to_ts
