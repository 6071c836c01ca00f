"""Statements that change no row: only those that are known to change none."""

import pytest

from penstock.ddl.tokens import tokens
from penstock.source.mysql.tables.harmless import is_harmless, plain_words


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("", True),
        ("BEGIN", True),
        ("flush tables", True),
        ("CREATE OR REPLACE DEFINER = x SQL SECURITY INVOKER VIEW v AS SELECT * FROM t", True),
        ("CREATE USER a", True),
        ("CREATE TABLE t (a INT)", False),
        ("DROP INDEX i ON t", False),
        ("UPDATE t SET a = 1", False),
        ("INSERT INTO t VALUES (1)", False),
        ("LOAD DATA INFILE 'x' INTO TABLE t", False),
        ("CREATE SOMETHING new", False),
    ],
)
def test_statements(text: str, harmless: bool) -> None:
    assert is_harmless(tokens(text)) is harmless


def test_settings_before_a_statement_are_no_part_of_it() -> None:
    assert plain_words(tokens("SET STATEMENT max_statement_time=1 FOR UPDATE t SET a = 1")) == tokens("UPDATE t SET a = 1")
    assert plain_words(["SET", "x"]) == ["SET", "x"]
