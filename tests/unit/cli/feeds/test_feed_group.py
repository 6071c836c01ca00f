"""One feed with several targets: made together, asked together or one by one, each with its own progress and its own errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.cli.main import run
from penstock.config.feed_group import full_name, member_trees
from penstock.config.sink_policy import SinkPolicy
from penstock.config.tree import SinkConfig
from penstock.meta.records import ReachedState
from penstock.model.errors import PenstockError
from testing.servers.api_server import ApiServer
from testing.servers.waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("server"), "shop.orders", "shop.items") as running:
        yield running


def cli(server: ApiServer, *arguments: str) -> int:
    return run(["feed", *arguments, "--server", server.url])


def states(server: ApiServer) -> dict[str, ReachedState]:
    return {feed.name: feed.reached_state for feed in server.meta.list_feeds()}


def test_a_group_is_made_shown_and_asked_together(server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    sinks = ["--sink", "s3://one/p", "--sink", "null:", "--set", "flush-interval=7s"]
    assert cli(server, "create", "both", "--table", "shop.orders", *sinks) == 0
    assert capsys.readouterr().out == "feed both created: 1 tables (shop.orders)\n"
    assert {"both.1", "both.2"} <= states(server).keys()
    wait_until(lambda: {states(server)[n] for n in ("both.1", "both.2")} == {ReachedState.RUNNING}, "both run", 60)
    assert cli(server, "show", "both") == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("both.1", "s3://one/p (storage)", "both.2", "null: (null)"))
    assert cli(server, "pause", "both/2") == 0
    assert capsys.readouterr().out == "feed both/2 is paused\n"
    assert (states(server)["both.1"], states(server)["both.2"]) == (ReachedState.RUNNING, ReachedState.PAUSED)
    assert cli(server, "show", "both", "--output", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], [member["state"] for member in told["members"]]) == ("mixed", ["running", "paused"])
    assert cli(server, "pause", "both") == 0
    assert {states(server)[n] for n in ("both.1", "both.2")} == {ReachedState.PAUSED}
    assert cli(server, "clone", "both", "other", "--sink", "s3://other/p") != 0
    assert "both.1, both.2" in capsys.readouterr().err
    assert cli(server, "clone", "both/2", "other", "--sink", "s3://other/p") == 0
    assert cli(server, "history", "both", "--output", "json") == 0
    assert cli(server, "remove", "both") == 0
    wait_until(lambda: not {"both.1", "both.2"} & states(server).keys(), "both are gone", 60)
    assert "other" in states(server)


def test_all_of_them_or_none(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = states(server).keys()
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").write_text("of somebody else")
    assert cli(server, "create", "half", "--table", "shop.orders", "--sink", "s3://half/p", "--sink", taken.as_uri()) != 0
    assert "SINK_OCCUPIED" in capsys.readouterr().err
    assert states(server).keys() == before
    # Nothing was claimed, so a target that was free is free.
    assert cli(server, "create", "half", "--table", "shop.orders", "--sink", "s3://half/p") == 0


def test_over_the_api_and_by_sql(server: ApiServer) -> None:
    with httpx.Client(base_url=server.url, headers=server.headers, trust_env=False, timeout=60) as client:
        tree = {"name": "three", "tables": ["shop.*"], "sinks": ["null:", {"uri": "console:", "rows": 3}]}
        answer = client.post("/api/v1/feeds", json=tree)
        assert (answer.status_code, [m["kind"] for m in answer.json()["members"]]) == (201, ["null", "console"])
        assert client.post("/api/v1/feeds", json=tree).json()["code"] == "FEED_EXISTS"
        for name in ("three", "three.1"):
            taken = {"name": name, "tables": ["shop.*"], "sink": "null:"}
            assert client.post("/api/v1/feeds", json=taken).json()["code"] == "FEED_EXISTS"
        for name in ("alone", "bad"):
            tree = {"name": name, "tables": ["shop.*"], "sink": "null:", "group": "alone"}
            assert client.post("/api/v1/feeds", json=tree).json()["code"] == "CONFIG_INVALID"
        text = "CREATE CHANGEFEED sq FOR TABLE shop.orders INTO 'null:', 'console:' WITH (flush_interval = '3s')"
        made = client.post("/api/v1/sql", json={"text": text})
        assert made.status_code == 200, made.text
        assert [f["config"]["sink"]["uri"] for f in made.json()["answer"]["members"]] == ["null:", "console:"]
        assert {f["config"]["flush-interval"] for f in made.json()["answer"]["members"]} == {3.0}
        done = client.post("/api/v1/sql", json={"text": "DROP CHANGEFEED sq"})
        assert len(done.json()["answer"]["members"]) == 2


@pytest.mark.parametrize(
    "tree",
    [{"sink": "null:", "sinks": ["null:", "console:"]}, {"sinks": ["null:"]}, {"sinks": "null:"}, {"sinks": ["null:", "null:"]}],
)
def test_targets_that_make_no_group(tree: dict[str, object]) -> None:
    with pytest.raises(PenstockError, match=r"CONFIG_INVALID.*sinks"):
        member_trees({"name": "x", **tree})


def test_names_of_members() -> None:
    assert [full_name(name) for name in ("orders", "orders/2", "orders/0", "orders/2/3", "a.b/12")] == [
        *("orders", "orders.2", "orders/0", "orders/2/3", "a.b.12")
    ]


@pytest.mark.parametrize("sink", ["null:", "null://", "console:", "http+json://127.0.0.1:9/hooks"])
def test_what_belongs_to_nobody_is_shared(tmp_path: Path, sink: str) -> None:
    policy = SinkPolicy()
    assert not policy.lies_inside(SinkConfig(sink), SinkConfig(sink))
    assert not policy.lies_inside(SinkConfig(f"{sink}/below"), SinkConfig(sink))
    assert policy.lies_inside(SinkConfig(f"{tmp_path.as_uri()}/below"), SinkConfig(tmp_path.as_uri()))
