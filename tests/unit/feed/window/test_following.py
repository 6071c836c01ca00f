from __future__ import annotations

import msgspec

from penstock.feed.filters.rules import FilterRule, FilterSettings
from penstock.feed.filters.views import FeedViews, TableView
from penstock.feed.window.assignment import Dispatcher
from penstock.feed.window.following import follow, joined, stopped, to_records, with_filters, with_other_rules, written_parts
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import Column, TableSchema
from penstock.model.table_pattern import TablePatterns
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.contract import DispatcherId

ID = Column(1, "id", ColumnType(TypeKind.INT), False, True)
W = Column(2, "w", ColumnType(TypeKind.INT))
MINE = TablePatterns(("shop.*",))
COLUMNS = (Column(1, "id", ColumnType(TypeKind.INT), False, True), Column(2, "v`x", ColumnType(TypeKind.VARCHAR, length=9), default="o'k"))


def table(table_id: int, name: str, schema: str = "shop", version: int = 50) -> TableSchema:
    return TableSchema(table_id, schema, name, version, COLUMNS)


def dispatcher(table_id: int, name: str, span: int = 0, spans: int = 1) -> Dispatcher:
    return Dispatcher(DispatcherId(table_id, span, spans), Span(table_id, bytes([span])), "shop", name)


def test_a_table_that_is_made_begins_at_the_ddl_and_one_outside_is_none_of_ours():
    ddl = DdlEvent(50, DdlType.CREATE_TABLES, "CREATE TABLE a; CREATE TABLE b", "shop", (table(5, "a"), table(6, "b", "other")))
    assert follow((dispatcher(1, "t"),), [ddl], MINE) == (
        dispatcher(1, "t"),
        Dispatcher(DispatcherId(5), Span(5), "shop", "a", begin_ts=50),
    )
    (written,) = written_parts(ddl, (dispatcher(1, "t"),), MINE)
    assert (written.tables, written.query) == ((table(5, "a"),), "CREATE TABLE a")


def test_a_truncated_table_that_was_divided_goes_on_whole_under_its_new_id():
    before = (dispatcher(1, "t", 0, 2), dispatcher(1, "t", 1, 2), dispatcher(2, "u"))
    ddl = DdlEvent(50, DdlType.TRUNCATE_TABLE, "TRUNCATE TABLE t", "shop", (table(9, "t"),), (1,))
    after = follow(before, [ddl], MINE)
    assert after == (dispatcher(2, "u"), Dispatcher(DispatcherId(9), Span(9), "shop", "t", begin_ts=50))
    records = to_records(after, before, 50)
    assert {(r.range_id, r.begin_ts, r.end_ts) for r in records} == {("2-0", 0, 0), ("9-0", 50, 0), ("1-0", 0, 50), ("1-1", 0, 50)}


def test_a_drop_is_told_under_the_names_that_the_feed_knows():
    ddl = DdlEvent(50, DdlType.DROP_TABLE, "DROP TABLE t, x", "shop", dropped_table_ids=(1, 8), old_names=((1, "shop", "t"), (8, "o", "x")))
    assert follow((dispatcher(1, "t"), dispatcher(2, "u")), [ddl], MINE) == (dispatcher(2, "u"),)
    (written,) = written_parts(ddl, (dispatcher(1, "t"),), MINE)
    assert written.old_names == ((1, "shop", "t"),)


def test_a_table_renamed_out_ends_and_one_renamed_in_begins_with_its_state_and_is_new_to_the_target():
    out = table(1, "t", "other")
    came = table(7, "t")
    ddl = DdlEvent(50, DdlType.RENAME_TABLES, "RENAME TABLE ...", "shop", (out, came), old_names=((1, "shop", "t"), (7, "other", "t")))
    after = follow((dispatcher(1, "t"),), [ddl], MINE)
    assert after == (Dispatcher(DispatcherId(7), Span(7), "shop", "t", begin_ts=50, with_state=True),)
    left, made = written_parts(ddl, (dispatcher(1, "t"),), MINE)
    assert left.tables == (out,)
    assert (made.type, made.tables) == (DdlType.CREATE_TABLE, (came,))
    assert made.query == ("CREATE TABLE `shop`.`t` (`id` int(11) NOT NULL, `v``x` varchar(9) DEFAULT 'o''k', PRIMARY KEY (`id`))")
    assert joined(after, [Span(7).span_id])[0].with_state is False
    assert joined(after, [Span(8).span_id]) == after


