"""Which table has which name at which place of the log, and where tables ended.

A table is known by its oid; a name belongs to it for an interval of the log. Where another table takes the name, the one that had it was
dropped or has another name by now, and that is told first or together. Where tables ended is kept in the journal: a note without columns
under the negative oid. Not thread safe: whoever has it holds a lock. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from penstock.model.table import TableSchema
from penstock.source.postgres.tables.catalog import OID_MASK
from penstock.source.postgres.tables.histories import DDL_SLOTS, TableHistories
from penstock.source.postgres.tables.table_names import Moves, Name, clear_names

NameReader = Callable[[Sequence[int]], Mapping[int, Name]]


class NameHolders:
    """The names of tables whose versions are in some histories."""

    def __init__(self, histories: TableHistories, read_names: NameReader) -> None:
        self._histories = histories
        self._read_names = read_names
        self._ended: dict[int, int] = {}
        self._untold_ends: list[TableSchema] = []
        self._moved: dict[tuple[int, int], Name] = {}

    def adopt_ends(self, notes: Sequence[TableSchema]) -> None:
        """Take over where tables ended, as ``take_ends`` said it."""
        self._ended.update((-note.table_id, note.version) for note in notes if not note.unique_keys)

    def take_ends(self) -> tuple[TableSchema, ...]:
        """Return what the journal shall keep of tables that are gone, once: a note without columns under the negative oid."""
        found, self._untold_ends = self._untold_ends, []
        return tuple(found)

    def clear(self, claims: Mapping[int, Name], ts: int) -> Moves:
        """Return what became of the tables that had names which others claim at a ts."""
        names: dict[Name, int] = {}
        for oid in self._histories.oids() if claims else ():
            table = self._histories.at(oid, ts)
            if table is not None and oid not in claims and self._ended.get(oid, ts) >= ts:
                names[table.schema, table.table] = oid
        return clear_names(claims, names.get, lambda oid: self._read_names([oid]).get(oid))

    def move(self, moves: Moves, slot: int) -> list[tuple[TableSchema, TableSchema]]:
        """Give tables whose names were taken the names that they have now; return them before and after."""
        pairs = []
        for oid, (schema, name) in moves.moved.items():
            before = self._histories.at(oid, slot)
            if before is not None:
                after = msgspec.structs.replace(before, schema=schema, table=name, version=slot)
                self._histories.adopt([after])
                self._moved[after.table_id, after.version] = (before.schema, before.table)
                pairs.append((before, after))
        return pairs

    def left_by(self, table: TableSchema) -> Name | None:
        """Return the name that a table had until a version that began because another took it."""
        return self._moved.get((table.table_id, table.version))

    def end(self, moves: Moves, slot: int) -> list[TableSchema]:
        """Note tables as gone; return them."""
        ended = [t for oid in moves.gone if (t := self._histories.at(oid, slot + 1)) is not None]
        self.note_ended(ended, slot)
        return ended

    def note_ended(self, tables: Sequence[TableSchema], slot: int) -> None:
        """Note tables as gone at a ts."""
        for table in tables:
            oid = table.table_id & OID_MASK
            self._ended[oid] = slot
            self._untold_ends.append(TableSchema(-oid, table.schema, table.table, slot, ()))

    def end_before(self, tables: Sequence[TableSchema], slot: int) -> None:
        """Let tables have no name from a ts on, until it is known at which one they are told as gone."""
        self._ended.update((t.table_id & OID_MASK, slot) for t in tables)

    def has_ended(self, oid: int) -> bool:
        """Return whether a table is no more."""
        return oid in self._ended

    def ended_at(self, slot: int) -> list[int]:
        """Return the tables that ended at a ts."""
        return [oid for oid, at in self._ended.items() if at == slot]

    def ended_between(self, from_ts: int, to_ts: int) -> list[tuple[TableSchema, int]]:
        """Return the tables that ended between two ts, as they were last, and where."""
        ended = [(self._histories.at(oid, slot + 1), slot) for oid, slot in self._ended.items() if from_ts < slot < to_ts]
        return [(table, slot) for table, slot in ended if table is not None]

    def is_taken(self, table: TableSchema, ts: int) -> bool:
        """Return whether another table has had the name of a table later than this one."""
        others = [self._histories.at(oid, ts) for oid in self._histories.oids() - {table.table_id & OID_MASK}]
        return any(o is not None and o.full_name == table.full_name and o.version > table.version for o in others)

    def left_at(self, name: Name, ts: int) -> int:
        """Return the last ts of the transaction, or mark, of a ts at which a table gave a name up; below all of them where none did."""
        steps = [(b, a) for b, a in self._histories.changes() if ts - DDL_SLOTS <= a.version < ts]
        left = [a.version for b, a in steps if (b.schema, b.table) == name != (a.schema, a.table)]
        ended = [(self._histories.at(oid, ts), slot) for oid, slot in self._ended.items() if ts - DDL_SLOTS <= slot < ts]
        left += [slot for table, slot in ended if table is not None and (table.schema, table.table) == name]
        return max(left, default=ts - DDL_SLOTS - 1)

    def replaced_by(self, table: TableSchema) -> tuple[int, ...]:
        """Return the tables that ended where another took their name, or moved the last one who had it away."""
        ended = [self._histories.at(oid, table.version + 1) for at in (table.version, table.version - 1) for oid in self.ended_at(at)]
        return tuple(t.table_id for t in ended if t is not None and t.full_name == table.full_name and t.table_id != table.table_id)
