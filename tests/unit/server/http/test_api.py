from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.model.errors import CODES, PenstockError
from penstock.server.http.answers import status_of
from testing.servers.api_server import ApiServer
from testing.servers.waiting import wait_until

SECRET = "hunter2"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, "shop.orders", "shop.items") as running:
        yield running


@pytest.fixture
def client(server: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=server.headers, trust_env=False, timeout=120) as opened:
        yield opened


def tree(tmp_path: Path, name: str = "orders") -> dict[str, Any]:
    return {"name": name, "tables": ["shop.*"], "sink": {"uri": f"s3://{tmp_path.name}/{name}?secret-access-key={SECRET}"}}


def gone(client: httpx.Client, server: ApiServer, name: str) -> bool:
    for _ in range(600):
        if client.get(f"/api/v1/feeds/{name}").status_code == 404:
            return True
        server.supervisor.wake()
    return False


def test_life_of_a_feed(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    assert client.get("/api/v1/feeds").json() == {"feeds": []}
    created = client.post("/api/v1/feeds", json=tree(tmp_path))
    assert created.status_code == 201
    assert [t["name"] for t in created.json()["tables"]] == ["shop.items", "shop.orders"]
    run = server.runs.next_run()
    shown = client.get("/api/v1/feeds/orders").json()
    assert (shown["state"] in {"created", "running"}, shown["rows"], shown["owner"]) == (True, 0, "test")
    server.meta.begin_window("orders", run.epoch, 0, 1 << 60, "{}")
    server.meta.commit_window("orders", run.epoch, 0, 1 << 60, {}, rows=5, nbytes=50, files=1)
    listed = client.get("/api/v1/feeds").json()["feeds"]
    assert [(f["name"], f["rows"], f["bytes"], f["files"], f["checkpoint_ts"]) for f in listed] == [("orders", 5, 50, 1, 1 << 60)]
    assert client.get("/api/v1/health").json()["status"] == "ok"
    metrics = client.get("/metrics").text
    assert 'penstock_feed_rows_total{feed="orders"} 5.0' in metrics
    assert client.delete("/api/v1/feeds/orders").status_code == 202
    assert run.stopped.wait(120)
    assert gone(client, server, "orders")
    assert server.runs.forgotten == ["orders"]


def test_no_answer_shows_a_secret(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    texts = [client.post("/api/v1/feeds", json=tree(tmp_path)).text]
    server.runs.next_run().end(PenstockError("SINK_UNWRITABLE", f"put file:///x?secret-access-key={SECRET} failed"))
    while client.get("/api/v1/feeds/orders").json()["state"] != "failed":
        server.supervisor.wake()
    paths = ["/api/v1/feeds", "/api/v1/feeds/orders", "/metrics", "/api/v1/health"]
    texts += [client.get(path).text for path in paths]
    texts.append(client.post("/api/v1/feeds", json=tree(tmp_path)).text)
    texts.append(client.post("/api/v1/feeds", json=tree(tmp_path) | {"partitions": f"password={SECRET}"}).text)
    texts.append(client.post("/api/v1/feeds", content=f'["password={SECRET}"]').text)
    assert [text for text in texts if SECRET in text] == []
    shown = client.get("/api/v1/feeds/orders").json()
    assert shown["error"]["code"] == "SINK_UNWRITABLE"
    assert shown["error"]["hint"]
    assert SECRET in server.meta.get_feed("orders").config


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/api/v1/feeds/none", None, 404, "FEED_UNKNOWN"),
        ("DELETE", "/api/v1/feeds/none", None, 404, "FEED_UNKNOWN"),
        ("GET", "/api/v1/nothing", None, 404, "NOT_FOUND"),
        ("PUT", "/api/v1/feeds", None, 405, "NOT_FOUND"),
        ("POST", "/api/v1/feeds", [], 422, "CONFIG_INVALID"),
        ("POST", "/api/v1/feeds", {}, 422, "CONFIG_INVALID"),
        ("POST", "/api/v1/feeds", {"name": "a", "tables": ["x.y"], "sink": "file:///tmp/nowhere"}, 422, "TABLE_UNKNOWN"),
    ],
)
def test_errors_have_code_message_and_hint(client: httpx.Client, method: str, path: str, body: Any, status: int, code: str) -> None:
    answer = client.request(method, path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert set(answer.json()) == {"code", "message", "hint"}


def test_second_feed_of_a_name(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    client.post("/api/v1/feeds", json=tree(tmp_path))
    server.runs.next_run()
    answer = client.post("/api/v1/feeds", json=tree(tmp_path))
    assert (answer.status_code, answer.json()["code"]) == (409, "FEED_EXISTS")


def test_every_code_has_a_status() -> None:
    statuses = {code: status_of(PenstockError(code, "")) for code in CODES}
    assert set(statuses.values()) <= {401, 403, 404, 409, 413, 429, 422, 424, 500, 503}
    assert statuses["UPSTREAM_UNREACHABLE"] == 503


def test_a_failed_feed_is_resumed(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    client.post("/api/v1/feeds", json=tree(tmp_path))
    server.runs.next_run().end(PenstockError("SINK_UNWRITABLE", "no"))
    wait_until(lambda: client.get("/api/v1/feeds/orders").json()["state"] == "failed", "failed", 60)
    assert client.post("/api/v1/feeds/orders/resume").json()["resumed"] is True
    run = server.runs.next_run()
    run.end(PenstockError("SINK_UNAVAILABLE", "503"))
    wait_until(lambda: client.get("/api/v1/feeds/orders").json()["state"] == "retrying", "retrying", 60)
    shown = client.get("/api/v1/feeds").json()["feeds"][0]
    assert (shown["retry"]["failures"], shown["error"]["code"]) == (1, "SINK_UNAVAILABLE")
    assert shown["retry"]["next_attempt_ms"] > shown["retry"]["since_ms"] > 0
    assert client.post("/api/v1/feeds/orders/resume").json()["resumed"] is False
    server.runs.next_run()
    assert client.post("/api/v1/feeds/none/resume").status_code == 404


def test_a_server_is_drained(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    client.post("/api/v1/feeds", json=tree(tmp_path))
    run = server.runs.next_run()
    assert client.get("/api/v1/server/drain").json() == {"owner": "test", "draining": False, "feeds": ["orders"]}
    assert client.post("/api/v1/server/drain").json()["draining"] is True
    wait_until(lambda: client.get("/api/v1/server/drain").json()["feeds"] == [], "drained", 60)
    assert run.stopped.is_set()
    wait_until(lambda: [s["state"] for s in client.get("/api/v1/servers").json()["servers"]] == ["draining"], "it says so", 60)
    assert client.delete("/api/v1/server/drain").json()["draining"] is False
    server.runs.next_run()


def test_a_caller_reads_no_file_of_the_server(server: ApiServer, client: httpx.Client) -> None:
    sink = "az://c/p?account-name=x&federated-token-file=/etc/passwd&client-id=x&tenant-id=y&authority-host=http://127.0.0.1:1"
    answer = client.post("/api/v1/feeds", json={"name": "a", "tables": ["shop.*"], "sink": sink})
    assert (answer.status_code, answer.json()["code"]) == (403, "SINK_FORBIDDEN")
    assert "federated-token-file" in answer.json()["message"]
    # Nobody was asked for a token with the file's content.
    assert server.opened == []


def test_a_connection_keeps_its_secret(tmp_path: Path) -> None:
    lake = {"uri": f"s3://{tmp_path.name}/base", "secret-access-key": SECRET}
    with ApiServer(tmp_path, "shop.orders", connections={"lake": lake}, sink_allow=["connection://lake/*"]) as server:
        with httpx.Client(base_url=server.url, headers=server.headers, trust_env=False, timeout=120) as client:
            created = client.post("/api/v1/feeds", json={"name": "a", "tables": ["shop.*"], "sink": "connection://lake/shop"})
            refused = client.post("/api/v1/feeds", json={"name": "b", "tables": ["shop.*"], "sink": f"s3://{tmp_path.name}/base/b"})
        assert created.json()["config"]["sink"] == {"uri": "connection://lake/shop"}
        assert (created.status_code, refused.status_code) == (201, 403)
        assert server.opened == [f"s3://{tmp_path.name}/base/shop?secret-access-key={SECRET}"]
        assert SECRET not in server.meta.get_feed("a").config
