"""A proxy that the environment names is for the web: databases and the event store are reached without it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from penstock.source.dataserver.client import DataServerUpstream
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from testing.servers.loopback import free_port

VARIABLES = ("grpc_proxy", "http_proxy", "https_proxy", "HTTP_PROXY", "ALL_PROXY")
SOURCES = Path(__file__).resolve().parents[2] / "src" / "penstock"


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in VARIABLES:
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")


@pytest.mark.usefixtures("proxied")
def test_a_data_server_is_reached() -> None:
    with DataServer(DataServerSettings()) as server, contextlib.closing(DataServerUpstream(server.uri)) as upstream:
        assert list(upstream.list_tables()) == []


def test_no_channel_is_opened_that_would_take_it() -> None:
    texts = [file.read_text(encoding="utf-8") for file in SOURCES.rglob("*.py")]
    opened = [text for text in texts if "grpc.insecure_channel(" in text or "FlightClient(" in text]
    assert len(opened) >= 5
    assert [text for text in opened if "grpc.enable_http_proxy" not in text] == []
