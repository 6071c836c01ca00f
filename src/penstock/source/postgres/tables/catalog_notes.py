"""What tables had when they were last seen and may lose without a trace in the catalog, kept in the journal.

That are partitions (one that was dropped is no more), a deferrable key, generated columns (one that became ordinary looks as if it had
just been added) and the publication (one that was changed and changed back looks as before, but for its number). A note is a table version
without columns under the negative oid of its table. It says, as numbers, what came and what went since the note before it, so that a table
with many partitions costs little. Whatever is in doubt because of what a note says is kept before the note (``puller/logged``). Not thread
safe: whoever watches the catalog holds its lock. Runs in the log service.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from penstock.model.table import TableSchema
from penstock.source.postgres.tables.catalog import CatalogTable

_PUBLICATION = 1 << 40
"""From here on a number stands for a publication's state; below are partitions by oid, and below zero columns."""
_DEFERRABLE = 1 << 41
_DOUBTED = 1 << 42
"""There is a doubt that nobody was told yet: whoever wants the table comes later, perhaps after the process ended."""


class CatalogNotes:
    """The numbers of tables, by oid."""

    def __init__(self) -> None:
        self._numbers: dict[int, frozenset[int]] = {}
        self._given: dict[int, tuple[CatalogTable, frozenset[int]]] = {}
        """The tables of the last notes: whoever asks for the next ones has kept them."""
        self._seen: dict[int, CatalogTable] = {}
        self._last: dict[int, int] = {}
        """The version of the last note."""

    def adopt(self, versions: Sequence[TableSchema]) -> None:
        """Take over the notes among versions that the journal kept, oldest first."""
        for note in versions:
            if is_note(note) and len(note.unique_keys) == 2:
                came, went = note.unique_keys
                self._last[-note.table_id] = note.version
                self._numbers[-note.table_id] = self._numbers.get(-note.table_id, frozenset()) - set(went) | set(came)

    def loss(self, table: CatalogTable, held: frozenset[int] | None) -> str:
        """Return why rows may have changed since a table was last noted. ``held`` are its columns if it was captured before, else None.

        Without a note nobody knows what such a table had.
        """
        if held is not None and table.oid not in self._numbers:
            if table.partitioned:
                return "nobody noted its partitions before the process ended: one may have been dropped or detached since"
            if not {c.column.id for c in table.columns} <= held:
                return "nobody noted its generated columns before the process ended: one may be an ordinary one since"
        lost = self._numbers.get(table.oid, frozenset()) - _numbers(table)
        reasons = {
            "a partition of it was dropped or detached while nobody read the log": any(0 < n < _PUBLICATION for n in lost),
            "a generated column became an ordinary one while nobody read the log": any(-c.column.id in lost for c in table.columns),
            "the publication was changed while nobody read the log": any(_PUBLICATION <= n < _DEFERRABLE for n in lost),
            "a doubt about it was not told before the process ended": _DOUBTED in lost,
            "its key was deferrable until somebody changed it while nobody read the log": _DEFERRABLE in lost,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def see(self, tables: Iterable[CatalogTable]) -> None:
        """Take tables as seen, for the next note."""
        self._seen.update((t.oid, t) for t in tables)

    def doubted(self) -> set[int]:
        """Return the tables of which it is noted that a doubt about them waits."""
        return {oid for oid, numbers in (self._numbers | self._given_numbers()).items() if _DOUBTED in numbers}

    def take(self, ts: int, waiting: frozenset[int] = frozenset()) -> tuple[TableSchema, ...]:
        """Return the notes about what was seen since the last ones, which are kept by now; of ``waiting`` ones a doubt is not told yet."""
        self._numbers.update(self._given_numbers())
        seen, self._seen, self._given = self._seen, {}, {}
        notes = []
        for oid, table in seen.items():
            now = _numbers(table) | (frozenset({_DOUBTED}) if oid in waiting else frozenset())
            note = self._note(table, now, ts)
            if note is not None:
                notes.append(note)
                self._given[oid] = (table, now)
        return tuple(notes)

    def untaken(self, ts: int) -> tuple[TableSchema, ...]:
        """Return the notes that nobody is sure to have kept, without the doubts that wait; they are given again."""
        tables = {oid: table for oid, (table, _) in self._given.items()} | self._seen
        kept = {oid: self._numbers.get(oid, frozenset()) & {_DOUBTED} for oid in tables}
        notes = (self._note(table, _numbers(table) | kept[oid], ts) for oid, table in tables.items())
        return tuple(note for note in notes if note is not None)

    def _note(self, table: CatalogTable, now: frozenset[int], ts: int) -> TableSchema | None:
        oid, known = table.oid, self._numbers.get(table.oid, frozenset())
        if known == now and (oid in self._numbers or not table.partitioned):
            return None
        changes = (tuple(sorted(now - known)), tuple(sorted(known - now)))
        # A log that is read again gives the same ts again, and the journal keeps the first version of each.
        self._last[oid] = max(ts, self._last.get(oid, 0) + 1)
        return TableSchema(-oid, table.schema, table.table, self._last[oid], (), unique_keys=changes)

    def take_back(self) -> None:
        """Give the last notes once more: nobody may have kept them."""
        self._seen, self._given = {oid: table for oid, (table, _) in self._given.items()} | self._seen, {}

    def _given_numbers(self) -> dict[int, frozenset[int]]:
        return {oid: numbers for oid, (_, numbers) in self._given.items()}


def is_note(version: TableSchema) -> bool:
    """Return whether a version of the journal is a note."""
    return version.table_id < 0


def _numbers(table: CatalogTable) -> frozenset[int]:
    parts = [s.oid for s in table.storage] if table.partitioned else []
    given = [_PUBLICATION + zlib.crc32(table.given.encode())] if table.given else []
    deferrable = [_DEFERRABLE] if table.deferrable else []
    return frozenset([*parts, *(-n for n in table.generated), *given, *deferrable])
