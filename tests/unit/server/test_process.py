from __future__ import annotations

import socket

import pytest

from penstock.model.errors import PenstockError
from penstock.server.process import check_reachable


def refused(code: str) -> pytest.RaisesExc[PenstockError]:
    return pytest.RaisesExc(PenstockError, check=lambda error: error.code == code)


@pytest.mark.parametrize("uri", ["dataserver://", "dataserver://host", "dataserver://host:port", "dataserver://host:99999"])
def test_source_without_an_address(uri: str) -> None:
    with refused("CONFIG_INVALID"):
        check_reachable(uri)


def test_source_where_nothing_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        uri = f"dataserver://user:hunter2@127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(PenstockError) as caught:
            check_reachable(uri)
    assert caught.value.code == "UPSTREAM_UNREACHABLE"
    assert "hunter2" not in str(caught.value)
