"""The public client against a real API: feeds made, seen, paused and removed; errors with code and hint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from testing.servers.api_server import ApiServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, "shop.orders", "shop.items") as running:
        yield running


def test_the_life_of_a_feed(server: ApiServer, tmp_path: Path) -> None:
    with penstock.Client(server.url) as client:
        assert client.feeds() == []
        sink = (tmp_path / "out").as_uri()
        made = client.create("orders", ["shop.orders"], sink, settings={"flush-interval": "2s", "sink": {"protocol": "canal-json"}})
        assert (made["name"], made["config"]["sink"]["uri"], made["config"]["flush-interval"]) == ("orders", sink, 2.0)
        assert [feed["name"] for feed in client.feeds()] == ["orders"]
        assert [table["name"] for table in client.tables("orders")] == ["shop.orders"]
        found = client.status("orders")
        assert (found.checkpoint_ts, found.rows, found.checkpoint_time, found.uncovered) == (0, 0, None, ())
        assert client.pause("orders", "for a while")["requested_state"] == "paused"
        assert client.resume("orders")["requested_state"] == "running"
        assert client.show("orders")["requested_state"] == "running"
        assert client.remove("orders")["requested_state"] == "removed"
        with pytest.raises(penstock.PenstockError) as caught:
            client.show("others")
        assert caught.value.code == "FEED_UNKNOWN"
        assert caught.value.hint


def test_who_answers_must_know_the_token(server: ApiServer) -> None:
    with penstock.Client(server.url, token="pst_wrong") as client, pytest.raises(penstock.PenstockError) as caught:
        client.feeds()
    assert caught.value.code.startswith("API_TOKEN")
    with pytest.raises(penstock.PenstockError, match=r"CONFIG_INVALID.*nowhere.pem"):
        penstock.Client("https://127.0.0.1:1", token="x", ca_file="/nowhere.pem")
