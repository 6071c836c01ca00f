"""Named connections: what stands for a name, and what a caller cannot do with it."""

import pytest

from penstock.config.connections import Connections
from penstock.config.tree import SinkConfig
from penstock.model.errors import PenstockError


def uri(connections: Connections, given: str) -> str:
    return connections.resolve(SinkConfig(given)).uri


def test_a_path_below_a_connection() -> None:
    known = Connections.read({"lake": {"uri": "s3://bucket/base/", "region": "eu-west-1"}}, {})
    assert uri(known, "connection://lake") == "s3://bucket/base?region=eu-west-1"
    assert uri(known, "connection://lake/shop/") == "s3://bucket/base/shop?region=eu-west-1"
    assert uri(known, "connection://lake/shop?protocol=csv") == "s3://bucket/base/shop?region=eu-west-1&protocol=csv"
    assert uri(known, "file:///tmp/x") == "file:///tmp/x"
    assert "bucket" not in repr(known)


def test_the_environment_wins() -> None:
    known = Connections.read({"my-lake": {"uri": "file:///a"}}, {"PENSTOCK_CONNECTION_MY_LAKE": "file:///b", "OTHER": "x"})
    assert uri(known, "connection://my-lake/c") == "file:///b/c"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("connection://leak/x", "CONFIG_INVALID"),
        ("connection://lake/../x", "SINK_FORBIDDEN"),
        ("connection://lake/a/%2e%2e/%2e%2e/x", "SINK_FORBIDDEN"),
    ],
)
def test_nobody_leaves_a_connection(given: str, code: str) -> None:
    with pytest.raises(PenstockError) as caught:
        uri(Connections.read({"lake": {"uri": "file:///a"}}, {}), given)
    assert caught.value.code == code


def test_all_problems_are_told_at_once() -> None:
    tables = {"A": {"uri": "file:///a"}, "b": "x", "c": {"uri": "connection://b"}}
    with pytest.raises(PenstockError) as caught:
        Connections.read(tables, {})
    for name in ("connections.A", "connections.b", "connections.c.uri"):
        assert name in caught.value.detail
