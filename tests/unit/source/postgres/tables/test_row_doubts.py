"""When rows of a table may be others than the log told: one change each, and none."""

import msgspec
import pytest

from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.postgres.rows.cells import CellForm
from penstock.source.postgres.tables.catalog import CatalogColumn, CatalogTable, Storage
from penstock.source.postgres.tables.row_doubts import PARTITION_GONE, creation_doubt, shape_doubt, storage_doubt, text_doubt

ID = Column(1, "id", ColumnType(TypeKind.INT), False, True)
NOTE = Column(2, "note", ColumnType(TypeKind.LONGTEXT))


def shown(column: Column, type_oid: int = 23, initial: str | msgspec.UnsetType | None = None) -> CatalogColumn:
    return CatalogColumn(column, CellForm.TEXT, type_oid, "pg_catalog", "t", True, initial)


BEFORE = CatalogTable(7, "s", "t", "d", (shown(ID), shown(NOTE, 25)), storage=(Storage(7, 70, True), Storage(8, 80, True)))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"row_filter": "id > 5"}, "another part"),
        ({"given": "x"}, ""),
        ({"columns": (shown(ID, 20), shown(NOTE, 25))}, "another type"),
        ({"storage": (Storage(7, 71, True), Storage(8, 80, True))}, "rewritten"),
        ({"storage": (Storage(7, 70, True),)}, PARTITION_GONE),
        ({"storage": (*BEFORE.storage, Storage(9, 90, False))}, "attached"),
        ({"storage": (*BEFORE.storage, Storage(9, 90, True))}, ""),
        ({"storage": (*BEFORE.storage, Storage(10, 90, True))}, "attached"),
    ],
)
def test_two_looks_at_the_catalog(changed: dict[str, object], reason: str) -> None:
    found = storage_doubt(BEFORE, msgspec.structs.replace(BEFORE, **changed), {10}.__contains__)
    assert reason in found
    assert bool(found) is bool(reason)


def test_a_publication_that_comes_and_goes() -> None:
    silent = msgspec.structs.replace(BEFORE, published=False)
    assert "added to the publication" in storage_doubt(silent, BEFORE, lambda _: False)
    one, two = (msgspec.structs.replace(BEFORE, given=given) for given in ("a", "b"))
    assert "the publication was changed" in storage_doubt(one, two, lambda _: False)


def test_types_that_changed() -> None:
    assert text_doubt(BEFORE, [25])
    assert not text_doubt(BEFORE, [26])
    assert not text_doubt(BEFORE, [])


def version(*columns: Column, number: int = 1) -> TableSchema:
    return TableSchema(7, "s", "t", number, columns)


@pytest.mark.parametrize(
    ("after", "initial", "rewritten", "reason"),
    [
        ((ID, NOTE), None, "", ""),
        ((ID, NOTE, Column(3, "new", ColumnType(TypeKind.INT))), "5", "", ""),
        ((ID, NOTE, Column(3, "new", ColumnType(TypeKind.INT))), msgspec.UNSET, "", "cannot be told"),
        ((ID, NOTE, Column(3, "new", ColumnType(TypeKind.INT))), None, "rewritten", "computed"),
        ((ID, NOTE, Column(4, "new", ColumnType(TypeKind.INT))), "5", "", "came and went"),
        ((ID, Column(3, "note", ColumnType(TypeKind.INT))), "5", "", "dropped and added again"),
        ((ID, Column(3, "other", NOTE.type)), "5", "", "the name of one that went"),
        ((ID, Column(2, "note", ColumnType(TypeKind.INT))), None, "", "another type"),
        ((Column(1, "id", ID.type, False), NOTE), None, "", "another key"),
    ],
)
def test_two_versions(after: tuple[Column, ...], initial: str | None, rewritten: str, reason: str) -> None:
    now = msgspec.structs.replace(BEFORE, columns=tuple(shown(c, initial=initial) for c in after))
    before = version(ID, NOTE)
    found = shape_doubt(before, version(*after, number=2), now, [before], rewritten)
    assert reason in found
    assert bool(found) is bool(reason)
    assert shape_doubt(before, version(*after, number=2), None, [before], ""), "the catalog is ahead of the log"


def test_a_table_that_the_log_shows_for_the_first_time() -> None:
    assert creation_doubt(BEFORE) == ""
    assert creation_doubt(None)
    for changed in ({"listed": True}, {"pristine": False}, {"storage": (Storage(7, 70, False),)}):
        assert "rows before" in creation_doubt(msgspec.structs.replace(BEFORE, **changed))
