"""Which partitions tables had when they were last seen, kept in the journal: one that was dropped leaves no trace in the catalog.

A note is a table version without columns under the negative oid of its table. It says, as numbers of partitions, which came and which went
since the note before it, so that a table with many partitions costs little. Whatever is in doubt because of what a note says is kept
before the note (``puller/logged``). Not thread safe: whoever watches the catalog holds its lock. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.model.table import TableSchema
from penstock.source.postgres.tables.catalog import CatalogTable


class PartitionNotes:
    """The partitions of tables, by oid."""

    def __init__(self) -> None:
        self._parts: dict[int, frozenset[int]] = {}
        self._seen: dict[int, CatalogTable] = {}

    def adopt(self, versions: Sequence[TableSchema]) -> None:
        """Take over the notes among versions that the journal kept, oldest first."""
        for note in versions:
            if is_note(note) and len(note.unique_keys) == 2:
                came, went = note.unique_keys
                self._parts[-note.table_id] = self._parts.get(-note.table_id, frozenset()) - set(went) | set(came)

    def loss(self, table: CatalogTable, is_old: bool) -> str:
        """Return why partitions may have gone since a table was last noted; without a note nobody knows that of one that is old."""
        if table.partitioned and is_old and table.oid not in self._parts:
            return "nobody noted its partitions before the process ended: one may have been dropped or detached since"
        lost = not self._parts.get(table.oid, frozenset()) <= _parts(table)
        return "a partition of it was dropped or detached while nobody read the log" if lost else ""

    def see(self, tables: Iterable[CatalogTable]) -> None:
        """Take tables as seen, for the next note."""
        self._seen.update((t.oid, t) for t in tables if t.partitioned)

    def take(self, ts: int) -> tuple[TableSchema, ...]:
        """Return the notes about what was seen since the last ones, once."""
        seen, self._seen = self._seen, {}
        notes = []
        for oid, table in seen.items():
            known, now = self._parts.get(oid, frozenset()), _parts(table)
            if oid not in self._parts or known != now:
                changes = (tuple(sorted(now - known)), tuple(sorted(known - now)))
                notes.append(TableSchema(-oid, table.schema, table.table, ts, (), unique_keys=changes))
                self._parts[oid] = now
        return tuple(notes)


def is_note(version: TableSchema) -> bool:
    """Return whether a version of the journal is a note."""
    return version.table_id < 0


def _parts(table: CatalogTable) -> frozenset[int]:
    return frozenset(s.oid for s in table.storage) if table.partitioned else frozenset()
