"""The verb ``run``: what it makes of options and files, which feed it takes, what it shows."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from penstock.cli.feeds.run import follow
from penstock.cli.main import run as run_command
from penstock.cli.server_client import ServerClient
from penstock.cli.shown.run_view import PLAIN_EVERY_S, RunView
from penstock.library.one_feed import divide, ensure_feed
from penstock.meta.records import FeedRecord
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.server.feeds.ports import RunStatus, SnapshotStatus
from penstock.server.http.views import feed_summary
from testing.servers.api_server import SOURCE_URI, ApiServer
from testing.servers.waiting import wait_until
from testing.twins.clock import SimulatedClock


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, "shop.orders", "shop.items") as running:
        yield running


def tree_of(tmp_path: Path, **more: Any) -> dict[str, Any]:
    sink = {"uri": (tmp_path / "out").as_uri()}
    return {"name": "run", "source": SOURCE_URI, "tables": ["shop.*"], "sink": sink} | more


def test_the_source_belongs_to_feed_and_server_and_the_rest_to_one_of_them() -> None:
    feed, server = divide({"source": "mysql://h:1", "tables": ["a.b"], "sink": {"uri": "file:///x"}, "server": {"data-dir": "d"}})
    assert feed == {"name": "run", "source": "mysql://h:1", "tables": ["a.b"], "sink": {"uri": "file:///x"}}
    assert server == {"source": "mysql://h:1", "data-dir": "d", "http-port": 0}


@pytest.mark.parametrize(
    ("tree", "field"),
    [({}, "source"), ({"source": "x://", "server": 1}, "server"), ({"source": "x://", "server": {"source": "y"}}, "server.source")],
)
def test_a_tree_that_cannot_be_divided_names_the_field(tree: dict[str, Any], field: str) -> None:
    with pytest.raises(PenstockError) as caught:
        divide(tree)
    assert caught.value.code == "CONFIG_INVALID"
    assert caught.value.detail.startswith(f"{field}:")


def test_a_file_is_read_and_its_problems_are_shown_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shop.toml"
    file.write_text('source = "mysql://h:1"\ntables = ["shop"]\nsink = "file:///x"\nflush-intervall = "1s"\n', encoding="utf-8")
    assert run_command(["run", str(file)]) == 2
    shown = capsys.readouterr().err
    assert "flush-intervall: unknown key; did you mean flush-interval" in shown


def test_the_feed_is_created_once_and_found_again(server: ApiServer, tmp_path: Path) -> None:
    with ServerClient(server.url) as client:
        created = ensure_feed(client, tree_of(tmp_path), client.create_feed)
        again = ensure_feed(client, tree_of(tmp_path), client.create_feed)
        assert created["uuid"] == again["uuid"]
        assert [t["name"] for t in created["tables"]] == ["shop.items", "shop.orders"]


def test_a_feed_of_that_name_that_does_something_else_is_not_touched(server: ApiServer, tmp_path: Path) -> None:
    with ServerClient(server.url) as client:
        ensure_feed(client, tree_of(tmp_path), client.create_feed)
        with pytest.raises(PenstockError) as caught:
            ensure_feed(client, tree_of(tmp_path, tables=["shop.orders"]) | {"flush-interval": "9s"}, client.create_feed)
        assert caught.value.code == "FEED_EXISTS"
        assert "flush-interval, tables" in caught.value.detail


def shown_feed(rows: int, checkpoint_ts: int = 0, problem: str = "") -> dict[str, Any]:
    progress = {"rows": rows, "files": 1, "bytes": 10 * rows, "lag_s": 0.5, "checkpoint_ts": checkpoint_ts}
    return {"state": "running", "error": None, "capture_problems": [problem] if problem else []} | progress


def test_reading_the_state_is_shown_as_the_server_tells_of_it() -> None:
    out = io.StringIO()
    view = RunView(Console(file=out, width=200), SimulatedClock())
    status = RunStatus(True, 0, (), SnapshotStatus(parts=4, parts_done=1, rows=25_000))
    view.progress([feed_summary(FeedRecord("run", "u", "{}"), status, SystemClock())])
    assert "snapshot 1 of 4 parts, 25,000 rows" in out.getvalue()


def test_following_ends_at_the_checkpoint_or_when_stopped(server: ApiServer, tmp_path: Path) -> None:
    view = RunView(Console(file=io.StringIO()))
    with ServerClient(server.url) as client:
        ensure_feed(client, tree_of(tmp_path), client.create_feed)
        assert follow(client, "run", view, threading.Event(), 0) == (True, [])
        stop = threading.Event()
        stop.set()
        assert follow(client, "run", view, stop, 1 << 60) == (False, [])


def test_where_output_is_a_file_a_line_comes_now_and_then_and_a_problem_once() -> None:
    out, clock = io.StringIO(), SimulatedClock()
    view = RunView(Console(file=out, width=200), clock)
    view.progress([shown_feed(0)])
    clock.advance(1.0)
    view.progress([shown_feed(1000, problem="DDL: nobody answers")])
    view.progress([shown_feed(1000, problem="DDL: nobody answers")])
    clock.advance(PLAIN_EVERY_S)
    view.progress([shown_feed(2000)])
    view.end(True)
    lines = out.getvalue().splitlines()
    assert [line.split(" rows")[0].split()[-1] for line in lines if " rows " in line] == ["0", "2,000", "2,000"]
    assert sum("nobody answers" in line for line in lines) == 1
    assert "100 rows/s" in lines[-2]
    assert "caught up" in lines[-1]


def test_several_targets_are_a_group_that_is_made_once(server: ApiServer, tmp_path: Path) -> None:
    tree = {key: value for key, value in tree_of(tmp_path).items() if key != "sink"} | {"sinks": ["null:", "console:?rows=3"]}
    view = RunView(Console(file=io.StringIO()))
    with ServerClient(server.url) as client:
        created = ensure_feed(client, tree, client.create_feed)
        again = ensure_feed(client, tree, client.create_feed)
        assert [m["uuid"] for m in created["members"]] == [m["uuid"] for m in again["members"]]
        for other in ({"sinks": ["null:", "console:?rows=4"]}, {"sinks": ["null:", "console:?rows=3", "console:"]}):
            with pytest.raises(PenstockError, match="run exists") as caught:
                ensure_feed(client, tree | other, client.create_feed)
            assert caught.value.code == "FEED_EXISTS"
        with pytest.raises(PenstockError, match="number of targets"):
            ensure_feed(client, tree_of(tmp_path), client.create_feed)
        assert follow(client, "run", view, threading.Event(), 0) == (True, [])


def test_a_target_that_failed_for_good_holds_none_of_the_others(server: ApiServer, tmp_path: Path) -> None:
    tree = {key: value for key, value in tree_of(tmp_path).items() if key != "sink"} | {"sinks": ["null:", "console:"]}
    out = io.StringIO()
    view = RunView(Console(file=out, width=200))
    with ServerClient(server.url) as client:
        ensure_feed(client, tree, client.create_feed)
        runs = {run.feed.name: run for run in (server.runs.next_run(), server.runs.next_run())}
        runs["run.2"].end(PenstockError("SINK_UNWRITABLE", "no permission"))
        wait_until(lambda: client.show_feed("run.2")["state"] == "failed", "the second has failed", 60)
        assert follow(client, "run", view, threading.Event(), 0) == (True, ["console: ([SINK_UNWRITABLE])"])
        assert "! run.2 (console): [SINK_UNWRITABLE] no permission" in out.getvalue()
        runs["run.1"].end(PenstockError("SINK_UNWRITABLE", "nor here"))
        wait_until(lambda: client.show_feed("run")["state"] == "failed", "both have failed", 60)
        with pytest.raises(PenstockError, match="nor here"):
            follow(client, "run", view, threading.Event(), 0)


@pytest.mark.parametrize("width", [20, 80, 300])
def test_a_live_line_is_never_wider_than_the_terminal(width: int) -> None:
    out = io.StringIO()
    view = RunView(Console(file=out, width=width, force_terminal=True))
    view.progress([shown_feed(at) | {"name": f"run.{at}", "kind": "kafka"} for at in (1, 2, 3)])
    assert 0 < len(out.getvalue().rpartition("\x1b[2K")[2]) < width
