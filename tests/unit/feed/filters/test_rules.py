"""What a feed's filter says: as a user writes it, checked, and written back."""

from __future__ import annotations

import pytest

from penstock.config.tree import dump_feed_config, load_feed_config
from penstock.feed.filters.rules import FilterRule, FilterSettings
from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

FEED = {"name": "f", "tables": ["shop.*", "!shop.tmp_*"], "sink": "file:///tmp/f"}
RULES = [
    {"tables": ["shop.orders"], "where": "amount > 10, 5"},
    {"tables": ["shop.*", "!shop.items"], "columns": ["*", "!note"], "events": ["insert"]},
]


def test_a_filter_is_read_and_written_back() -> None:
    config = load_feed_config(FEED | {"filter": {"events": ["insert", "delete"], "ddl": ["!add-index"], "rules": RULES}})
    chosen = config.settings.filter
    # A text stays whole, whatever commas are in it.
    assert chosen.rules == (
        FilterRule(("shop.orders",), where="amount > 10, 5"),
        FilterRule(("shop.*", "!shop.items"), columns=("*", "!note"), events=("insert",)),
    )
    assert load_feed_config(dump_feed_config(config)) == config
    assert "filter" not in dump_feed_config(load_feed_config(FEED))


def test_every_problem_is_told_with_its_path() -> None:
    rules = [{"tables": []}, {"tables": ["a.b"], "select": "*", "columns": ["x"], "key": ["y"]}, {"tables": ["a.b"], "key": ["y"]}]
    with pytest.raises(PenstockError) as caught:
        load_feed_config(FEED | {"filter": {"events": ["upsert"], "ddl": ["drop-table", "!add-index", "x"], "rules": rules}})
    lines = caught.value.detail.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *("filter.rules[0].tables", "filter.rules[1].columns", "filter.rules[2].key"),
        *("filter.events", "filter.ddl", "filter.ddl"),
    ]


def test_the_first_rule_that_matches_says_what_is_kept() -> None:
    chosen = FilterSettings(events=("update",), rules=(FilterRule(("a.b",), events=("insert",)), FilterRule(("a.*",), columns=("x",))))
    assert chosen.ops("a", "b") == {Op.INSERT}
    assert chosen.ops("a", "c") == {Op.UPDATE, Op.BEFORE}
    assert FilterSettings().ops("a", "b") is None
    columns = (Column(n, name, ColumnType(TypeKind.INT), primary_key=n == 1) for n, name in enumerate("kxy", 1))
    table = TableSchema(1, "a", "c", 1, tuple(columns))
    assert [c.name for c in chosen.columns_shown(table).columns] == ["k", "x"]
    assert not FilterSettings(rules=(FilterRule(("a.*",), columns=("x",)),)).is_sql
    assert FilterSettings(rules=(FilterRule(("a.*",), where="x"),)).is_sql


@pytest.mark.parametrize(
    ("kinds", "told"),
    [((), {True}), (("add-column",), {True}), (("drop-table",), {False}), (("!add-column",), {False}), (("!drop-table",), {True})],
)
def test_kinds_of_ddls(kinds: tuple[str, ...], told: set[bool]) -> None:
    assert {FilterSettings(ddl=kinds).tells(DdlEvent(1, DdlType.ADD_COLUMN, "", "a"))} == told


def test_what_is_no_copy_is_not_verified() -> None:
    chosen = FilterSettings(rules=(FilterRule(("a.b",), where="x > 1", select="x"), FilterRule(("a.c",), columns=("x",))))
    assert chosen.not_a_copy("a", "b") == "its rows are filtered by Spark SQL (where, select)"
    assert chosen.not_a_copy("a", "c") == "some of its columns are left out"
    assert chosen.not_a_copy("a", "d") == ""
    assert FilterSettings(events=("insert",)).not_a_copy("a", "d") == "some kinds of its events are left out"
