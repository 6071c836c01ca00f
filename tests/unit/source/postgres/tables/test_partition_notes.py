"""Notes of partitions: what the journal brings back is what was seen, and a partition that went is missed."""

from penstock.model.table import TableSchema
from penstock.source.postgres.tables.catalog import CatalogTable, Storage
from penstock.source.postgres.tables.partition_notes import PartitionNotes, is_note


def table(*parts: int, partitioned: bool = True) -> CatalogTable:
    return CatalogTable(7, "s", "t", "d", (), storage=tuple(Storage(p, p) for p in parts), partitioned=partitioned)


def test_what_the_journal_kept_tells_which_partition_went():
    notes, kept = PartitionNotes(), []
    for ts, seen in enumerate((table(1, 2), table(1, 2), table(2, 3), table(2, 3, 4)), start=10):
        notes.see([seen])
        kept += notes.take(ts)
    assert [(n.version, n.unique_keys) for n in kept] == [(10, ((1, 2), ())), (12, ((3,), (1,))), (13, ((4,), ()))]
    assert all(is_note(n) and n.table_id == -7 for n in kept)
    assert notes.take(20) == ()
    again = PartitionNotes()
    again.adopt([*kept, TableSchema(7, "s", "t", 1, ())])
    assert not again.loss(table(2, 3, 4, 5), is_old=True)
    assert "dropped or detached while" in again.loss(table(2, 4), is_old=True)


def test_of_a_table_that_was_never_noted_nobody_knows_what_it_lost_unless_it_is_new():
    notes = PartitionNotes()
    notes.see([table(7, partitioned=False)])
    assert notes.take(1) == ()
    assert not notes.loss(table(7, partitioned=False), is_old=True)
    assert not notes.loss(table(), is_old=False)
    assert "nobody noted" in notes.loss(table(), is_old=True)


def test_a_table_without_partitions_is_noted_once():
    notes, again = PartitionNotes(), PartitionNotes()
    notes.see([table()])
    kept = notes.take(1)
    notes.see([table()])
    assert (len(kept), notes.take(2)) == (1, ())
    again.adopt(kept)
    assert not again.loss(table(3), is_old=True)
