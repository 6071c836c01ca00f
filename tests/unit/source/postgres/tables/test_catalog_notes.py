"""Notes of tables: what the journal brings back is what was seen, and what went meanwhile is missed."""

import msgspec
import pytest

from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.postgres.rows.cells import CellForm
from penstock.source.postgres.tables.catalog import CatalogColumn, CatalogTable, Storage
from penstock.source.postgres.tables.catalog_notes import CatalogNotes, is_note


def table(*parts: int, partitioned: bool = True) -> CatalogTable:
    return CatalogTable(7, "s", "t", "d", (), storage=tuple(Storage(p, p) for p in parts), partitioned=partitioned)


def test_what_the_journal_kept_tells_which_partition_went():
    notes, kept = CatalogNotes(), []
    for ts, seen in enumerate((table(1, 2), table(1, 2), table(2, 3), table(2, 3, 4)), start=10):
        notes.see([seen])
        kept += notes.take(ts)
    assert [(n.version, n.unique_keys) for n in kept] == [(10, ((1, 2), ())), (12, ((3,), (1,))), (13, ((4,), ()))]
    assert all(is_note(n) and n.table_id == -7 for n in kept)
    assert notes.take(20) == ()
    again = CatalogNotes()
    again.adopt([*kept, TableSchema(7, "s", "t", 1, ())])
    assert not again.loss(table(2, 3, 4, 5), frozenset({1}))
    assert "dropped or detached while" in again.loss(table(2, 4), frozenset({1}))


def test_of_a_table_that_was_never_noted_nobody_knows_what_it_lost_unless_it_is_new():
    notes = CatalogNotes()
    notes.see([table(7, partitioned=False)])
    assert notes.take(1) == ()
    assert not notes.loss(table(7, partitioned=False), frozenset({1}))
    assert not notes.loss(table(), None)
    assert "nobody noted" in notes.loss(table(), frozenset({1}))
    shaped = msgspec.structs.replace(table(7, partitioned=False), columns=(ORDINARY,))
    assert not notes.loss(shaped, frozenset({1, 2}))
    assert "nobody noted" in notes.loss(shaped, frozenset({1}))


def test_a_table_without_partitions_is_noted_once():
    notes, again = CatalogNotes(), CatalogNotes()
    notes.see([table()])
    kept = notes.take(1)
    notes.see([table()])
    assert (len(kept), notes.take(2)) == (1, ())
    again.adopt(kept)
    assert not again.loss(table(3), frozenset({1}))


def test_notes_that_nobody_may_have_kept_are_given_again():
    notes, again = CatalogNotes(), CatalogNotes()
    notes.see([table(1, 2)])
    kept = list(notes.take(1))
    notes.see([table(2, 3)])
    lost = notes.take(2)
    notes.take_back()
    notes.see([table(2, 3, 4)])
    kept += notes.take(3)
    again.adopt(kept)
    assert lost
    assert not again.loss(table(2, 3, 4), frozenset({1}))
    assert "dropped or detached while" in again.loss(table(2, 4), frozenset({1}))
    assert "dropped or detached while" in again.loss(table(2, 3), frozenset({1}))


WAS = msgspec.structs.replace(table(7, partitioned=False), generated=(2,), given="9:100", deferrable=True)
ORDINARY = CatalogColumn(Column(2, "g", ColumnType(TypeKind.INT)), CellForm.INTEGER, 23, "pg_catalog", "int4", False)


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (WAS, ""),
        (msgspec.structs.replace(WAS, generated=()), ""),
        (msgspec.structs.replace(WAS, generated=(), columns=(ORDINARY,)), "generated"),
        (msgspec.structs.replace(WAS, given="9:101"), "publication"),
        (msgspec.structs.replace(WAS, deferrable=False), "deferrable"),
    ],
    ids=["same", "dropped", "ordinary", "published_otherwise", "not_deferrable"],
)
def test_what_a_table_lost_besides_partitions(now, reason):
    notes, again = CatalogNotes(), CatalogNotes()
    notes.see([WAS])
    again.adopt(notes.take(1))
    found = again.loss(now, frozenset({1}))
    assert reason in found
    assert bool(found) == bool(reason)
