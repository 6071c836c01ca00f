"""The book of table versions: all that were ever known, when each table ended, and which of them lived at a ts under which name.

A table's id is made of its name and the ts of its creation, so that the same log gives the same ids. A name belongs to a table from one
ts to another: until the table is renamed, ends, or another one takes the name. Not thread safe; ``table_versions`` holds the lock. Runs in
the log service.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from penstock.ddl.tokens import TableName
from penstock.model.table import SchemaHistory, TableSchema

ID_BITS = 48
FOREVER = 1 << 63
"""Above every ts."""


def table_id(schema: str, table: str, created_ts: int) -> int:
    """Return the id of a table: the same in every process, never the DDL span's 0."""
    text = f"{schema}\x00{table}\x00{created_ts}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> (64 - ID_BITS) or 1


class TableBook:
    """Versions and ends by table id."""

    def __init__(self) -> None:
        self._histories: dict[int, SchemaHistory] = {}
        self._ends: dict[int, TableSchema] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._histories

    def adopt(self, versions: Iterable[TableSchema]) -> None:
        """Take over versions from earlier runs; those without columns are ends."""
        for version in versions:
            if version.columns:
                self.add(version)
            else:
                self._ends.setdefault(version.table_id, version)

    def add(self, version: TableSchema) -> None:
        """Note a version; one that is there stays as it is."""
        history = self._histories.setdefault(version.table_id, SchemaHistory(version.table_id))
        if history.get(version.version) is None:
            history.add(version)

    def end(self, table: TableSchema, ts: int) -> TableSchema:
        """Note that a table is no more from a ts on; return that as a version without columns."""
        return self._ends.setdefault(table.table_id, TableSchema(table.table_id, table.schema, table.table, ts, ()))

    def is_untold(self, number: int) -> bool:
        """Return whether a table began of which no columns were told: it ended where it began, and another one is in its place."""
        return number in self._ends and number not in self._histories

    def untold(self, ts: int) -> set[TableName]:
        """Return the names of tables that began without columns up to a ts, and that nothing explains up to there."""
        versions = [v for number in self._histories for v in self.versions(number)]
        last: dict[TableName, TableSchema] = {}
        for version in sorted((v for v in (*versions, *self._ends.values()) if v.version <= ts), key=lambda v: v.version):
            last[version.schema, version.table] = version
        return {name for name, version in last.items() if self.is_untold(version.table_id)}

    def begun_since(self, ts: int) -> list[TableSchema]:
        """Return every version that began above a ts."""
        return [v for number in self._histories for v in self.versions(number) if v.version > ts]

    def known(self, number: int, ts: int) -> TableSchema | None:
        """Return the version that a table got at exactly this ts, None where it got none."""
        history = self._histories.get(number)
        return history.get(ts) if history is not None else None

    def versions(self, number: int) -> tuple[TableSchema, ...]:
        """Return every version of a table, oldest first; none for one that is not known."""
        history = self._histories.get(number)
        return history.versions() if history is not None else ()

    def highest_column(self, number: int) -> int:
        """Return the highest id that a column of a table ever had."""
        return max((c.id for v in self.versions(number) for c in v.columns), default=0)

    def living(self, ts: int) -> dict[TableName, TableSchema]:
        """Return the tables that lived at a ts by their names."""
        moments: dict[int, list[TableSchema]] = {}
        for number in self._histories:
            for version in self.versions(number):
                moments.setdefault(version.version, []).append(version)
        for ended in self._ends.values():
            moments.setdefault(ended.version, []).append(ended)
        named: dict[TableName, TableSchema] = {}
        for moment in sorted(m for m in moments if m <= ts):
            # Tables that change names with each other do it at one moment: all give theirs up before anyone takes one.
            changed = {v.table_id for v in moments[moment]}
            named = {name: table for name, table in named.items() if table.table_id not in changed}
            # Whoever takes a name takes it from a table that is no more, even where earlier versions of this program noted no ends.
            named |= {(v.schema, v.table): v for v in moments[moment] if v.columns}
        return named
