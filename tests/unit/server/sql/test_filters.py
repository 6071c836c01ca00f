"""What stands behind AS, as a rule of a feed's filter."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config.tree import load_feed_config
from penstock.model.errors import PenstockError
from penstock.server.sql.filters import filter_settings

TABLES = ("shop.orders", "shop.i*")


@pytest.mark.parametrize(
    ("query", "rule"),
    [
        ("SELECT * WHERE a = 'x WHERE y'", {"tables": [*TABLES], "where": "a = 'x WHERE y'"}),
        ("select id, extract(YEAR FROM at) AS y", {"tables": [*TABLES], "select": "id, extract(YEAR FROM at) AS y"}),
        (
            "SELECT id, b FROM shop.orders WHERE b IN (SELECT c FROM x)",
            {"tables": ["shop.orders"], "select": "id, b", "where": "b IN (SELECT c FROM x)"},
        ),
        ("SELECT * FROM shop.orders", {"tables": ["shop.orders"]}),
        (
            "SELECT orders.*, c.n FROM shop.orders LEFT JOIN c ON c.k = orders.k WHERE n > 1",
            {"tables": ["shop.orders"], "select": "orders.*, c.n", "join": "LEFT JOIN c ON c.k = orders.k", "where": "n > 1"},
        ),
    ],
)
def test_a_query_is_a_rule(query: str, rule: dict[str, Any]) -> None:
    found = filter_settings(query, TABLES)
    assert found == {"filter": {"rules": [rule]}}
    load_feed_config({"name": "f", "tables": [*TABLES], "sink": "file:///x"} | found)
    assert filter_settings("", TABLES) == {}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * FROM shop.orders o WHERE a", "the table keeps its own name"),
        ("SELECT * FROM (SELECT 1) WHERE a", "behind FROM stands a table of the feed"),
        ("SELECT * FROM orders", "behind FROM stands a table of the feed"),
        ("SELECT * WHERE a FROM shop.orders", "WHERE stands behind FROM"),
    ],
)
def test_what_is_no_rule_is_refused(query: str, message: str) -> None:
    with pytest.raises(PenstockError, match=message) as caught:
        filter_settings(query, TABLES)
    assert caught.value.code == "CONFIG_INVALID"
