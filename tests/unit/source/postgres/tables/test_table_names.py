"""Whose a name is, and when rows are in doubt: the pure parts of following PostgreSQL tables."""

import itertools
import random

import msgspec
import pytest

from penstock.model.ddl import DdlType
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.postgres.rows.cells import CellForm
from penstock.source.postgres.rows.type_map import shown_text
from penstock.source.postgres.tables.catalog import CatalogColumn, CatalogTable, Storage
from penstock.source.postgres.tables.composed_ddl import compose_renames
from penstock.source.postgres.tables.row_doubts import creation_doubt, shape_doubt, storage_doubt, text_doubt
from penstock.source.postgres.tables.table_names import clear_names

INT, TEXT = ColumnType(TypeKind.INT), ColumnType(TypeKind.LONGTEXT)


@pytest.mark.parametrize("seed", range(200))
def test_names_that_are_told_are_free_when_they_are_given(seed):
    """Any tables get any names, or are dropped; what is told of one of them leaves each name to one table at most."""
    rng = random.Random(seed)
    names = [("s", letter) for letter in "abcdef"]
    held = dict(zip(rng.sample(range(20), 4), rng.sample(names, 4), strict=True))
    truth = dict(zip(rng.sample(sorted(held), rng.randrange(1, 5)), rng.sample(names, 6), strict=False))
    oid = rng.choice(sorted(truth))
    by_name = {name: o for o, name in held.items()}
    # The catalog may be ahead: what the log shows of the table is another name than the catalog's, now and then.
    claim = truth[oid] if rng.random() < 0.7 else rng.choice(names)
    moves = clear_names({oid: claim}, lambda name: by_name.get(name) if by_name.get(name) != oid else None, truth.get)
    after = {o: n for o, n in held.items() if o not in moves.gone} | moves.moved | {oid: claim}
    assert len(set(after.values())) == len(after), (held, truth, moves)
    assert all(o not in truth for o in moves.gone)
    assert all(n == truth[o] or n[1].endswith(f"~{o}") for o, n in moves.moved.items())


def table(oid, name, version):
    return TableSchema(oid, "s", name, version, (Column(1, "id", INT, False, True),))


def test_several_renames_are_one_event_whose_text_applies_step_by_step():
    pairs = [(table(1, "a", 5), table(1, "b", 9)), (table(2, "b", 5), table(2, "c", 9)), (table(3, "c", 5), table(3, "a", 9))]
    event = compose_renames(pairs)
    assert (event.type, event.commit_ts, [t.table for t in event.tables]) == (DdlType.RENAME_TABLES, 9, ["b", "c", "a"])
    names = {"`s`.`a`": 1, "`s`.`b`": 2, "`s`.`c`": 3}
    for step in event.query.removeprefix("RENAME TABLE ").split(", "):
        old, new = step.split(" TO ")
        assert new not in names
        names[new] = names.pop(old)
    assert names == {"`s`.`b`": 1, "`s`.`c`": 2, "`s`.`a`": 3}
    assert {compose_renames(list(order)).query for order in itertools.permutations(pairs)} == {event.query}
    assert compose_renames(pairs[:1]).type is DdlType.RENAME_TABLE


def catalog(*columns, storage=((7, 7, True),), identity="d", **more):
    shown = [
        CatalogColumn(Column(i, n, kind, i != 1, i == 1), CellForm.TEXT, 25, "pg_catalog", "x", False, initial)
        for i, n, kind, initial in columns
    ]
    return CatalogTable(7, "s", "t", identity, tuple(shown), storage=tuple(Storage(*s) for s in storage), **more)


ID = (1, "id", INT, None)


def test_rows_in_other_files_or_partitions_are_doubted():
    def known(oid):
        return oid == 12

    one = catalog(ID)
    assert storage_doubt(one, catalog(ID, storage=((7, 7, False),)), known) == ""
    assert "rewritten" in storage_doubt(one, catalog(ID, storage=((7, 8, False),)), known)
    parts = catalog(ID, storage=((10, 10, True), (11, 11, True)), partitioned=True)
    assert "dropped" in storage_doubt(parts, catalog(ID, storage=((10, 10, True),)), known)
    assert storage_doubt(parts, catalog(ID, storage=((10, 10, True), (11, 11, True), (13, 13, True))), known) == ""
    for leaf in ((13, 13, False), (12, 12, True)):
        assert "attached" in storage_doubt(parts, catalog(ID, storage=((10, 10, True), (11, 11, True), leaf)), known)
    bare = (2, "v", TEXT, None)
    assert "named otherwise" in storage_doubt(catalog(bare), catalog(bare, identity="f"), known)
    assert storage_doubt(one, catalog(ID, identity="f"), known) == ""
    assert text_doubt(one, {25}) != text_doubt(one, {26}) == ""
    assert creation_doubt(one) == ""
    assert creation_doubt(catalog(ID, storage=((7, 9, False),)))
    assert creation_doubt(None)


def shape(*columns):
    return TableSchema(7, "s", "t", 5, tuple(Column(i, n, kind, i != 1, i == 1) for i, n, kind, _ in columns))


@pytest.mark.parametrize(
    ("before", "after", "rewritten", "reason"),
    [
        ([ID], [ID, (2, "a", INT, "5")], "", ""),
        ([ID], [ID, (2, "a", INT, None)], "", ""),
        ([ID], [ID, (2, "a", INT, "5")], "rewritten", ""),
        ([ID], [ID, (2, "a", INT, None)], "rewritten", "computed"),
        ([ID], [ID, (2, "a", INT, msgspec.UNSET)], "", "cannot be told"),
        ([ID], [ID, (3, "a", INT, "5")], "", "came and went"),
        ([ID, (2, "a", INT, None)], [ID, (3, "a", INT, None)], "", "added again"),
        ([ID, (2, "a", INT, None)], [ID, (3, "b", INT, None)], "", "may have had the name"),
        ([ID, (2, "a", INT, None)], [ID, (3, "b", TEXT, None)], "", ""),
        ([ID, (2, "a", INT, None), (3, "b", INT, None)], [ID, (2, "b", INT, None), (3, "a", INT, None)], "", ""),
        ([ID, (2, "a", INT, None)], [ID, (2, "a", TEXT, None)], "", "another type"),
        ([ID, (2, "a", INT, None)], [ID], "", ""),
        ([(2, "a", INT, None)], [(2, "a", INT, None), ID], "", "another key"),
    ],
)
def test_what_a_new_shape_leaves_open_about_old_rows(before, after, rewritten, reason):
    found = shape_doubt(shape(*before), shape(*after), catalog(*after), [shape(*before)], rewritten)
    assert (reason in found) if reason else found == ""
    assert shape_doubt(shape(*before), shape(*after), None, [shape(*before)], rewritten)


def test_values_that_the_catalog_keeps_as_defaults_are_written():
    cases = [
        ("t", CellForm.BOOLEAN),
        ("2020-01-01 00:00:00+00", CellForm.UTC),
        ("\\x4142", CellForm.BYTES),
        ("\\x00ff", CellForm.BYTES),
        (None, 0),
    ]
    assert [shown_text(text, form) for text, form in cases] == ["1", "2020-01-01 00:00:00", "AB", msgspec.UNSET, None]
