from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.server.sql.parser import KEYWORDS, parse
from penstock.server.sql.statements import (
    CreateFeed,
    DoTableVerb,
    DoVerb,
    ExplainCreation,
    ExplainFeed,
    ShowFeed,
    ShowFeeds,
    Statement,
    VerifyFeed,
)


@pytest.mark.parametrize(
    ("text", "tree", "query"),
    [
        ("CREATE CHANGEFEED o FOR TABLE shop.* INTO 'file:///t'", {"name": "o", "tables": ["shop.*"], "sink": {"uri": "file:///t"}}, ""),
        (
            "create changefeed `o` for tables a.b, \"c d.e\" into 'file:///t' with (flush_interval = 2s, sink.csv.delimiter = ';', "
            "recheck-tables = (a.b, 'c.d')) as select x, 'a;b' where y = 1;",
            {
                "name": "o",
                "tables": ["a.b", "c d.e"],
                "sink": {"uri": "file:///t", "csv": {"delimiter": ";"}},
                "flush-interval": "2s",
                "recheck-tables": ["a.b", "c.d"],
            },
            "select x, 'a;b' where y = 1",
        ),
    ],
)
def test_creations(text: str, tree: dict[str, Any], query: str) -> None:
    made = parse(text)
    assert isinstance(made, CreateFeed)
    assert (made.tree, made.query, made.reads) == (tree, query, False)
    assert "file" not in repr(made)


def test_options_stand_at_their_paths_however_many_there_are() -> None:
    made = parse("ALTER CHANGEFEED o SET (a = 1, sink.x = 2, sink.csv.y = 3, sink.csv.z = 4, a.b = 5)")
    assert asked(made)[2]["changes"] == {"a": {"b": "5"}, "sink": {"x": "2", "csv": {"y": "3", "z": "4"}}}
    # Of as many as fit a text the tree was made anew for each, for a minute; a name with so many parts ended the call.
    many = ", ".join(f"k{at}={at}" for at in range(2_000))
    assert len(asked(parse(f"ALTER CHANGEFEED o SET ({many})"))[2]["changes"]) == 2_000
    with pytest.raises(PenstockError, match="is no setting"):
        parse("ALTER CHANGEFEED o SET (" + "a." * 50_000 + "b = 1)")


def asked(made: Any) -> tuple[str, str, dict[str, Any]]:
    assert isinstance(made, DoVerb)
    assert not made.reads
    return made.verb, made.name, made.arguments


@pytest.mark.parametrize(
    ("text", "verb", "arguments"),
    [
        ("PAUSE CHANGEFEED o", "pause", {}),
        ("PAUSE CHANGEFEED o COMMENT 'it''s late'", "pause", {"reason": "it's late"}),
        ("resume changefeed o;", "resume", {}),
        ("CANCEL CHANGEFEED o", "cancel", {}),
        ("DROP CHANGEFEED o", "remove", {}),
        ("RESET CHANGEFEED o TO NOW", "reset", {"to": "now"}),
        ("RESET CHANGEFEED o TO snapshot COMMENT 'x'", "reset", {"to": "snapshot", "reason": "x"}),
        ("RESET CHANGEFEED o TO 12345", "reset", {"to": "12345"}),
        ("MOVE CHANGEFEED o TO ANY", "move", {"to": ""}),
        ("MOVE CHANGEFEED o TO 'http://b:1'", "move", {"to": "http://b:1"}),
        ("CLONE CHANGEFEED o AS p INTO 'file:///p'", "clone", {"name": "p", "changes": {"sink": {"uri": "file:///p"}}}),
        ("ALTER CHANGEFEED o FOR TABLE a.b", "alter", {"changes": {"tables": ["a.b"]}}),
        (
            "ALTER CHANGEFEED o FOR TABLE a.b SET (until-ts = 9) COMMENT 'y'",
            "alter",
            {"changes": {"tables": ["a.b"], "until-ts": "9"}, "reason": "y"},
        ),
    ],
)
def test_verbs(text: str, verb: str, arguments: dict[str, Any]) -> None:
    assert asked(parse(text)) == (verb, "o", arguments)


@pytest.mark.parametrize("verb", ["exclude", "include", "resnapshot", "retry"])
def test_verbs_on_tables(verb: str) -> None:
    made = parse(f"ALTER CHANGEFEED o {verb} TABLE a.b")
    assert isinstance(made, DoTableVerb)
    assert (made.verb, made.name, made.table, made.reads) == (verb, "o", "a.b", False)


