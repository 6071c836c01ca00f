import msgspec
import pytest

from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.postgres.rows.cells import CellForm
from penstock.source.postgres.tables.catalog import OID_BITS, CatalogColumn, CatalogTable
from penstock.source.postgres.tables.schema_book import SchemaBook
from penstock.source.postgres.tables.versions import base_version
from penstock.source.postgres.wire.pgoutput import Relation, RelationColumn

INT, TEXT = ColumnType(TypeKind.INT), ColumnType(TypeKind.LONGTEXT)


class Catalog:
    """A catalog that tests change."""

    def __init__(self, *names, identity="d"):
        self.set(*names)
        self.identity = identity

    def set(self, *names, ids=None):
        numbers = ids or range(1, len(names) + 1)
        self.columns = [
            CatalogColumn(Column(i, n, INT, i != 1, i == 1), CellForm.INTEGER, 23, "pg_catalog", "int4", False)
            for i, n in zip(numbers, names, strict=True)
        ]

    def read(self, _oids):
        return [CatalogTable(7, "s", "t", self.identity, tuple(self.columns))]

    def book(self):
        return SchemaBook(self.read, dict)

    def observe(self, book, ts):
        told = book.observe(self.relation(), ts, self.read(None)[0])
        return told.known, told.ddls[0] if told.ddls else None

    def relation(self, name="t"):
        shown = tuple(RelationColumn(c.column.name, 23, -1, c.column.primary_key) for c in self.columns)
        return Relation(7, "s", name, self.identity, shown)


def test_a_base_version_depends_on_the_content_alone_and_lies_below_every_commit():
    one, two = Catalog("id", "v"), Catalog("id", "w")
    assert base_version(one.read(None)[0]) == base_version(Catalog("id", "v").read(None)[0])
    assert base_version(one.read(None)[0]).version != base_version(two.read(None)[0]).version
    assert base_version(one.read(None)[0]).version < 1 << 32


def test_versions_follow_relations_and_are_found_again():
    catalog = Catalog("id", "v")
    book = catalog.book()
    ts = 1 << 50
    known, ddl = catalog.observe(book, ts)
    assert ddl is None
    catalog.set("id", "v", "w", ids=(1, 2, 4))
    newer, ddl = catalog.observe(book, ts + 100)
    assert ddl is not None
    assert [c.id for c in newer.table.columns] == [1, 2, 4]
    assert ts < newer.table.version == ddl.commit_ts < ts + 100
    assert catalog.observe(book, ts + 100)[1] == ddl, "read again, the DDL is told again"
    assert catalog.observe(book, ts + 200)[1] is None
    catalog.set("id", "w2", ids=(1, 4))
    third, ddl = catalog.observe(book, ts + 300)
    assert [(c.id, c.name) for c in third.table.columns] == [(1, "id"), (4, "w2")]
    assert ddl is not None
    other = catalog.book()
    other.adopt(book.versions(7))
    catalog.set("id", "v")
    assert catalog.observe(other, ts)[0] == known, "an older place of the log has the older version"
    assert [v.version for v in other.versions(7)] == [v.version for v in book.versions(7)]


def test_several_changes_in_one_transaction_have_a_slot_each():
    catalog = Catalog("id", "v")
    book = catalog.book()
    ts = 1 << 50
    catalog.observe(book, ts)
    seen = []
    for number in range(7):
        catalog.set("id", f"v{number}")
        seen.append(catalog.observe(book, ts + 8)[1].commit_ts)
    assert seen == list(range(ts + 1, ts + 8))
    catalog.set("id", "one_too_many")
    with pytest.raises(PenstockError, match="DDL_UNSUPPORTED"):
        catalog.observe(book, ts + 8)


def test_each_truncate_is_a_generation():
    catalog = Catalog("id")
    book = catalog.book()
    ts = 1 << 50
    catalog.observe(book, ts)
    first = book.truncate(7, ts + 100)
    assert book.truncate(7, ts + 100) == first
    second = book.truncate(7, ts + 200)
    assert [e.tables[0].table_id for e in (first, second)] == [7 + (1 << OID_BITS), 7 + (2 << OID_BITS)]
    assert [book.table_id(7, t) for t in (ts, ts + 100, ts + 150, ts + 200)] == [
        7,
        *(first.tables[0].table_id,) * 2,
        second.tables[0].table_id,
    ]


def test_a_table_that_is_made_is_told_once_and_only_then():
    catalog = Catalog("id")
    book = catalog.book()
    (shown,) = catalog.read(None)
    created = book.create(catalog.relation(), 1 << 50, shown)
    assert created is not None
    (event,) = created.ddls
    assert (event.type, event.tables[0].version) == (DdlType.CREATE_TABLE, event.commit_ts)
    assert book.create(catalog.relation(), 1 << 50, shown) == created, "read again, it is told again"
    assert book.create(catalog.relation(), (1 << 50) + 100, shown) is None
    known = catalog.book()
    known.announce([7])
    assert known.create(catalog.relation(), 1 << 50, shown) is None


