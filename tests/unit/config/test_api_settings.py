from __future__ import annotations

from typing import Any

import pytest

from penstock.config.server_tree import ServerConfig
from penstock.model.errors import PenstockError
from penstock.settings.loader import load

SOURCE = {"source": "dataserver://127.0.0.1:1"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "db.example", ""])
def test_an_address_that_others_reach_wants_tls(host: str) -> None:
    with pytest.raises(PenstockError, match="http-host") as refused:
        load(ServerConfig, SOURCE | {"http-host": host})
    assert "api.plain-text" in refused.value.detail
    assert load(ServerConfig, SOURCE | {"http-host": host, "api": {"plain-text": True}}).http_host == host
    assert load(ServerConfig, SOURCE | {"http-host": host, "api": {"tls-certificate": "/x.pem"}}).api.tls_certificate is not None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_this_machine_alone_needs_no_tls(host: str) -> None:
    assert load(ServerConfig, SOURCE | {"http-host": host}).http_host == host


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"open": ["/api/v1/feeds"]}, "api.open"),
        ({"hosts": ["http://x"]}, "api.hosts"),
        ({"origins": ["console.example"]}, "api.origins"),
        ({"tls-key": "/x.key"}, "api.tls-key"),
        ({"body-bytes-max": "1GiB"}, "api.body-bytes-max"),
        ({"requests-per-second": 0}, "api.requests-per-second"),
        ({"target-timeout": "1d"}, "api.target-timeout"),
    ],
)
def test_what_cannot_be(given: dict[str, Any], key: str) -> None:
    with pytest.raises(PenstockError) as refused:
        load(ServerConfig, SOURCE | {"api": given})
    assert refused.value.detail.startswith(key)
