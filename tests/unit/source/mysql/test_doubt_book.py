"""Doubts between the place where they come up and the step that carries them."""

import numpy as np

from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.mysql.doubt_book import DoubtBook, doubts_of, reasoned_doubts
from penstock.source.single_log import TableDoubt

COLUMN = Column(1, "a", ColumnType(TypeKind.INT))


def table(number: int) -> TableSchema:
    return TableSchema(number, "s", f"t{number}", 5, (COLUMN,))


def doubt(number: int, ts: int = 0) -> TableDoubt:
    return TableDoubt(number, "s", f"t{number}", ts, "why")


def test_transactions_get_their_ts_in_order() -> None:
    book = DoubtBook()
    book.add_undated(0, [doubt(1)])
    book.add_undated(2, [doubt(2)])
    book.add([doubt(3)], 7)
    book.date(np.array([10, 20], np.uint64))
    assert book.take() == [doubt(3, 7), doubt(1, 10)]
    assert book.take() == []
    book.date(np.array([30], np.uint64))
    assert book.take() == [doubt(2, 30)]


def test_what_is_doubted_twice_is_told_once() -> None:
    book = DoubtBook()
    book.add([doubt(1), doubt(1)], 7)
    book.add_undated(0, [doubt(2)])
    assert book.take_all() == [doubt(1, 7), doubt(2)]
    assert book.take_all() == []


def test_only_captured_tables_are_told_and_those_that_are_just_made() -> None:
    book = DoubtBook()
    book.add([doubt(0), doubt(1), doubt(2), doubt(3), doubt(4)])
    in_place_of_none = DdlEvent(6, DdlType.CREATE_TABLE, "", "s", (table(2),))
    in_place_of_another = DdlEvent(6, DdlType.CREATE_TABLE, "", "s", (table(3),), (99,))
    assert book.take_for({1}.__contains__, [in_place_of_none, in_place_of_another]) == (doubt(0), doubt(1), doubt(2))


def test_reasons_make_one_doubt() -> None:
    assert reasoned_doubts(table(1), 9, []) == ()
    assert reasoned_doubts(table(1), 9, ["b", "a", "b"], "X") == (TableDoubt(1, "s", "t1", 9, "b; a", "X"),)
    assert doubts_of([table(1), table(2)], "why") == [doubt(1), doubt(2)]