def test_a_capture_that_begins_takes_the_catalog_as_it_is_then():
    catalog = Catalog("id", "v")
    book = catalog.book()
    book.versions(7)
    catalog.set("id", "w")
    book.begin_capture(catalog.read(None)[0], 1 << 50, again=False)
    assert [v.columns[-1].name for v in book.versions(7)] == ["v", "w"]
    catalog.set("id", "x")
    book.begin_capture(catalog.read(None)[0], 1 << 51, again=False)
    assert len(book.versions(7)) == 2, "a table that was captured before changes in the log"
    book.begin_capture(catalog.read(None)[0], 1 << 51, again=True)
    assert book.versions(7)[-1].version == 1 << 51


def test_a_rename_with_another_shape_is_told_in_two_steps_and_again_in_two():
    catalog = Catalog("id", "v")
    book = catalog.book()
    ts = 1 << 50
    catalog.observe(book, ts)
    catalog.set("id", "w", "v", ids=(1, 3, 4))
    told = book.observe(catalog.relation("u"), ts + 100, catalog.read(None)[0])
    assert [d.type for d in told.ddls] == [DdlType.RENAME_TABLE, DdlType.MULTI_SCHEMA_CHANGE]
    assert [c.name for c in told.ddls[0].tables[0].columns] == ["id", "v"], "a rename tells no columns"
    assert [(c.id, c.name) for c in told.known.table.columns] == [(1, "id"), (3, "w"), (4, "v")]
    assert book.observe(catalog.relation("u"), ts + 100, catalog.read(None)[0]).ddls == told.ddls


def test_a_table_that_only_the_catalog_shows_begins_at_a_mark_and_is_told_again_there():
    catalog = Catalog("id", "v")
    book = catalog.book()
    ts = 1 << 50
    assert not book.has_begun(7, ts, read=True)
    created = book.create_from_catalog(catalog.read(None)[0], ts)
    assert created is not None
    assert [d.type for d in created.ddls] == [DdlType.CREATE_TABLE]
    assert book.create_from_catalog(catalog.read(None)[0], ts + 100) is None
    assert book.has_begun(7, ts, read=True)
    assert book.has_begun(7, ts + 100, read=False)
    assert not book.has_begun(7, ts, read=False), "before its first row, whoever reads this again"
    assert not book.has_begun(7, ts - 100, read=True), "what emptied it before counts for nothing"
    assert book.told_between(ts - 100, ts) == (created.ddls, [7])
    assert book.told_between(ts, ts + 100) == ((), [])
    later = catalog.book()
    later.adopt(created.ddls[0].tables)
    assert later.told_between(ts - 100, ts)[1] == [7], "also by a process that has it from the journal"


def test_a_table_that_lost_its_key_is_told_with_its_first_row_although_its_identity_does_not_tell():
    catalog = Catalog("id", "v", identity="f")
    book = catalog.book()
    ts = 1 << 50
    known, _ = catalog.observe(book, ts)
    assert known.table.key_columns
    relation = catalog.relation()
    catalog.columns = [msgspec.structs.replace(c, column=msgspec.structs.replace(c.column, primary_key=False)) for c in catalog.columns]
    told = book.observe(relation, ts + 100, catalog.read(None)[0])
    assert told.known.is_bag
    assert told.doubt


def test_a_table_that_takes_the_name_of_one_that_is_gone_ends_it_also_where_it_is_told_again_by_another_process():
    catalog, ts = Catalog("id"), 1 << 50
    old = TableSchema(8, "s", "t", ts - 1000, (Column(1, "id", INT, False, True),))
    book = catalog.book()
    book.adopt([old])
    created = book.create_from_catalog(catalog.read(None)[0], ts)
    assert created is not None
    assert [d.dropped_table_ids for d in created.ddls] == [(8,)]
    notes = book.take_ends()
    assert [(n.table_id, n.columns) for n in notes] == [(-8, ())]
    assert book.take_ends() == ()
    later = catalog.book()
    later.adopt([old, *created.ddls[0].tables])
    later.adopt_ends(notes)
    assert later.told_between(ts - 100, ts) == (created.ddls, [7])
    assert later.observe(catalog.relation(), ts).ddls == created.ddls


def test_who_is_gone_has_no_name_any_more_for_a_process_that_comes_later():
    catalog, ts = Catalog("id"), 1 << 50
    old = TableSchema(8, "s", "t", ts - 1000, (Column(1, "id", INT, False, True),))
    book = catalog.book()
    book.adopt([old])
    ddls, _ = book.observe_catalog([], [old], ts, {})
    assert [(d.type, d.commit_ts, d.dropped_table_ids) for d in ddls] == [(DdlType.DROP_TABLE, ts, (8,))]
    later = catalog.book()
    later.adopt([old])
    later.adopt_ends(book.take_ends())
    created = later.create_from_catalog(catalog.read(None)[0], ts + 1000)
    assert created is not None
    assert [d.dropped_table_ids for d in created.ddls] == [()], "it was told as gone before"


