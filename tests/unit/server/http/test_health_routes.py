from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.meta.records import RetryRecord
from penstock.model.errors import PenstockError
from penstock.server.page.page_routes import FRIENDLY_PATHS
from testing.servers.api_server import ApiServer
from testing.servers.waiting import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, "shop.orders") as running:
        yield running


@pytest.fixture
def client(server: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=120, headers=server.headers) as opened:
        yield opened


def test_health_says_what_is_wrong_and_when_it_is_right_again(server: ApiServer, client: httpx.Client, tmp_path: Path) -> None:
    wait_until(lambda: client.get("/health/ready").status_code == 200, "ready", 60)
    assert client.get("/health/live").json() == {"status": "ok"}
    client.post("/api/v1/feeds", json={"name": "orders", "tables": ["shop.*"], "sink": {"uri": f"s3://{tmp_path.name}/o"}})
    server.runs.next_run().end(PenstockError("SINK_UNWRITABLE", "no"))
    wait_until(lambda: client.get("/health/ready").status_code == 503, "not ready", 60)
    body = client.get("/health/ready").json()
    assert (body["status"], body["components"]["meta"]["ok"], body["components"]["feeds"]["ok"]) == ("failing", True, False)
    assert body["components"]["feeds"]["facts"] == {"orders": "failed"}
    assert "[SINK_UNWRITABLE] no" in body["components"]["feeds"]["detail"]
    # A load balancer reaches the API still, and nothing is gained by starting the process again.
    assert client.get("/health/ready?feeds=no").status_code == 200
    assert client.get("/health/live").status_code == 200
    summary = client.get("/api/v1/health")
    assert (summary.status_code, summary.json()["status"], summary.json()["components"]) == (503, "failing", body["components"])
    shown = client.get("/api/v1/feeds/orders").json()
    assert (shown["problem"]["stage"], shown["problem"]["text"]) == ("failed", "[SINK_UNWRITABLE] no")
    metrics = client.get("/metrics").text
    assert 'penstock_feed_problem{feed="orders",stage="failed"} 1.0' in metrics
    assert 'penstock_component_up{component="feeds"} 0.0' in metrics
    assert 'penstock_feed_checkpoint_lag_seconds{feed="orders"}' in metrics, "also before its first checkpoint"
    client.post("/api/v1/feeds/orders/resume")
    run = server.runs.next_run()
    wait_until(lambda: client.get("/health/ready").status_code == 200, "ready again", 60)
    server.meta.record_error("orders", run.epoch, "SINK_UNAVAILABLE", "503", RetryRecord(1_000, 2_000, 3))
    metrics = client.get("/metrics").text
    assert 'penstock_feed_failures{feed="orders"} 3.0' in metrics
    assert 'penstock_feed_retrying_seconds{feed="orders"}' in metrics


def test_a_server_whose_supervisor_ended_is_not_alive(server: ApiServer, client: httpx.Client) -> None:
    server.supervisor.stop()
    answer = client.get("/health/live")
    assert (answer.status_code, answer.json()["status"]) == (503, "failing")
    assert client.get("/health/ready").status_code == 503


def test_what_people_and_probes_try_first(server: ApiServer, client: httpx.Client) -> None:
    for path, place in FRIENDLY_PATHS.items():
        found = client.get(path)
        assert (found.status_code, found.headers["location"]) == (307, place), path
        assert client.get(place).status_code == 200, place
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as stranger:
        assert stranger.get("/healthz").status_code == 307
        assert stranger.get("/health/live").status_code == 401, "what leads there opens nothing"
        assert stranger.head("/api/v1/feeds").status_code == 401
        assert (stranger.head("/").status_code, stranger.head("/").content) == (200, b"")
    for path in ("/health/live", "/health/ready", "/api/v1/feeds", "/metrics"):
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b""), path
    assert client.get("/api/v1/health?quiet=yes").status_code == 200


def test_a_query_that_is_wrong_is_told_by_its_name(client: httpx.Client) -> None:
    answer = client.get("/api/v1/logs?lines=many&after=-1&level=loud")
    assert answer.status_code == 422
    assert [line.partition(":")[0] for line in answer.json()["message"].splitlines()] == ["after", "level", "lines"]
    assert "many" not in answer.text, "what was sent is not repeated"
