"""What stands behind ``AS`` in a statement, as settings of a feed: the one place where a query becomes filters.

The expressions are Spark's and are handed on as they stand; only where the parts of the query begin is looked for here. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.config.tree import FeedConfig
from penstock.model.errors import PenstockError
from penstock.server.sql.tokens import Token, TokenKind, tokens_of
from penstock.settings.loader import known_keys

_JOINS = ("JOIN", "INNER", "LEFT", "CROSS")
_NOT_OF_A_FILTER = ("GROUP", "ORDER", "HAVING", "LIMIT", "UNION", "WINDOW", "RIGHT", "FULL", "DISTINCT")


def filter_settings(query: str, tables: Sequence[str]) -> dict[str, Any]:
    """Return the part of a feed's configuration that a query asks for; raise ``CONFIG_INVALID`` where it cannot be had."""
    if not query:
        return {}
    if "filter" not in known_keys(FeedConfig):
        raise PenstockError(
            "CONFIG_INVALID",
            f"query: rows and columns of {', '.join(tables[:3])} cannot be chosen by a query",
            "Leave AS SELECT out: whole tables are delivered.",
        )
    return {"filter": {"rules": [{"tables": list(tables), **parts_of(query)}]}}


def parts_of(query: str) -> dict[str, str]:
    """Return ``select``, ``join`` and ``where`` of a query, each as it stands there; what is not there, and ``SELECT *``, is left out."""
    tokens = tokens_of(query)
    begins = {"select": tokens[0].end}
    ends: dict[str, int] = {}
    part = "select"
    for token in _outside_of_parentheses(tokens[1:]):
        found = _part_that_begins(part, token)
        if token.is_word(*_NOT_OF_A_FILTER):
            raise PenstockError(
                "CONFIG_INVALID", f"query: {token.value.upper()} has no meaning for single changes", "Choose rows by WHERE."
            )
        if found:
            ends[part] = token.at
            # A join is handed on with its keyword, the others without.
            begins[found] = token.at if found == "join" else token.end
            part = found
    ends[part] = len(query)
    texts = {name: query[at : ends[name]].strip() for name, at in begins.items() if name != "from"}
    if not texts["select"] or texts.get("where") == "":
        raise PenstockError("CONFIG_INVALID", "query: an expression is missing behind SELECT or WHERE")
    return {name: text for name, text in texts.items() if (name, text) != ("select", "*")}


def _part_that_begins(part: str, token: Token) -> str:
    if token.is_word("WHERE") and part != "where":
        return "where"
    if token.is_word("FROM") and part == "select":
        return "from"
    return "join" if token.is_word(*_JOINS) and part == "from" else ""


def _outside_of_parentheses(tokens: Sequence[Token]) -> list[Token]:
    found, depth = [], 0
    for token in tokens:
        depth += token.is_mark("(") - token.is_mark(")")
        if depth == 0 and token.kind is not TokenKind.END:
            found.append(token)
    return found