def test_a_rename_inside_keeps_the_dispatchers_and_tells_both_names():
    ddl = DdlEvent(50, DdlType.RENAME_TABLE, "RENAME TABLE t TO u", "shop", (table(1, "u"),), old_names=((1, "shop", "t"),))
    after = follow((dispatcher(1, "t", 0, 2), dispatcher(1, "t", 1, 2)), [ddl], MINE)
    assert [(d.id, d.table, d.begin_ts) for d in after] == [(DispatcherId(1, 0, 2), "u", 0), (DispatcherId(1, 1, 2), "u", 0)]
    assert written_parts(ddl, (dispatcher(1, "t"),), MINE) == [ddl]


def test_a_database_is_told_as_it_is():
    ddl = DdlEvent(50, DdlType.DROP_SCHEMA, "DROP DATABASE shop", "shop", dropped_table_ids=(1, 2))
    assert follow((dispatcher(1, "t"), dispatcher(2, "u")), [ddl], MINE) == ()
    assert written_parts(ddl, (dispatcher(1, "t"),), MINE) == [ddl]


class FitsWithoutV:
    """Gives a view of every version but those that have a column ``v``."""

    def view(self, table: TableSchema, rule: FilterRule) -> TableView:
        del rule
        if any(c.name == "v" for c in table.columns):
            raise PenstockError("FILTER_BROKEN", f"{table.full_name}: where at character 1: v; in where = 'v'")
        return TableView(table, msgspec.structs.replace(table, columns=table.columns[:1]))


def test_a_table_that_a_ddl_makes_unfit_for_its_filter_stops_until_another_mends_it() -> None:
    views = FeedViews(FilterSettings(rules=(FilterRule(("shop.t",), where="v"),)), FitsWithoutV())
    before = (dispatcher(1, "t"), dispatcher(2, "u"))
    fits = TableSchema(1, "shop", "t", 5, (ID, W))
    broken = TableSchema(1, "shop", "t", 6, (ID, W, msgspec.structs.replace(W, id=3, name="v")))
    breaking, mending = (DdlEvent(t.version, DdlType.MODIFY_COLUMN, "ALTER", "shop", (t,)) for t in (broken, fits))
    after = with_filters(before, [breaking], views)
    error = "[FILTER_BROKEN] shop.t: where at character 1: v; in where = 'v'"
    assert after == (msgspec.structs.replace(before[0], with_state=True, returns=True, stopped=error), before[1])
    assert with_filters(after, [], views) == after
    assert with_filters(after, [mending], views) == (stopped(before[0], ""), before[1])
    # The target is not told of what it gets no rows of, and of the rest as it sees it.
    assert written_parts(breaking, before, MINE, views) == []
    (told,) = written_parts(mending, before, MINE, views)
    assert told.tables == (msgspec.structs.replace(fits, columns=(ID,)),)
    other = DdlEvent(7, DdlType.ADD_COLUMN, "ALTER", "shop", (TableSchema(2, "shop", "u", 7, (ID, W)),))
    assert written_parts(other, before, MINE, views) == [other]


def test_a_table_with_another_rule_comes_again_with_what_differs() -> None:
    before, after = (FilterSettings(rules=(FilterRule(("shop.t",), where=where),)) for where in ("v > 1", "v > 2"))
    mine = (dispatcher(1, "t"), dispatcher(2, "u"))
    again = msgspec.structs.replace(mine[0], begin_ts=9, with_state=True, returns=True)
    assert with_other_rules(mine, before, after, 9) == (again, mine[1])
    assert with_other_rules((stopped(mine[0], "broken"), mine[1]), before, after, 9) == (again, mine[1])
    assert with_other_rules(mine, before, before, 9) == mine
