"""What stands behind ``AS`` in a statement, as settings of a feed: the one place where a query becomes filters.

``SELECT list [FROM table [JOIN …]] [WHERE condition]`` is one rule: of the table behind FROM, or of all tables of the feed. What list,
joins and condition mean is Spark's business. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.model.errors import PenstockError
from penstock.server.sql.tokens import Token, TokenKind, tokens_of

_JOINS = ("JOIN", "LEFT", "INNER", "CROSS", "SEMI", "ANTI", "NATURAL")


def filter_settings(query: str, tables: Sequence[str]) -> dict[str, Any]:
    """Return the part of a feed's configuration that a query asks for; raise ``CONFIG_INVALID`` where it cannot be had."""
    if not query:
        return {}
    tokens = tokens_of(query)
    places = {word: _at_top(tokens, word) for word in ("FROM", "WHERE")}
    ends = [at for at in places.values() if at is not None]
    if places["FROM"] is not None and places["WHERE"] is not None and places["WHERE"] < places["FROM"]:
        raise PenstockError("CONFIG_INVALID", "query: WHERE stands behind FROM")
    select = query[tokens[0].end : tokens[min(ends)].at if ends else len(query)].strip()
    where = query[tokens[places["WHERE"]].end :].strip() if places["WHERE"] is not None else ""
    rule: dict[str, Any] = {"tables": list(tables)}
    if places["FROM"] is not None:
        last = tokens[places["WHERE"]].at if places["WHERE"] is not None else len(query)
        rule |= _from(query, tokens[places["FROM"] + 1 :], last)
    given = {"select": "" if select == "*" else select, "where": where}
    return {"filter": {"rules": [rule | {key: text for key, text in given.items() if text}]}}


def _from(query: str, behind: Sequence[Token], last: int) -> dict[str, Any]:
    """Return which table a query is about, and what it is joined with."""
    table = behind[0]
    if table.kind not in {TokenKind.WORD, TokenKind.NAME} or "." not in table.value:
        raise PenstockError("CONFIG_INVALID", "query: behind FROM stands a table of the feed, as database.table")
    join = query[table.end : last].strip()
    if join and not behind[1].is_word(*_JOINS):
        raise PenstockError("CONFIG_INVALID", f"query: behind {table.value} stands a JOIN or WHERE; the table keeps its own name")
    return {"tables": [table.value]} | ({"join": join} if join else {})


def _at_top(tokens: Sequence[Token], word: str) -> int | None:
    """Return where a keyword stands outside all parentheses, None where it does not."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += token.is_mark("(") - token.is_mark(")")
        if depth == 0 and token.is_word(word):
            return at
    return None
