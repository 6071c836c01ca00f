"""The life of a table as its files tell it: under which names, from which version on, with which columns.

A table's rows may lie under several names, because a rename begins a new directory and leaves the old files where they are, and a name may
have belonged to several tables. ``lineage`` says which directories hold the changes that make up the table that a name means at a ts.
Invariants: segments are in the order of time and do not overlap; columns have one id each over all segments, that of the newest name.
Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock.ddl.statement import renamed_tables
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.rows.projection import shown
from penstock.model.table import TableSchema
from penstock.readback.reader import CLEARING, StorageReader, TableVersion

_FOREIGN_ID = 1_000_000
"""Columns that another version does not know are numbered from here, apart from those that it knows."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The time of a table under one name: its versions in ascending order, and the last ts that belongs to it."""

    schema: str
    table: str
    versions: tuple[TableSchema, ...]
    to_ts: int

    def version(self, number: int) -> TableSchema | None:
        """Return the version of a directory, or None where the directory belongs to another table of this name."""
        return next((v for v in self.versions if v.version == number), None)


@dataclass(frozen=True, slots=True)
class Lineage:
    """All segments of one table, the oldest first."""

    segments: tuple[Segment, ...]

    @property
    def newest(self) -> TableSchema:
        """Return the version whose columns are shown; without columns where the table is dropped."""
        last = self.segments[-1].versions[-1]
        return shown(v for segment in self.segments for v in segment.versions if v.columns) if last.columns else last

    @property
    def row_key(self) -> list[str]:
        """Return the fields that name a row in all versions; empty where rows must be counted.

        A unique key stands in for a primary key only where it always did: changes from before it may have changed it unseen.
        """
        versions = [v for segment in self.segments for v in segment.versions if v.columns]
        handles = {tuple(c.field_name for c in v.handle_columns) for v in versions}
        return list(handles.pop()) if len(handles) == 1 else [c.field_name for c in self.newest.key_columns]


def lineage(reader: StorageReader, schema: str, table: str, limit: int) -> Lineage:
    """Return the life of the table that a name means at a ts."""
    versions = [v for v in reader.versions(schema, table) if v.table.version <= limit]
    if not versions:
        raise PenstockError("TABLE_UNKNOWN", f"{schema}.{table} has no schema file at or below ts {limit}")
    start, origin = _begin(versions, schema, table)
    own = Segment(schema, table, tuple(v.table for v in versions[start:]), limit)
    if origin is None or origin not in reader.tables():
        return Lineage((own,))
    renamed_at = own.versions[0].version
    if not any(v.table.version < renamed_at for v in reader.versions(*origin)):
        return Lineage((own,))
    before = lineage(reader, *origin, renamed_at - 1)
    # A rename of a table keeps its columns' names; in all segments they get the ids that they have under the new one.
    ids = ids_by_name(before.newest, own.versions[0])
    former = [Segment(s.schema, s.table, tuple(renumbered(v, ids) for v in s.versions), s.to_ts) for s in before.segments]
    return Lineage((*former, own))


def _begin(versions: Sequence[TableVersion], schema: str, table: str) -> tuple[int, tuple[str, str] | None]:
    """Return where the present table of this name begins, and the name that it had before."""
    for at in range(len(versions) - 1, -1, -1):
        if versions[at].type in CLEARING:
            return at, None
        if versions[at].type == DdlType.RENAME_TABLE:
            origin = origin_of(versions[at].query, schema, table)
            if origin is not None:
                return at, origin
    return 0, None


def origin_of(query: str, schema: str, table: str) -> tuple[str, str] | None:
    """Return the name that a table had before a rename; one statement may rename in several steps, as a swap does."""
    origins: dict[tuple[str, str], tuple[str, str]] = {}
    for old, new in renamed_tables(query, schema):
        origins[new] = origins.pop(old, old)
    return origins.get((schema, table))


def ids_by_name(table: TableSchema, other: TableSchema) -> dict[int, int]:
    """Return for each column of a version the id that another version gives to its name; other names get ids apart from all."""
    ids = {c.name.lower(): c.id for c in other.columns}
    return {c.id: ids.get(c.name.lower(), c.id + _FOREIGN_ID) for c in table.columns}


def renumbered(table: TableSchema, ids: Mapping[int, int]) -> TableSchema:
    """Return a version with other column ids."""
    columns = tuple(msgspec.structs.replace(c, id=ids.get(c.id, c.id + _FOREIGN_ID)) for c in table.columns)
    keys = tuple(tuple(ids.get(i, i + _FOREIGN_ID) for i in key) for key in table.unique_keys)
    return msgspec.structs.replace(table, columns=columns, unique_keys=keys)
