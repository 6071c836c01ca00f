from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.server.sql.tokens import TEXT_CHARS_MAX, masked_sql, place_of, sql_error, statements_of, tokens_of

SECRET = "hunter2"


def values(text: str) -> list[str]:
    return [token.value for token in tokens_of(text)][:-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a  b\n\tc", ["a", "b", "c"]),
        ("shop.* , !shop.x", ["shop.*", ",", "!shop.x"]),
        ("k=10s,(x)", ["k", "=", "10s", ",", "(", "x", ")"]),
        ('\'it\'\'s\' "a ""b""" `c;d`', ["it's", 'a "b"', "c;d"]),
        ("a -- b ; '\n c /* 'd ** */ e", ["a", "c", "e"]),
        ("sink.csv.delimiter=';'", ["sink.csv.delimiter", "=", ";"]),
        ("a-b a--b", ["a-b", "a--b"]),
    ],
)
def test_tokens(text: str, expected: list[str]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize(("text", "at"), [("a 'b", 2), ('ab\n  "c', 5), ("`", 0), ("a /* b", 2)])
def test_what_is_not_closed_is_refused_at_its_place(text: str, at: int) -> None:
    with pytest.raises(PenstockError, match="not closed") as caught:
        tokens_of(text)
    line, column = place_of(text, at)
    assert caught.value.detail.startswith(f"line {line}, column {column}: ")


def test_a_text_has_a_bound() -> None:
    with pytest.raises(PenstockError, match="SQL_INVALID"):
        tokens_of("x" * (TEXT_CHARS_MAX + 1))


def test_statements_are_divided_by_semicolons_outside_of_quotes() -> None:
    assert statements_of("a 'x;y' ;; -- ;\n b;c") == [(0, "a 'x;y'"), (17, "b"), (19, "c")]


@given(st.text("ab'\"`;=(), \n-/*", max_size=40))
@settings(max_examples=100)
def test_tokens_are_where_they_say(text: str) -> None:
    try:
        found = tokens_of(text)
    except PenstockError:
        assert any(mark in text for mark in ("'", '"', "`", "/*"))
        return
    ends = [0, *(token.end for token in found)]
    assert all(before <= token.at <= token.end for before, token in zip(ends, found, strict=False))
    for token in found[:-1]:
        raw = text[token.at : token.end]
        assert token.value == (raw[1:-1].replace(raw[0] * 2, raw[0]) if raw[0] in "'\"`" else raw)


@pytest.mark.parametrize(
    "text",
    [
        f"INTO 's3://key:{SECRET}@bucket/x' HERE",
        f"INTO s3://key:{SECRET}@bucket/x HERE",
        f"WITH (sink.secret-access-key = '{SECRET}') HERE",
        f"WITH (password={SECRET}) HERE",
        f"INTO 's3://bucket?secret-access-key={SECRET}' HERE",
        f"INTO 's3://a\n:{SECRET}@b' HERE",
    ],
)
def test_no_error_and_no_history_holds_a_secret(text: str) -> None:
    for at in range(len(text)):
        assert SECRET not in sql_error(text, at, "x").detail
    assert SECRET not in masked_sql(text)
    assert SECRET not in masked_sql(f"{text} '")


@pytest.mark.parametrize(
    ("text", "at", "shown"), [("a b c", 2, ("a b c", 2)), ("x\n 'a' ? y\nz", 7, (" 'a' ? y", 5)), ("x = 'a' ?", 8, ("x = '***' ?", 10))]
)
def test_the_caret_stands_below_the_place(text: str, at: int, shown: tuple[str, int]) -> None:
    _, line, caret = sql_error(text, at, "m").detail.split("\n")
    assert (line, len(caret) - 1) == shown


def test_what_is_no_secret_is_kept() -> None:
    text = "CREATE CHANGEFEED a FOR TABLE b.* INTO 'file:///tmp/a' WITH (flush-interval = '2s')"
    assert masked_sql(text) == text
