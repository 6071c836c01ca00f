"""What changes a feed, from the command line and over the API: what is told, who may, and what is never shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.cli.main import run
from penstock.meta.records import ReachedState
from penstock.server.feeds.control import VERBS
from testing.servers.api_server import ApiServer
from testing.servers.waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("server"), "shop.orders", "shop.items") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=server.headers, trust_env=False, timeout=60) as opened:
        yield opened


def make(server: ApiServer, client: httpx.Client, tmp_path: Path, name: str) -> None:
    """Make a feed that runs."""
    tree = {"name": name, "tables": ["shop.orders"], "sink": f"s3://{tmp_path.name}/{name}"}
    assert client.post("/api/v1/feeds", json=tree).status_code == 201
    wait_until(lambda: server.meta.get_feed(name).reached_state is ReachedState.RUNNING, f"{name} runs", 60)


def test_a_paused_feed_says_for_how_long_its_history_is_kept(
    server: ApiServer, client: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = tmp_path.name
    make(server, client, tmp_path, name)
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
    make(server, client, tmp_path, tmp_path.name)
    answer = client.post(f"/api/v1/feeds/{tmp_path.name}/pause", json=arguments)
    assert (answer.status_code, answer.json()["code"]) == (422, "CONFIG_INVALID")
    assert client.post("/api/v1/feeds/none/pause").status_code == 404


def test_who_may_only_read_changes_nothing(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    make(server, client, tmp_path, tmp_path.name)
    token = client.post("/api/v1/tokens", json={"name": f"reader of {tmp_path.name}", "role": "read"}).json()["token"]
    reads = {"Authorization": f"Bearer {token}"}
    for verb in VERBS:
        assert client.post(f"/api/v1/feeds/{tmp_path.name}/{verb}", headers=reads).status_code == 403
    assert client.get(f"/api/v1/feeds/{tmp_path.name}/history", headers=reads).status_code == 200


def test_no_history_shows_a_secret(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    name = tmp_path.name
    make(server, client, tmp_path, name)
    changes = {"sink": {"uri": f"s3://{name}/{name}?secret-access-key=hunter2"}}
    answer = client.post(f"/api/v1/feeds/{name}/alter", json={"changes": changes, "reason": "password=hunter2"})
    assert (answer.status_code, answer.json()["changed"]) == (202, True)
    text = client.get(f"/api/v1/feeds/{name}/history").text
    assert "hunter2" not in text + answer.text
    assert "secret-access-key" in text
    assert "hunter2" in server.meta.get_feed(name).config
