"""Dead letters from the command line and over the API: listed, shown to those who may, offered once more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.cli.main import run
from penstock.sink.http.dead_letters import DeadLetters
from penstock.sink.http.messages import Message
from testing.servers.api_server import ApiServer
from testing.servers.http_receiver import Fault, Receiver, http_receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as opened:
        yield opened


@pytest.fixture
def server(tmp_path: Path, receiver: Receiver) -> Iterator[ApiServer]:
    (tmp_path / "letters").mkdir()
    connections = {"letters": {"uri": (tmp_path / "letters").as_uri()}, "hook": {"uri": receiver.uri, "secret": "geheim"}}
    with ApiServer(tmp_path, "shop.orders", connections=connections) as running:
        yield running


def message(number: int) -> Message:
    event = {"before": None, "after": {"id": number}, "op": "c"}
    told = {"type": "rows", "feed": "orders", "lane": "7-0/0", "sequence": f"{number:03d}", "schema": "shop", "table": "orders"}
    return Message(f"id-{number}", "7-0/0", f"{number:03d}", "application/json", json.dumps(told | {"rows": 1, "events": [event]}).encode())


def test_list_show_retry(server: ApiServer, receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--table",
        "shop.orders",
        "--sink",
        "connection://hook",
        "--set",
        "sink.dead-letter=connection://letters/of",
        "--server",
        server.url,
    ]
    assert run(["feed", "create", "orders", *options, "--set", "sink.dead-letter=connection://letters/of"]) == 0
    letters = DeadLetters.at((tmp_path / "letters" / "of").as_uri(), "orders", None, 9)
    for number in (2, 1):
        letters.put(message(number), 422, "what a row")
    capsys.readouterr()
    assert run(["feed", "dead-letters", "list", "orders", "--server", server.url]) == 0
    assert capsys.readouterr().out == "001_7-0_0\n002_7-0_0\n"
    assert run(["feed", "dead-letters", "show", "orders", "001_7-0_0", "--server", server.url]) == 0
    shown = capsys.readouterr().out
    assert "what a row" in shown
    assert message(1).body.decode() in shown
    assert "geheim" not in shown
    receiver.faults = lambda told: Fault(400) if told["sequence"] == "002" else None
    assert run(["feed", "dead-letters", "retry", "orders", "--server", server.url]) != 0
    assert "SINK_REFUSED" in capsys.readouterr().err
    receiver.faults = lambda _: None
    assert run(["feed", "dead-letters", "retry", "orders", "--server", server.url, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "orders", "taken": ["002_7-0_0"]}
    assert receiver.state("shop.orders") == [{"id": 1}, {"id": 2}]
    assert run(["feed", "dead-letters", "list", "orders", "--server", server.url]) == 0
    assert capsys.readouterr().out == "feed orders has no dead letters\n"
    with httpx.Client(base_url=server.url, headers=server.headers, trust_env=False, timeout=60) as client:
        token = client.post("/api/v1/tokens", json={"name": "reader", "role": "read"}).json()["token"]
        reads = {"Authorization": f"Bearer {token}"}
        assert client.get("/api/v1/feeds/orders/dead-letters", headers=reads).json() == {"dead_letters": []}
        for what in ("show", "retry"):
            assert client.post(f"/api/v1/feeds/orders/dead-letters/001_7-0_0/{what}", headers=reads).status_code == 403
            assert client.post(f"/api/v1/feeds/orders/dead-letters/001_7-0_0/{what}").json()["code"] == "DEAD_LETTER_UNKNOWN"
        assert client.get("/api/v1/feeds/none/dead-letters").status_code == 404


def test_targets_without_dead_letters_say_so(server: ApiServer, receiver: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    for name, sink in (("files", "memory://letters-of-files/"), ("hooks", receiver.uri)):
        assert run(["feed", "create", name, "--table", "shop.orders", "--sink", sink, "--server", server.url]) == 0
        assert run(["feed", "dead-letters", "list", name, "--server", server.url]) != 0
        assert "DEAD_LETTER_UNKNOWN" in capsys.readouterr().err


def test_a_caller_names_only_what_it_may_write_to(server: ApiServer, receiver: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["feed", "create", "x", "--table", "shop.orders", "--server", server.url]
    inside = (server.directory / "data" / "x").as_uri()
    for sink in (receiver.uri, "connection://hook"):
        assert run([*given, "--sink", sink, "--set", f"sink.dead-letter={inside}"]) != 0
        assert "sink.dead-letter: lies in the server's data directory" in capsys.readouterr().err
        assert run([*given, "--sink", sink, "--set", "sink.ca=/etc/passwd"]) != 0
        assert "sink.ca: is for the server's own configuration" in capsys.readouterr().err
    assert run([*given, "--sink", "http+json://169.254.169.254/latest"]) != 0
    assert "169.254.169.254" in capsys.readouterr().err
