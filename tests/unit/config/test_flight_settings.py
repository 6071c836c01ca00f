from __future__ import annotations

import socket
from typing import Any

import pytest

from penstock.config.server_tree import ServerConfig
from penstock.model.errors import PenstockError
from penstock.settings.loader import load

SOURCE = {"source": "dataserver://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("given", "conf", "told"),
    [
        ({}, {}, ("127.0.0.1", None)),
        ({"flight-host": "10.0.0.7"}, {"spark.driver.host": "driver.example"}, ("10.0.0.7", None)),
        ({"flight-host": "0.0.0.0"}, {"spark.driver.host": "driver.example"}, ("driver.example", None)),
        ({"flight-host": "::"}, {}, (socket.gethostname(), None)),
        ({"flight-host": "0.0.0.0", "flight-advertise": "store.example"}, {}, ("store.example", None)),
        ({"flight-advertise": "store.example:443"}, {}, ("store.example", 443)),
        ({"flight-advertise": "[fd00::7]:8301"}, {}, ("fd00::7", 8301)),
        ({"flight-advertise": "[fd00::7]"}, {}, ("fd00::7", None)),
    ],
)
def test_what_executors_are_told(given: dict[str, Any], conf: dict[str, str], told: tuple[str, int | None]) -> None:
    config = load(ServerConfig, SOURCE | given)
    assert config.flight.advertised(config.flight_host, conf) == told


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"flight-advertise": "grpc://h:1"}, "flight-advertise"),
        ({"flight-advertise": "h:70000"}, "flight-advertise"),
        ({"flight-advertise": "fd00::7"}, "flight-advertise"),
        ({"flight-tls-key": "/x.key"}, "flight-tls-key"),
        ({"flight-tls-ca": "/x.pem"}, "flight-tls-ca"),
        ({"flight-tls-certificate": "/x.pem", "flight-plain-text": True}, "flight-plain-text"),
        ({"flight-host": "0.0.0.0", "flight-plain-text": True}, "flight-plain-text"),
        ({"flight-host": "store.example", "flight-plain-text": True}, "flight-plain-text"),
        ({"spark": {"archive": "/x.zip"}}, "spark.archive"),
    ],
)
def test_what_cannot_be(given: dict[str, Any], key: str) -> None:
    with pytest.raises(PenstockError) as refused:
        load(ServerConfig, SOURCE | given)
    assert refused.value.detail.startswith(key)
