"""Every verb that changes a feed does the same from the command line and over the API, because one handler does it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.cli.main import run
from penstock.meta.records import ReachedState
from penstock.server.feeds.control import VERBS
from penstock.server.feeds.creation import FeedDocument
from testing.servers.api_server import ApiServer
from testing.servers.waiting import wait_until

CASES: list[tuple[str, list[str], dict[str, Any]]] = [
    ("pause", [], {}),
    ("pause", ["--reason", "the lake moves"], {"reason": "the lake moves"}),
    ("resume", ["--reason", "back"], {"reason": "back"}),
    ("alter", ["--set", "flush-interval=2s", "--reason", "slow"], {"changes": {"flush-interval": "2s"}, "reason": "slow"}),
    ("alter", ["--table", "shop.*", "--until-ts", str(1 << 62)], {"changes": {"tables": ["shop.*"], "until-ts": 1 << 62}}),
    ("reset", ["--to", "snapshot"], {"to": "snapshot"}),
    ("move", ["--to", "test"], {"to": "test"}),
    (
        "clone",
        ["{name}-copy", "--sink", "s3://{name}/copy", "--start-ts", "7", "--set", "flush-interval=3s"],
        {"name": "{name}-copy", "changes": {"sink": {"uri": "s3://{name}/copy"}, "start-ts": 7, "flush-interval": "3s"}},
    ),
    ("cancel", ["--reason", "over"], {"reason": "over"}),
    ("remove", ["--reason", "not needed"], {"reason": "not needed"}),
]
NO_WAIT = {"pause": ["--timeout", "0"], "cancel": ["--timeout", "0"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("server"), "shop.orders", "shop.items") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=server.headers, trust_env=False, timeout=60) as opened:
        yield opened


def make(server: ApiServer, client: httpx.Client, tmp_path: Path, name: str, asked: str) -> None:
    """Make a feed that runs; where it is to be resumed, one that is paused."""
    tree = {"name": name, "tables": ["shop.orders"], "sink": f"s3://{tmp_path.name}/{name}"}
    assert client.post("/api/v1/feeds", json=tree).status_code == 201
    wait_until(lambda: server.meta.get_feed(name).reached_state is ReachedState.RUNNING, f"{name} runs", 60)
    if asked == "reset":
        epoch = server.meta.get_feed(name).epoch
        server.meta.begin_window(name, epoch, 0, 5, "{}")
        server.meta.commit_window(name, epoch, 0, 5, {})
    if asked == "resume":
        client.post(f"/api/v1/feeds/{name}/pause")
        wait_until(lambda: server.meta.get_feed(name).reached_state is ReachedState.PAUSED, f"{name} rests", 60)


def shown(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without what differs between feeds, and without the state, which a server may have changed by then."""
    return {key: value for key, value in answer.items() if key not in {"name", "state", "feeds", "clone"}}


def asked_for(entries: list[dict[str, Any]], verb: str) -> list[tuple[str, ...]]:
    return [(e["by"], e["what"], e["why"], e["old"], e["new"]) for e in entries if e["what"] == verb]


