"""Patterns of table names."""

import pytest

from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table import Column, TableSchema
from penstock.model.table_pattern import TablePatterns, is_pattern, match_table, whole_pattern
from penstock.model.types import ColumnType, TypeKind

ID = Column(1, "id", ColumnType(TypeKind.BIGINT), False, True)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("shop.orders", "Shop.ORDERS", True),
        ("SHOP.o*", "shop.orders", True),
        ("shop.o?ders", "shop.orders", True),
        ("shop.[a-p]*", "shop.orders", True),
        ("*", "shop.orders", False),
        ("s*", "shop.orders", False),
        ("*.*", "shop.orders", True),
        ("sh*.*ers", "shop.orders", True),
        ("shop.*", "shop.a.b", True),
        ("shop.*", "shopping.a", False),
    ],
)
def test_parts_are_compared_apart_and_without_case(pattern: str, name: str, matches: bool) -> None:
    assert match_table(pattern, *name.split(".", 1)) is matches
    assert TablePatterns(("none.none", pattern)).match(*name.split(".", 1)) is matches


@pytest.mark.parametrize(
    ("pattern", "schema", "table", "matches"),
    [
        ("`a.b`.t", "a.b", "t", True),
        ("`A.b`.*", "a.B", "t", True),
        ("a.b.t", "a.b", "t", False),
        ("a.b.t", "a", "b.t", True),
        (".penstock.t", ".penstock", "t", True),
        (".penstock.*", ".penstock", "t", True),
        ("`shop`.`orders`", "shop", "orders", True),
        ("shop.my orders", "shop", "my orders", True),
        ("`a``b`.`t``u`", "a`b", "t`u", True),
        ("!`a.b`.t", "a.b", "t", True),
    ],
)
def test_names_with_dots_blanks_and_quotes(pattern: str, schema: str, table: str, matches: bool) -> None:
    assert match_table(pattern, schema, table) is matches
    assert is_pattern(pattern)
    if pattern.startswith("!"):
        assert not TablePatterns(("*.*", pattern)).match(schema, table)
        return
    assert TablePatterns((pattern,)).match(schema, table) is matches
    assert TablePatterns((pattern,)).match_database(schema) is (matches or schema == "a")


@pytest.mark.parametrize(
    ("schema", "table"),
    [("shop", "orders"), ("a.b", "c.d"), (".penstock", "t"), ("a`b", "`"), ("!x", "!y"), ("a*", "b[c]?"), ("my shop", "ünï"), ("``", ".")],
)
def test_a_whole_name_is_a_pattern_of_that_table_alone(schema: str, table: str) -> None:
    pattern = whole_pattern(schema, table)
    assert is_pattern(pattern)
    assert TablePatterns((pattern,)).match(schema, table)
    assert not TablePatterns(("*.*", f"!{pattern}")).match(schema, table)
    assert TablePatterns(("*.*", f"!{pattern}")).match(schema, table + "x")


@pytest.mark.parametrize("text", ["", "shop", "shop.", ".", ".shop", "!shop", " shop.a", "shop.a ", "a.b\n", "`shop", "`shop`", "a\tb.c"])
def test_what_is_no_pattern(text: str) -> None:
    assert not is_pattern(text)


def test_which_ddls_a_pattern_concerns() -> None:
    mine = TablePatterns(("shop.o*",))
    table = TableSchema(1, "shop", "orders", 5, (ID,))
    renamed_away = DdlEvent(9, DdlType.RENAME_TABLE, "", "shop", (TableSchema(1, "attic", "x", 9, (ID,)),), (), ((1, "shop", "orders"),))
    assert mine.concern(DdlEvent(5, DdlType.CREATE_TABLE, "", "shop", (table,)))
    assert mine.concern(renamed_away)
    assert not mine.concern(DdlEvent(5, DdlType.CREATE_TABLE, "", "shop", (TableSchema(2, "shop", "items", 5, (ID,)),)))
    assert mine.concern(DdlEvent(5, DdlType.DROP_SCHEMA, "", "shop"))
    assert not mine.concern(DdlEvent(5, DdlType.DROP_SCHEMA, "", "attic"))


@pytest.mark.parametrize(
    ("patterns", "belong"),
    [
        (("a.*", "!a.x*"), {"a.b"}),
        (("a.*", "!a.x*", "a.xy"), {"a.b", "a.xy"}),
        (("!a.b", "a.*"), {"a.b", "a.x", "a.xy"}),
        (("!a.b",), set()),
        (("*.*", "!a.*"), {"b.x"}),
    ],
)
def test_of_patterns_and_exceptions_the_last_that_matches_counts(patterns: tuple[str, ...], belong: set[str]) -> None:
    wanted = TablePatterns(patterns)
    assert {name for name in ("a.b", "a.x", "a.xy", "b.x") if wanted.match(*name.upper().split("."))} == belong
    assert TablePatterns(("!a.*", "b.x")).match_database("b")
    assert not TablePatterns(("!a.*", "b.x")).match_database("a")
