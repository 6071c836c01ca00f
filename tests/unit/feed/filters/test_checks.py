"""What is asked of a filter before it may hold."""

from __future__ import annotations

import contextlib

import pytest

from penstock.feed.filters.checks import check_columns_stay, check_filter
from penstock.feed.filters.rules import FilterRule, FilterSettings
from penstock.feed.filters.views import TableView
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

TABLES = [TableSchema(at, "d", name, 1, (Column(1, "id", ColumnType(TypeKind.INT), primary_key=True),)) for at, name in enumerate("tu", 1)]


class Fits:
    """Knows no column but ``id``."""

    def view(self, table: TableSchema, rule: FilterRule) -> TableView:
        if "id" not in rule.where:
            raise PenstockError("FILTER_BROKEN", f"{table.full_name}: where at character 1: unknown; in where = {rule.where!r}")
        return TableView(table, table)


def test_every_rule_must_fit_every_table_of_its_own() -> None:
    good = FilterRule(("d.t",), where="id > 1")
    check_filter(FilterSettings(rules=(good, FilterRule(("d.u",), columns=("id",)))), TABLES, Fits())
    bad = FilterSettings(rules=(good, FilterRule(("d.*",), where="x"), FilterRule(("d.nothing",), where="id")))
    with pytest.raises(PenstockError) as caught:
        check_filter(bad, TABLES, Fits())
    assert caught.value.code == "CONFIG_INVALID"
    assert caught.value.detail.splitlines() == [
        "filter.rules[2].tables: match no table of the feed",
        "filter.rules[1]: d.u: where at character 1: unknown; in where = 'x'",
    ]
    with pytest.raises(PenstockError, match="there is no Spark here"):
        check_filter(FilterSettings(rules=(good,)), TABLES, None)


@pytest.mark.parametrize(
    ("after", "problem"),
    [
        (FilterSettings(rules=(FilterRule(("d.t",), where="id > 2"),)), ""),
        (FilterSettings(), ""),
        (FilterSettings(events=("insert",)), "filter: events and ddl stay"),
        (FilterSettings(rules=(FilterRule(("d.t",), select="id"),)), "filter.rules: d.t would have other columns"),
        (FilterSettings(rules=(FilterRule(("d.u",), columns=("id",)),)), "filter.rules: d.u would have other columns"),
    ],
)
def test_files_that_are_there_keep_their_columns(after: FilterSettings, problem: str) -> None:
    before = FilterSettings(rules=(FilterRule(("d.t",), where="id > 1"),))
    with pytest.raises(PenstockError) if problem else contextlib.nullcontext() as caught:
        check_columns_stay(before, after, TABLES)
    assert caught is None or caught.value.detail.startswith(problem)
    check_columns_stay(before, FilterSettings(rules=after.rules), [])


def test_a_stopped_table_may_get_other_expressions_for_the_columns_that_it_has() -> None:
    before = FilterSettings(rules=(FilterRule(("d.t",), where="id > 1"),))
    mended = FilterSettings(rules=(FilterRule(("d.t",), where="id > 1", select="id"),))
    with pytest.raises(PenstockError, match="only where may change"):
        check_columns_stay(before, mended, TABLES, (), Fits())
    check_columns_stay(before, mended, TABLES, {1}, Fits())
    wide = TableSchema(1, "d", "t", 1, (*TABLES[0].columns, Column(2, "v", ColumnType(TypeKind.INT))))
    narrow = FilterSettings(rules=(FilterRule(("d.t",), columns=("id",)),))
    with pytest.raises(PenstockError, match="only where may change"):
        check_columns_stay(before, narrow, [wide], {1}, Fits())
    # Nothing stands in files of a version that the expression never fitted.
    check_columns_stay(FilterSettings(rules=(FilterRule(("d.t",), where="x"),)), narrow, [wide], {1}, Fits())
