"""A supervisor with real runs, without Spark: feeds are paused, resumed, altered and ended while their windows go on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.span import DDL_SPAN, Span
from penstock.server.verify.verification import open_reader, verify_target
from testing.checks.target_audit import numbering_problems
from testing.paths.controlled_server import ControlledServer
from testing.paths.whole_path import WholePath
from testing.servers.waiting import wait_until

SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "abc")]


@pytest.fixture
def path(tmp_path: Path) -> WholePath:
    return WholePath(tmp_path, SETUP)


@pytest.fixture
def server(path: WholePath) -> Iterator[ControlledServer]:
    with contextlib.closing(ControlledServer(path, path.upstream, "dataserver://127.0.0.1:1")) as opened:
        yield opened


def verify(server: ControlledServer, path: WholePath, *names: str) -> None:
    ids = sorted(path.table(name).table_id for name in names)
    verify_target(open_reader(server.out.as_uri(), {}), path.upstream, ids).check()
    assert numbering_problems(server.out) == []


def test_a_feed_is_paused_resumed_and_ended(server: ControlledServer, path: WholePath) -> None:
    server.create("d.a", "d.b")
    server.delivers(path.write({"d.a": {1: "x"}}))
    assert server.do("pause")["changed"]
    stood_ts = server.meta.checkpoint_ts("g")
    written_ts = path.write({"d.a": {2: "y"}, "d.b": {2: "y"}})
    server.reaches("paused")
    wait_until(lambda: server.meta.get_feed("g").owner == "", "it is given free", 60)
    server.stop()
    server.start()
    span_id = Span(path.table("d.a").table_id).span_id
    path.wait_until("it is captured meanwhile", lambda: path.store.resolved_ts(span_id) >= written_ts)
    assert (server.meta.checkpoint_ts("g"), server.supervisor.keeps("g")) == (stood_ts, False)
    server.do("resume")
    server.delivers(written_ts)
    server.reaches("running")
    verify(server, path, "d.a", "d.b")
    # While it runs its checkpoint may be beyond any ts that is taken now.
    server.do("pause")
    server.reaches("paused")
    end_ts = path.upstream.current_ts()
    server.do("alter", changes={"until-ts": end_ts})
    server.do("resume")
    server.reaches("finished")
    assert server.meta.checkpoint_ts("g") == end_ts
    wait_until(lambda: {s.span_id for s in path.log.status()} <= {DDL_SPAN.span_id}, "nothing is captured for it", 60)
    server.do("cancel")
    server.reaches("cancelled")


def test_a_feed_that_went_back_goes_on_though_its_target_is_published_further(server: ControlledServer, path: WholePath) -> None:
    server.create("d.a")
    back_ts = path.write({"d.a": {1: "x"}})
    server.delivers(back_ts)
    server.delivers(path.write({"d.a": {2: "y"}}))
    server.do("pause")
    server.reaches("paused")
    stood_ts = server.meta.checkpoint_ts("g")
    server.do("reset", to=str(back_ts))
    server.do("resume")
    written_ts = path.write({"d.a": {3: "z"}})
    server.delivers(max(written_ts, stood_ts + 1))
    rows = [line.split(",") for file in sorted(server.out.glob("d/a/*/**/*.csv")) for line in file.read_text().splitlines()]
    assert sorted(row[4] for row in rows) == ["1", "2", "2", "3"]
    verify(server, path, "d.a")


def test_tables_come_and_go_while_the_feed_runs(server: ControlledServer, path: WholePath) -> None:
    server.create("d.a", "d.b")
    server.delivers(path.write({"d.a": {1: "x"}, "d.b": {1: "goes", 2: "stays"}, "d.c": {1: "before"}}))
    server.do("alter", changes={"tables": ["d.a", "d.c"]})
    wait_until(server.has_tables("d.a", "d.c"), "c is in, and b is out", 60)
    wait_until(lambda: not server.captures(path.table("d.b").table_id), "b is not captured any more", 60)
    path.write({"d.b": {3: "while out"}}, {"d.b": [1]})
    server.do("alter", changes={"tables": ["d.*"]})
    wait_until(server.has_tables("d.a", "d.b", "d.c"), "all are in", 60)
    server.delivers(path.write({"d.b": {4: "after"}}))
    verify(server, path, "d.a", "d.b", "d.c")
    assert [e.what for e in server.meta.lives.history("g") if e.what.startswith("alter")] == ["alter", "altered", "alter", "altered"]