@pytest.mark.parametrize(("verb", "options", "arguments"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_command_and_route_do_the_same(
    server: ApiServer,
    client: httpx.Client,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    options: list[str],
    arguments: dict[str, Any],
) -> None:
    by_line, by_route = f"{tmp_path.name}-line", f"{tmp_path.name}-route"
    for name in (by_line, by_route):
        make(server, client, tmp_path, name, verb)
    capsys.readouterr()
    at = ["--server", server.url, "--output", "json"]
    options = [option.replace("{name}", by_line) for option in options]
    arguments = json.loads(json.dumps(arguments).replace("{name}", by_route))
    assert run(["feed", verb, by_line, *options, *NO_WAIT.get(verb, []), *at]) == 0
    told = json.loads(capsys.readouterr().out)
    answer = client.post(f"/api/v1/feeds/{by_route}/{verb}", json=arguments)
    assert answer.status_code == 202
    if verb == "clone":
        made = [server.meta.get_feed(told["clone"]), server.meta.get_feed(answer.json()["clone"])]
        trees = [{k: v for k, v in FeedDocument.of(feed).config.items() if k not in {"name", "sink"}} for feed in made]
        assert trees[0] == trees[1] == {"tables": ["shop.orders"], "start-ts": 7, "flush-interval": 3.0}
        entries = [asked_for(client.get(f"/api/v1/feeds/{feed.name}/history").json()["history"], "create") for feed in made]
        assert [e[0][2] for e in entries] == [f"a clone of {by_line}", f"a clone of {by_route}"]
        return
    if verb != "remove":
        assert shown(told) == shown(answer.json())
    assert run(["feed", "history", by_line, *at]) == 0
    entries = asked_for(json.loads(capsys.readouterr().out), verb)
    assert len(entries) == 1
    assert entries == asked_for(client.get(f"/api/v1/feeds/{by_route}/history").json()["history"], verb)
    assert (entries[0][0], entries[0][2]) == ("server", arguments.get("reason", ""))


def test_every_verb_has_its_case() -> None:
    assert {verb for verb, _, _ in CASES} == set(VERBS)


def test_a_paused_feed_says_for_how_long_its_history_is_kept(
    server: ApiServer, client: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = tmp_path.name
    make(server, client, tmp_path, name, "pause")
    feed = server.meta.get_feed(name)
    to_ts = (feed.created_ms - 3_600_000) << 18
    server.meta.begin_window(name, feed.epoch, 0, to_ts, "{}")
    server.meta.commit_window(name, feed.epoch, 0, to_ts, {})
    assert run(["feed", "pause", name, "--server", server.url]) == 0
    assert capsys.readouterr().out == f"feed {name} is paused\n"
    kept = client.get(f"/api/v1/feeds/{name}").json()["history"]
    assert kept["kept_until_ms"] == feed.created_ms + 23 * 3_600_000
    assert 0 < kept["remaining_s"] <= 23 * 3_600
    assert run(["feed", "show", name, "--server", server.url]) == 0
    text = capsys.readouterr().out
    assert "kept until" in text
    (left,) = [line for line in client.get("/metrics").text.splitlines() if line.startswith("penstock_feed_history_left") and name in line]
    assert 22 * 3_600 < float(left.split()[-1]) <= 23 * 3_600
    assert f"penstock feed resume {name}" in text
    assert run(["feed", "resume", name, "--server", server.url]) == 0
    assert capsys.readouterr().out == f"feed {name} resumed\n"
    wait_until(lambda: server.meta.get_feed(name).reached_state is ReachedState.RUNNING, "it runs", 60)


@pytest.mark.parametrize("arguments", [{"reason": 7}, {"until": "x"}])
def test_arguments_that_a_verb_does_not_have_are_refused(
    server: ApiServer, client: httpx.Client, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    make(server, client, tmp_path, tmp_path.name, "pause")
    answer = client.post(f"/api/v1/feeds/{tmp_path.name}/pause", json=arguments)
    assert (answer.status_code, answer.json()["code"]) == (422, "CONFIG_INVALID")
    assert client.post("/api/v1/feeds/none/pause").status_code == 404


def test_who_may_only_read_changes_nothing(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    make(server, client, tmp_path, tmp_path.name, "pause")
    token = client.post("/api/v1/tokens", json={"name": f"reader of {tmp_path.name}", "role": "read"}).json()["token"]
    reads = {"Authorization": f"Bearer {token}"}
    for verb in VERBS:
        assert client.post(f"/api/v1/feeds/{tmp_path.name}/{verb}", headers=reads).status_code == 403
    assert client.get(f"/api/v1/feeds/{tmp_path.name}/history", headers=reads).status_code == 200


def test_no_history_shows_a_secret(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    name = tmp_path.name
    make(server, client, tmp_path, name, "alter")
    changes = {"sink": {"uri": f"s3://{name}/{name}?secret-access-key=hunter2"}}
    answer = client.post(f"/api/v1/feeds/{name}/alter", json={"changes": changes, "reason": "password=hunter2"})
    assert (answer.status_code, answer.json()["changed"]) == (202, True)
    text = client.get(f"/api/v1/feeds/{name}/history").text
    assert "hunter2" not in text + answer.text
    assert "secret-access-key" in text
    assert "hunter2" in server.meta.get_feed(name).config
