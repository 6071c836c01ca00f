"""Columns that a statement defines, and changes of them that keep every stored row."""

import pytest
import sqlglot
from sqlglot import exp

from penstock.ddl.column_definition import build_column, check_modify, has_clock_default, is_first
from penstock.model.errors import PenstockError
from penstock.model.table import Column
from penstock.model.types import ColumnType, TypeKind

K = TypeKind


def parsed(text: str) -> exp.ColumnDef:
    definition = sqlglot.parse_one(f"ALTER TABLE t ADD COLUMN {text}", dialect="mysql").find(exp.ColumnDef)
    assert definition is not None
    return definition


def column(text: str) -> Column:
    return build_column(parsed(text), 7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a INT NOT NULL DEFAULT -5", Column(7, "a", ColumnType(K.INT), False, default="-5")),
        ("a INT UNSIGNED", Column(7, "a", ColumnType(K.INT, unsigned=True))),
        ("a BOOLEAN DEFAULT TRUE", Column(7, "a", ColumnType(K.TINYINT, length=1), default="1")),
        ("a VARCHAR(9) DEFAULT 'it''s'", Column(7, "a", ColumnType(K.VARCHAR, length=9), default="it's")),
        ("a BIT(3) DEFAULT b'101'", Column(7, "a", ColumnType(K.BIT, length=3), default="b'101'")),
        ("a DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3)", Column(7, "a", ColumnType(K.DATETIME, scale=3), default="CURRENT_TIMESTAMP(3)")),
        ("a INT PRIMARY KEY", Column(7, "a", ColumnType(K.INT), False, True)),
        ("a INT DEFAULT NULL", Column(7, "a", ColumnType(K.INT))),
        ("a ENUM('x','y') NOT NULL", Column(7, "a", ColumnType(K.ENUM, elems=("x", "y")), False)),
    ],
)
def test_definitions(text: str, expected: Column) -> None:
    assert column(text) == expected


@pytest.mark.parametrize("text", ["a INT GENERATED ALWAYS AS (b + 1)", "a INT DEFAULT (1 + 1)", "a INET"])
def test_what_is_not_taken_is_refused_by_name(text: str) -> None:
    with pytest.raises(PenstockError, match="column a") as caught:
        column(text)
    assert caught.value.code == "TYPE_UNSUPPORTED"


def test_places_and_clocks() -> None:
    assert is_first(parsed("a INT first").args["position"])
    assert not is_first(parsed("a INT AFTER b").args["position"])
    assert has_clock_default(column("a TIMESTAMP DEFAULT current_timestamp"))
    assert not has_clock_default(column("a VARCHAR(9) DEFAULT 'x'"))


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ("INT", "BIGINT", True),
        ("INT UNSIGNED", "BIGINT", True),
        ("INT", "BIGINT UNSIGNED", False),
        ("BIGINT", "INT", False),
        ("VARCHAR(9)", "VARCHAR(8)", False),
        ("VARCHAR(9)", "TEXT", True),
        ("ENUM('a')", "ENUM('a','b')", True),
        ("ENUM('a','b')", "ENUM('b','a')", False),
        ("DECIMAL(9,2)", "DECIMAL(10,2)", True),
        ("DECIMAL(9,2)", "DECIMAL(10,3)", False),
        ("FLOAT", "DOUBLE", True),
        ("INT", "INT NOT NULL", False),
    ],
)
def test_changes_that_would_rewrite_rows_are_refused(old: str, new: str, kept: bool) -> None:
    if kept:
        check_modify(column(f"a {old}"), column(f"a {new}"))
    else:
        with pytest.raises(PenstockError, match="column a"):
            check_modify(column(f"a {old}"), column(f"a {new}"))
