"""How a table version is made: from the catalog, from a Relation message of the log, or from both where they agree.

A Relation message names columns, the catalog numbers them: where both show the same columns, the numbers tell renames, swapped names and
columns that were dropped and added again for sure. Where the catalog has moved on they are guessed, and whoever asks doubts the rows.
What rows from before a column have in it is fixed in the version that adds it. Pure. Runs in the log service and the server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
import pyarrow as pa

from penstock.ddl.kept_values import is_made_anew
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.postgres.rows.cells import CellForm
from penstock.source.postgres.tables.catalog import OID_BITS, CatalogTable
from penstock.source.postgres.wire.pgoutput import Relation

BASE_VERSION_BITS = 31
_NOT_NULL = {
    TypeKind.DATE: "0001-01-01",
    TypeKind.DATETIME: "0001-01-01 00:00:00",
    TypeKind.TIMESTAMP: "1970-01-01 00:00:00",
    TypeKind.TIME: "00:00:00",
    TypeKind.JSON: "null",
    TypeKind.DECIMAL: "0",
}
Types = Sequence[tuple[ColumnType, CellForm]]


def base_version(table: CatalogTable) -> TableSchema:
    """Return a table's first version, numbered by its content."""
    columns = tuple(c.column for c in table.columns)
    bare = TableSchema(table.oid, table.schema, table.table, 0, columns, unique_keys=table.unique_keys)
    digest = hashlib.blake2b(bare.to_json(), digest_size=8).digest()
    return msgspec.structs.replace(bare, version=(int.from_bytes(digest, "big") >> (64 - BASE_VERSION_BITS)) + 1)


def shape_of(table: TableSchema) -> tuple[str, str, list[tuple[int, str, object, bool]]]:
    """Return what makes two versions of a table two."""
    return table.schema, table.table, columns_of(table)


def columns_of(table: TableSchema) -> list[tuple[int, str, object, bool]]:
    """Return what of its columns makes two versions of a table two."""
    return [(c.id, c.name, c.type, c.primary_key) for c in table.columns]


def is_alike(version: TableSchema, after: TableSchema, relation: Relation) -> bool:
    """Return whether a relation of either of two versions would look the same: it names columns, and does not number them."""
    tells_key = relation.identity != "f"
    told = [[(t.schema, t.table), *((c.name, c.type, tells_key and c.primary_key) for c in t.columns)] for t in (version, after)]
    return told[0] == told[1]


def is_version_of_catalog(table: TableSchema, relation: Relation, now: CatalogTable) -> bool:
    """Return whether a version that a relation agrees with has the columns that the catalog numbers, and a key only where there is one."""
    # FULL does not tell the key. Rows of a table that lost it may have copies, which its old key would take for one row.
    lost_key = relation.identity == "f" and bool(table.key_columns) and not now.has_key
    return [c.column.id for c in now.columns] == [c.id for c in table.columns] and not lost_key


def made_anew(before: TableSchema, after: TableSchema, told: Sequence[TableSchema]) -> TableSchema:
    """Return a version, as the first of another generation where rows that exist could not be told from it on.

    So it is where a column comes back, which a publication can do: the event store has its values still, and whoever reads files has not.
    """
    gone = {c.id for v in told for c in v.columns} - {c.id for c in before.columns}
    if not is_made_anew(before, after.columns) and gone.isdisjoint(c.id for c in after.columns):
        return after
    columns = tuple(msgspec.structs.replace(c, initial_default=msgspec.UNSET) for c in after.columns)
    return msgspec.structs.replace(after, table_id=before.table_id + (1 << OID_BITS), columns=columns)


def agrees(table: CatalogTable, relation: Relation, types: Types) -> bool:
    """Return whether the catalog shows the columns that a Relation message does."""
    return [(c.column.name, c.column.type) for c in table.columns] == [
        (r.name, kind) for r, (kind, _) in zip(relation.columns, types, strict=True)
    ]


def is_version_of(table: TableSchema, relation: Relation, types: Types) -> bool:
    """Return whether rows of a relation are rows of a version: names, order, types, and, where the message tells, the key."""
    if (table.schema, table.table) != (relation.schema, relation.table):
        return False
    return has_columns(table, relation, types)


def has_columns(table: TableSchema, relation: Relation, types: Types) -> bool:
    """Return whether rows of a relation have the columns of a version, whatever the table is called."""
    if [(c.name, c.type) for c in table.columns] != [(r.name, t) for r, (t, _) in zip(relation.columns, types, strict=True)]:
        return False
    # FULL marks every column, NOTHING none: they do not tell the key.
    told = [c.in_identity for c in relation.columns]
    return relation.identity in "fn" or not any(told) or told == [c.primary_key for c in table.columns]


def version_of_catalog(before: TableSchema, now: CatalogTable, version: int) -> TableSchema:
    """Make the version that the catalog shows."""
    return _numbered(before, now, version, now.schema, now.table, [c.column.primary_key for c in now.columns])


def version_of_relation(before: TableSchema, relation: Relation, now: CatalogTable, version: int) -> TableSchema:
    """Make the version of a relation with which the catalog agrees."""
    told = relation.identity in "di" and any(c.in_identity for c in relation.columns)
    keys = [r.in_identity if told else c.column.primary_key for r, c in zip(relation.columns, now.columns, strict=True)]
    return _numbered(before, now, version, relation.schema, relation.table, keys)