def test_a_drop_of_which_nothing_but_the_note_was_kept_is_told_again():
    catalog, ts = Catalog("id"), 1 << 50
    old = TableSchema(8, "s", "t", ts - 1000, (Column(1, "id", INT, False, True),))
    book = catalog.book()
    book.adopt([old])
    ddls, _ = book.observe_catalog([], [old], ts, {})
    later = catalog.book()
    later.adopt([old])
    later.adopt_ends(book.take_ends())
    assert later.begun_between(ts - 100, ts + 100) == [ts]
    assert later.told_between(ts - 1, ts + 1) == (ddls, [])
    assert later.told_between(ts, ts + 100) == ((), [])


def test_rows_from_before_every_version_that_is_known_begin_one():
    catalog = Catalog("id", "v")
    book = catalog.book()
    later = msgspec.structs.replace(base_version(catalog.read(None)[0]), version=1 << 51)
    book.adopt([later])
    known, _ = catalog.observe(book, 1 << 50)
    assert known.table.version < 1 << 50
    assert [(c.id, c.name) for c in known.table.columns] == [(1, "id"), (2, "v")]


def test_a_table_whose_key_gets_another_type_begins_again_and_so_it_is_told_by_another_process():
    catalog, ts = Catalog("id", "v"), 1 << 50
    book = catalog.book()
    known, _ = catalog.observe(book, ts)
    first = catalog.columns[0]
    catalog.columns[0] = msgspec.structs.replace(first, column=msgspec.structs.replace(first.column, type=TEXT), form=CellForm.TEXT)
    (shown,) = catalog.read(None)
    ddls, doubts = book.observe_catalog([shown], [], ts + 1000, {})
    ((event,), (reason,)) = (ddls, doubts.values())
    assert (event.type, event.dropped_table_ids) == (DdlType.CREATE_TABLE, (known.table.table_id,))
    assert event.tables[0].table_id == known.table.table_id + (1 << OID_BITS)
    assert reason
    later = catalog.book()
    later.adopt([*book.versions(7), *event.tables])
    assert later.told_between(ts + 900, ts + 1000)[0] == ddls
    truncated = later.truncate(7, ts + 1000)
    assert truncated.dropped_table_ids == (event.tables[0].table_id,), "a TRUNCATE behind it is one of its own"


def test_a_lost_key_that_the_relation_does_not_tell_is_found_again_when_the_catalog_has_no_such_table_any_more():
    catalog, ts = Catalog("id", "v"), 1 << 50
    book = catalog.book()
    catalog.observe(book, ts)
    catalog.identity = "f"
    catalog.columns = [msgspec.structs.replace(c, column=msgspec.structs.replace(c.column, primary_key=False)) for c in catalog.columns]
    told = book.observe(catalog.relation(), ts + 100, catalog.read(None)[0])
    assert told.known.is_bag
    later = catalog.book()
    later.adopt(book.versions(7))
    again = later.observe(catalog.relation(), ts + 100)
    assert (again.known.table, again.ddls) == (told.known.table, told.ddls)
    assert later.observe(catalog.relation(), ts + 200).known.table == told.known.table


@pytest.mark.parametrize("identity", ["d", "f"])
def test_rows_of_a_column_that_was_added_again_are_of_the_same_version_when_they_are_read_again(identity):
    """The relation of both looks the same; the catalog that told them apart has moved on."""
    catalog = Catalog("id", "v", identity=identity)
    book = catalog.book()
    ts = 1 << 50
    catalog.observe(book, ts)
    catalog.set("id", "v", ids=(1, 3))
    known, ddl = catalog.observe(book, ts + 100)
    assert ([c.id for c in known.table.columns], ddl is not None) == ([1, 3], True)
    relation = catalog.relation()
    other = catalog.book()
    other.adopt(book.versions(7))
    catalog.set("id", "w", ids=(1, 3))
    again = other.observe(relation, ts + 100, catalog.read(None)[0])
    assert (again.known.table, again.ddls[0].commit_ts) == (known.table, ddl.commit_ts)
    assert other.observe(relation, ts + 200, catalog.read(None)[0]).known.table == known.table


def test_where_the_log_is_read_again_what_the_catalog_shows_by_now_waits_until_somebody_is_told():
    catalog = Catalog("id", "v")
    book = catalog.book()
    ts = 1 << 50
    known, _ = catalog.observe(book, ts)
    book.told_ts = ts + 100
    catalog.set("id", "v", ids=(1, 3))
    again, ddl = catalog.observe(book, ts + 50)
    assert (again.table.version, ddl) == (known.table.version, None), "a DDL that is told here would reach nobody"
    newer, ddl = catalog.observe(book, ts + 200)
    assert ddl is not None
    assert [c.id for c in newer.table.columns] == [1, 3]
