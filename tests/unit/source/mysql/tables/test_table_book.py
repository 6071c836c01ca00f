"""The book of table versions against the lives of a few tables that can be followed by hand."""

from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.mysql.tables.table_book import ID_BITS, TableBook, table_id

COLUMN = Column(3, "a", ColumnType(TypeKind.INT))


def version(number: int, name: str, ts: int) -> TableSchema:
    return TableSchema(number, "s", name, ts, (COLUMN,))


def test_ids_are_the_same_everywhere_and_differ_by_name_and_time() -> None:
    assert table_id("s", "t", 5) == table_id("s", "t", 5) != table_id("s", "t", 6)
    assert len({table_id("s", f"t{n}", 5) for n in range(1_000)}) == 1_000
    assert 0 < table_id("s", "t", 5) < 1 << ID_BITS


def test_names_change_hands() -> None:
    book = TableBook()
    one, two = version(1, "a", 10), version(2, "b", 10)
    for known in (one, two, version(1, "b", 20), version(2, "a", 20)):
        book.add(known)
    book.end(version(1, "b", 20), 30)
    assert book.living(9) == {}
    assert book.living(19) == {("s", "a"): one, ("s", "b"): two}
    assert book.living(20) == {("s", "a"): version(2, "a", 20), ("s", "b"): version(1, "b", 20)}
    assert book.living(30) == {("s", "a"): version(2, "a", 20)}
    assert book.known(1, 20) == version(1, "b", 20)
    assert book.known(1, 21) is None
    assert book.highest_column(1) == 3
    assert book.highest_column(9) == 0


def test_what_is_there_stays_as_it_is() -> None:
    book = TableBook()
    book.add(version(1, "a", 10))
    book.add(TableSchema(1, "s", "other", 10, (COLUMN,)))
    assert book.versions(1) == (version(1, "a", 10),)
    ended = book.end(version(1, "a", 10), 20)
    assert book.end(version(1, "a", 10), 25) == ended


def test_a_table_without_columns_is_untold_until_another_explains_it() -> None:
    book = TableBook()
    book.adopt([TableSchema(1, "s", "a", 10, ()), version(2, "b", 11)])
    assert book.is_untold(1)
    assert 2 in book
    assert book.untold(10) == {("s", "a")}
    book.add(version(3, "a", 12))
    assert book.untold(11) == {("s", "a")}
    assert book.untold(12) == set()
