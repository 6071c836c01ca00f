"""A supervisor with real runs, without Spark: feeds are paused, resumed, altered and ended while their windows go on."""

from __future__ import annotations

import contextlib
import shutil
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


def delivered(target: Path, table: str) -> list[tuple[str, str]]:
    """Return operation and key of everything in the files of a table, in their order."""
    lines = [line.split(",") for file in sorted(target.glob(f"d/{table}/*/**/*.csv")) for line in file.read_text().splitlines()]
    return [(line[0].strip('"'), line[4]) for line in lines]


@pytest.mark.parametrize("start", ["snapshot", "now", "ts"])
def test_a_feed_goes_over_to_another_target(server: ControlledServer, path: WholePath, start: str) -> None:
    server.create("d.a", "d.b")
    server.delivers(path.write({"d.a": {1: "x", 2: "x"}, "d.b": {1: "x"}}))
    from_ts = server.meta.checkpoint_ts("g")
    server.delivers(path.write({"d.a": {3: "y"}}, {"d.a": [2]}))
    server.do("pause")
    server.reaches("paused")
    before, second = server.out, path.root / "second"
    server.out, started = second, {"start": start if start != "ts" else str(from_ts)}
    told = server.do("alter", changes={"sink": second.as_uri(), "tables": ["d.a", "d.b", "d.c"]}, reason="the lake moves", **started)
    assert (told["closes"], told["start"]) == (before.as_uri(), started["start"])
    # What it is asked once more, it is already.
    assert not server.do("alter", changes={"sink": second.as_uri()}, **started)["changed"]
    last_ts = path.write({"d.a": {4: "z"}, "d.c": {1: "c"}})
    server.do("resume")
    server.delivers(last_ts)
    wait_until(server.has_tables("d.a", "d.b", "d.c"), "all are in", 60)
    server.delivers(path.write({"d.a": {5: "z"}}))
    # The old one is published up to the ts that was told, and stays as it was.
    assert f'"checkpoint-ts":{told["effective_ts"]}' in (before / "metadata").read_text().replace(" ", "")
    assert sorted(delivered(before, "a")) == [("D", "2"), ("I", "1"), ("I", "2"), ("I", "3")]
    verify_target(open_reader(before.as_uri(), {}), path.upstream, [path.table("d.b").table_id]).check()
    expected = {
        "snapshot": [("I", "1"), ("I", "3"), ("I", "4"), ("I", "5")],
        "now": [("I", "4"), ("I", "5")],
        "ts": [("D", "2"), ("I", "3"), ("I", "4"), ("I", "5")],
    }
    assert sorted(delivered(second, "a")) == expected[start]
    if start == "snapshot":
        verify(server, path, "d.a", "d.b", "d.c")
    entries = [(e.what, e.new) for e in server.meta.lives.history("g") if e.what.startswith("alter")]
    assert [what for what, _ in entries] == ["alter", "altered"]
    assert f"{before.as_uri()} is closed at ts {told['effective_ts']}; {second.as_uri()} begins with the " in entries[1][1]
    assert {t.sink for t in server.meta.feed_tables("g")} == {second.as_uri()}


def test_a_feed_leaves_a_target_that_takes_nothing(server: ControlledServer, path: WholePath) -> None:
    server.create("d.a")
    server.delivers(path.write({"d.a": {1: "x"}}))
    # A file stands where its folder was: nothing can be written there, nor published. Nobody writes while it is put there.
    server.do("pause")
    server.reaches("paused")
    server.out.rename(path.root / "away")
    server.out.write_text("no folder")
    path.write({"d.a": {2: "y"}})
    server.do("resume")
    server.reaches("failed")
    before, server.out = server.out, path.root / "second"
    told = server.do("alter", changes={"sink": server.out.as_uri()})
    assert told["effective_ts"] == server.meta.checkpoint_ts("g")
    server.delivers(path.write({"d.a": {3: "z"}}))
    verify(server, path, "d.a")
    told_of = next(e.new for e in server.meta.lives.history("g") if e.what == "altered")
    assert f"{before.as_uri()} is closed at ts {told['effective_ts']}, which could not be published (SINK_" in told_of


@pytest.mark.parametrize("stopped", [False, True], ids=["under the feed", "while no server runs"])
def test_a_target_that_is_moved_away_is_missed_until_it_is_back(server: ControlledServer, path: WholePath, stopped: bool) -> None:
    server.create("d.a")
    server.delivers(path.write({"d.a": {1: "x"}}))
    away = path.root / "away"
    if stopped:
        server.stop()
    server.out.rename(away)
    lost_ts = path.write({"d.a": {2: "y"}})
    if stopped:
        server.start()
    server.reaches("failed")
    feed = server.meta.get_feed("g")
    assert feed.error_code == "SINK_LOST"
    assert server.out.as_uri() in feed.error_text
    assert server.meta.checkpoint_ts("g") < lost_ts
    # Nothing was claimed or published in the place where it was.
    assert not (server.out / "metadata").exists()
    assert not (server.out / ".penstock").exists()
    # Resumed without it, it is missed again.
    server.do("resume")
    server.reaches("failed")
    shutil.rmtree(server.out)
    away.rename(server.out)
    server.do("resume")
    server.delivers(path.write({"d.a": {3: "z"}}))
    verify(server, path, "d.a")


def test_a_feed_leaves_a_target_that_was_emptied_for_another(server: ControlledServer, path: WholePath) -> None:
    server.create("d.a")
    server.delivers(path.write({"d.a": {1: "x"}}))
    server.do("pause")
    server.reaches("paused")
    shutil.rmtree(server.out)
    server.out.mkdir()
    server.do("resume")
    server.reaches("failed")
    assert server.meta.get_feed("g").error_code == "SINK_LOST"
    server.out = path.root / "second"
    server.do("alter", changes={"sink": server.out.as_uri()}, start="snapshot")
    server.delivers(path.write({"d.a": {2: "y"}}))
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
