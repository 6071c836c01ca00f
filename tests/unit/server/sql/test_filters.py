from __future__ import annotations

import pytest

from penstock.config.tree import FeedConfig
from penstock.model.errors import PenstockError
from penstock.server.sql.filters import filter_settings, parts_of
from penstock.settings.loader import known_keys


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("SELECT * WHERE a > 1", {"where": "a > 1"}),
        ("select id, upper(v) AS v", {"select": "id, upper(v) AS v"}),
        (
            "SELECT id FROM shop.orders WHERE (a = 1 OR b IN ('x', 'WHERE')) AND c",
            {"select": "id", "where": "(a = 1 OR b IN ('x', 'WHERE')) AND c"},
        ),
        (
            "SELECT o.id, d.name FROM shop.orders o\n LEFT JOIN dim d ON o.k = d.k WHERE o.a IS NOT NULL",
            {"select": "o.id, d.name", "join": "LEFT JOIN dim d ON o.k = d.k", "where": "o.a IS NOT NULL"},
        ),
        ("SELECT (SELECT max(x) FROM y WHERE z) AS m", {"select": "(SELECT max(x) FROM y WHERE z) AS m"}),
    ],
)
def test_parts(query: str, parts: dict[str, str]) -> None:
    assert parts_of(query) == parts


@pytest.mark.parametrize("query", ["SELECT", "SELECT * WHERE", "SELECT a GROUP BY a", "SELECT DISTINCT a", "SELECT a WHERE b LIMIT 1"])
def test_what_is_no_filter_is_refused(query: str) -> None:
    with pytest.raises(PenstockError, match="CONFIG_INVALID"):
        parts_of(query)


def test_a_query_is_a_rule_of_the_feeds_filter_or_refused() -> None:
    assert filter_settings("", ["a.b"]) == {}
    if "filter" in known_keys(FeedConfig):
        assert filter_settings("SELECT * WHERE x", ["a.b"]) == {"filter": {"rules": [{"tables": ["a.b"], "where": "x"}]}}
    else:
        with pytest.raises(PenstockError, match="cannot be chosen by a query"):
            filter_settings("SELECT * WHERE x", ["a.b"])