def begun_version(now: CatalogTable) -> TableSchema:
    """Make the version with which a table begins that only the catalog shows."""
    before = TableSchema(now.oid, now.schema, now.table, 0, ())
    return _all_columns_first(version_of_catalog(before, now, 0))


def first_version(relation: Relation, types: Types, now: CatalogTable, version: int) -> TableSchema:
    """Make the version with which a table begins in the log."""
    before = TableSchema(now.oid, relation.schema, relation.table, version, ())
    if agrees(now, relation, types):
        return _all_columns_first(version_of_relation(before, relation, now, version))
    return guessed_version(before, relation, types, now, version, ())


def _all_columns_first(table: TableSchema) -> TableSchema:
    """Return a version without what rows from before its columns have: there are none."""
    return msgspec.structs.replace(table, columns=tuple(msgspec.structs.replace(c, initial_default=msgspec.UNSET) for c in table.columns))


def _numbered(before: TableSchema, now: CatalogTable, version: int, schema: str, table: str, keys: Sequence[bool]) -> TableSchema:
    old = {c.id: c for c in before.columns}
    columns = []
    for shown, is_key in zip(now.columns, keys, strict=True):
        column = shown.column
        was = old.get(column.id)
        nullable = column.nullable and not is_key
        initial = was.initial_default if was is not None else _initial(column.type, nullable, shown.initial)
        columns.append(msgspec.structs.replace(column, primary_key=is_key, nullable=nullable, initial_default=initial))
    return TableSchema(before.table_id, schema, table, version, tuple(columns), unique_keys=now.unique_keys)


def _initial(kind: ColumnType, nullable: bool, told: str | msgspec.UnsetType | None) -> str | None:
    """Return what rows from before a column have in it; where nobody can tell it of one that is never NULL, something that is not.

    Their table is in doubt then, and they get what they have when it was read again. A consumer would refuse a NULL until then.
    """
    if isinstance(told, str):
        return told
    if nullable:
        return None
    if kind.kind in _NOT_NULL:
        return _NOT_NULL[kind.kind]
    return "" if pa.types.is_string(kind.arrow()) or pa.types.is_binary(kind.arrow()) else "0"


def guessed_version(
    before: TableSchema, relation: Relation, types: Types, now: CatalogTable | None, version: int, versions: Sequence[TableSchema]
) -> TableSchema:
    """Make the version of a relation with which the catalog does not agree: it counts for columns of the same name only."""
    known = {c.name: c for c in before.columns}
    shown = {c.column.name: c.column for c in now.columns} if now is not None else {}
    if now is not None and not before.columns and [c.column.type for c in now.columns] == [kind for kind, _ in types]:
        # A table that begins: where its columns have the same types in the same order since, they were renamed at most.
        shown = {r.name: c.column for r, c in zip(relation.columns, now.columns, strict=True)}
    names = {c.name for c in relation.columns}
    gone = {c.id: c for c in before.columns if c.name not in names}
    used = {known[c.name].id for c in relation.columns if c.name in known}
    told = {c.id for v in versions for c in v.columns}
    next_id = max([*told, *(c.id for c in shown.values())], default=0) + 1
    renamed = _renames(before, relation, types) if not shown.keys() >= names else {}
    columns = []
    for described, (kind, _) in zip(relation.columns, types, strict=True):
        old, present = known.get(described.name), shown.get(described.name)
        if old is not None:
            column_id = old.id
        elif present is not None and present.id not in used and (present.id in gone or present.id not in told):
            column_id = present.id
        elif described.name in renamed and renamed[described.name] not in used:
            column_id = renamed[described.name]
        else:
            column_id, next_id = next_id, next_id + 1
        used.add(column_id)
        facts = present or old or Column(column_id, described.name, kind)
        tells_key = relation.identity in "di" and any(c.in_identity for c in relation.columns)
        is_key = described.in_identity if tells_key else facts.primary_key
        was = next((c for c in before.columns if c.id == column_id), None)
        nullable = facts.nullable and not is_key
        initial = was.initial_default if was is not None else _initial(kind, nullable, None)
        columns.append(Column(column_id, described.name, kind, nullable, is_key, facts.default, initial_default=initial))
    # The log does not tell unique keys; those that the catalog shows count where their columns are the same.
    same = {c.id for c in columns if c.name in shown and shown[c.name].id == c.id}
    unique = tuple(k for k in (now.unique_keys if now is not None else ()) if set(k) <= same)
    return TableSchema(before.table_id, relation.schema, relation.table, version, tuple(columns), unique_keys=unique)


def _renames(before: TableSchema, relation: Relation, types: Types) -> dict[str, int]:
    """Guess renames where the catalog has moved on: a column at the same place with the same type, and as many columns as before."""
    if len(before.columns) != len(relation.columns):
        return {}
    names = {c.name for c in relation.columns}
    pairs = zip(before.columns, relation.columns, types, strict=True)
    return {new.name: old.id for old, new, (kind, _) in pairs if old.name not in names and old.type == kind}