def test_what_only_reads() -> None:
    found = [parse(t) for t in ("SHOW CHANGEFEEDS", "SHOW CHANGEFEEDS LIKE 'a%'", "SHOW CHANGEFEED o", "SHOW CHANGEFEED o history")]
    assert all(one.reads for one in found)
    shown = [(one.name, one.what) for one in found if isinstance(one, ShowFeed)]
    likes = [one.like for one in found if isinstance(one, ShowFeeds)]
    assert (shown, likes) == ([("o", ""), ("o", "history")], [None, "a%"])


def test_what_asks_a_source_is_no_readers() -> None:
    explained = parse("EXPLAIN CHANGEFEED o")
    created = parse("EXPLAIN CREATE CHANGEFEED o FOR TABLE a.b INTO 'file:///t'")
    verified = parse("VERIFY CHANGEFEED o")
    assert isinstance(explained, ExplainFeed)
    assert isinstance(created, ExplainCreation)
    assert isinstance(verified, VerifyFeed)
    assert not any(one.reads for one in (explained, created, verified))


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", (1, 1), "expected CREATE, SHOW"),
        ("PAUSE CHANGEFED o", (1, 7), "expected CHANGEFEED, not 'CHANGEFED'"),
        ("PAUSE CHANGEFEED", (1, 17), "expected a name, not the end"),
        ("PAUSE CHANGEFEED o now", (1, 20), "expected the end, not 'now'"),
        ("PAUSE CHANGEFEED o COMMENT late", (1, 28), "expected a text in quotes, not 'late'"),
        ("CREATE CHANGEFEED o\nFOR TABLE a.b\n  INTO file:///t", (3, 8), "expected the target's URI in quotes"),
        ("CREATE CHANGEFEED o FOR a.b INTO 'x'", (1, 25), "expected TABLE, not 'a.b'"),
        ("CREATE CHANGEFEED o FOR TABLE a.b INTO 'x' WITH (a)", (1, 51), "expected =, not ')'"),
        ("CREATE CHANGEFEED o FOR TABLE a.b INTO 'x' WITH (a = 1 b = 2)", (1, 56), "expected ), not 'b'"),
        ("CREATE CHANGEFEED o FOR TABLE a.b INTO 'x' WITH (a = 1, a = 2)", (1, 57), "a is set twice"),
        ("CREATE CHANGEFEED o FOR TABLE a.b INTO 'x' WITH (a..b = 1)", (1, 50), "'a..b' is no setting"),
        ("CREATE CHANGEFEED o FOR TABLE a.b INTO 'x' AS VALUES (1)", (1, 47), "expected SELECT, not 'VALUES'"),
        ("SHOW CHANGEFEED o ROWS", (1, 19), "expected TABLES, ERRORS, HISTORY or the end"),
        ("ALTER CHANGEFEED o", (1, 19), "expected FOR, INTO, SET, EXCLUDE"),
        ("PAUSE CHANGEFEED a; PAUSE CHANGEFEED b", (1, 21), "one statement at a time"),
    ],
)
def test_errors_point_at_their_place(text: str, place: tuple[int, int], message: str) -> None:
    with pytest.raises(PenstockError) as caught:
        parse(text)
    told, shown, caret = caught.value.detail.split("\n")
    assert caught.value.code == "SQL_INVALID"
    assert told.startswith("line {}, column {}: ".format(*place) + message)
    assert len(caret) <= len(shown) + 1


def test_a_keyword_that_was_meant_is_named() -> None:
    with pytest.raises(PenstockError) as caught:
        parse("PAUS CHANGEFEED o")
    assert caught.value.hint == "Did you mean PAUSE?"


@given(st.lists(st.sampled_from([*KEYWORDS, "o", "a.b", "'t'", "(", ")", "=", ",", ";", "1"]), max_size=12).map(" ".join))
@settings(max_examples=100)
def test_any_text_is_a_statement_or_refused(text: str) -> None:
    found = outcome(text)
    if isinstance(found, PenstockError):
        assert found.code == "SQL_INVALID"
        assert found.detail.startswith("line 1, column ")
    else:
        assert all(text[at:].strip() for at in found.places.values())


def outcome(text: str) -> Statement | PenstockError:
    try:
        return parse(text)
    except PenstockError as error:
        return error
