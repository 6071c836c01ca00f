"""Tables and columns, and a table's schema versions keyed by ts.

A column is known by its id: it keeps the id through a rename, and a change batch names its columns by id, so a batch of an
older version is read under a newer one by projection. A table keeps its id through a rename; truncating gives a new one. Runs anywhere.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import msgspec
import pyarrow as pa

from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.types import ColumnType

COMMIT_TS = "_ts"
OP = "_op"
KEY = "_key"
META_FIELDS = (pa.field(COMMIT_TS, pa.uint64(), False), pa.field(OP, pa.uint8(), False), pa.field(KEY, pa.binary(), False))


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column of a table version.

    ``default`` is what rows to come take: the text that MySQL shows, or None. ``initial_default`` is what rows from before the column show
    in it, fixed when the column was added, however ``default`` changes afterwards: a text of the same kind, or None where no constant says
    it (the default was computed, or there was none), which shows NULL. Unset, the source does not tell, and ``default`` stands in.
    """

    id: int
    name: str
    type: ColumnType
    nullable: bool = True
    primary_key: bool = False
    default: str | None = None
    generated: str = ""
    """Empty, ``VIRTUAL`` or ``STORED``."""
    initial_default: str | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def field_name(self) -> str:
        """Return the column's name inside change batches."""
        return f"c{self.id}"


class TableSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version of a table; ``version`` is the commit ts of the DDL that made it."""

    table_id: int
    schema: str
    table: str
    version: int
    columns: tuple[Column, ...]
    partition_id: int = 0
    """The physical id of a partition; 0 for an ordinary table."""
    unique_keys: tuple[tuple[int, ...], ...] = ()
    """The unique keys besides the primary one, as column ids, in the order in which the upstream declares them."""

    @property
    def full_name(self) -> str:
        """Return ``schema.table``."""
        return f"{self.schema}.{self.table}"

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """Return the primary key's columns, in table order; empty for a table without one."""
        return tuple(c for c in self.columns if c.primary_key)

    @property
    def handle_columns(self) -> tuple[Column, ...]:
        """Return what names a row: the primary key, else the first unique key whose columns rows carry and never lack; else empty."""
        if self.key_columns:
            return self.key_columns
        fit = {c.id for c in self.columns if not c.nullable and c.generated != "VIRTUAL"}
        for key in self.unique_keys:
            if key and fit.issuperset(key):
                return tuple(c for c in self.columns if c.id in key)
        return ()

    def column(self, name: str) -> Column:
        """Return a column by its name; MySQL compares column names without case."""
        for column in self.columns:
            if column.name.lower() == name.lower():
                return column
        raise KeyError(name)

    def row_schema(self) -> pa.Schema:
        """Return the Arrow schema of the table's own columns."""
        return pa.schema([pa.field(c.field_name, c.type.arrow(), nullable=True) for c in self.columns])

    def batch_schema(self) -> pa.Schema:
        """Return the Arrow schema of a change batch: commit ts, op, key, then the table's columns."""
        return pa.schema([*META_FIELDS, *self.row_schema()])

    def to_json(self) -> bytes:
        """Return the version as JSON, for headers and the schema log."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> TableSchema:
        """Read what ``to_json`` wrote."""
        return decoded(data, cls)


class SchemaHistory:
    """The versions of one table, keyed by ts. Not thread safe: one owner adds, readers get immutable versions."""

    def __init__(self, table_id: int, versions: Iterable[TableSchema] = ()) -> None:
        self.table_id = table_id
        self._versions: list[TableSchema] = []
        self._starts: list[int] = []
        for version in versions:
            self.add(version)

    def add(self, version: TableSchema) -> bool:
        """Add a version; return False if it is already there. Different content under one ts is an error."""
        if version.table_id != self.table_id:
            raise PenstockError("INTERNAL", f"version of table {version.table_id} added to history of {self.table_id}")
        at = bisect.bisect_left(self._starts, version.version)
        if at < len(self._starts) and self._starts[at] == version.version:
            if self._versions[at] != version:
                raise PenstockError("INTERNAL", f"two schemas of {version.full_name} at ts {version.version}")
            return False
        self._versions.insert(at, version)
        self._starts.insert(at, version.version)
        return True

    def at(self, ts: int) -> TableSchema:
        """Return the version that a row committed at this ts has."""
        at = bisect.bisect_right(self._starts, ts)
        if at == 0:
            raise PenstockError("SCHEMA_UNKNOWN", f"table {self.table_id} has no schema version at ts {ts}")
        return self._versions[at - 1]

    def at_or_first(self, ts: int) -> TableSchema:
        """Return the version at a ts, or the first where the log has not told it yet: such a table is read as it is now."""
        return self.at(max(ts, self._starts[0] if self._starts else ts))

    def get(self, version: int) -> TableSchema | None:
        """Return exactly this version, or None."""
        at = bisect.bisect_left(self._starts, version)
        return self._versions[at] if at < len(self._starts) and self._starts[at] == version else None

    def versions(self) -> tuple[TableSchema, ...]:
        """Return all versions, oldest first."""
        return tuple(self._versions)
