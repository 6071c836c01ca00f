"""The versions of all tables by table id, and where there is room for another one.

A table's id is its oid; each TRUNCATE, and each change after which its rows cannot be told from what they were, gives it the next
generation, which stands above the oid's 32 bits. A transaction or mark has ``DDL_SLOTS`` ts below its own for the versions that begin in
it. Not thread safe: whoever has it holds a lock. Runs in the log service and the server.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

from penstock.model.errors import PenstockError
from penstock.model.table import SchemaHistory, TableSchema
from penstock.source.postgres.tables.catalog import OID_BITS, OID_MASK
from penstock.source.postgres.tables.versions import columns_of

DDL_SLOTS = 7
"""How many schema changes of one table a transaction may hold: its rows stand one more ts above the transaction before."""


class TableHistories:
    """Histories by table id."""

    def __init__(self) -> None:
        self._by_id: dict[int, SchemaHistory] = {}
        self._begun: list[int] = []
        """The ts of all versions, in order."""

    def adopt(self, versions: Sequence[TableSchema]) -> None:
        """Take over known versions."""
        for version in versions:
            if self._by_id.setdefault(version.table_id, SchemaHistory(version.table_id)).add(version):
                bisect.insort(self._begun, version.version)

    def versions(self, table_id: int) -> tuple[TableSchema, ...]:
        """Return the versions of a table id, oldest first; none where it is not known."""
        known = self._by_id.get(table_id)
        return known.versions() if known is not None else ()

    def oids(self) -> set[int]:
        """Return the tables that have a version."""
        return {table_id & OID_MASK for table_id in self._by_id}

    def knows(self, oid: int) -> bool:
        """Return whether a table has a version."""
        return oid in self._by_id

    def newest(self, oid: int) -> TableSchema:
        """Return the newest version of a table that has one."""
        return self.generations(oid)[-1].versions()[-1]

    def generations(self, oid: int) -> list[SchemaHistory]:
        """Return the histories of a table's generations, oldest first."""
        found: list[SchemaHistory] = []
        while (history := self._by_id.get(oid + (len(found) << OID_BITS))) is not None:
            found.append(history)
        return found

    def generation_at(self, oid: int, ts: int) -> SchemaHistory:
        """Return the history that a table that is known has in the transaction of a ts."""
        generations = self.generations(oid)
        begun = [g for g in generations if g.versions()[0].version < ts]
        return begun[-1] if begun else generations[0]

    def at(self, oid: int, ts: int) -> TableSchema | None:
        """Return the version that a table has before a ts; None where it is not there yet."""
        before = [v for g in self.generations(oid) for v in g.versions() if v.version < ts]
        return before[-1] if before else None

    def beginnings(self) -> list[tuple[TableSchema | None, TableSchema]]:
        """Return every version with the one before it, which the first of an id does not have."""
        return [pair for h in self._by_id.values() for pair in zip((None, *h.versions()), h.versions(), strict=False)]

    def changes(self) -> list[tuple[TableSchema, TableSchema]]:
        """Return every two versions of an id that follow one another."""
        return [pair for history in self._by_id.values() for pair in itertools.pairwise(history.versions())]

    def starts_between(self, oid: int, first_ts: int, last_ts: int) -> list[int]:
        """Return where versions of a table begin from one transaction on and before another, in order."""
        return sorted(v.version for g in self.generations(oid) for v in g.versions() if first_ts <= v.version < last_ts)

    def begun_between(self, from_ts: int, to_ts: int) -> list[int]:
        """Return where versions of any table begin between two ts."""
        return self._begun[bisect.bisect_right(self._begun, from_ts) : bisect.bisect_left(self._begun, to_ts)]

    def made_anew_from(self, table: TableSchema) -> TableSchema | None:
        """Return the last version of the generation before a first version that is no truncated table: it has other columns."""
        before = self.versions(table.table_id - (1 << OID_BITS)) if table.table_id > OID_MASK else ()
        return before[-1] if before and columns_of(before[-1]) != columns_of(table) else None

    def emptied_to(self, table: TableSchema) -> TableSchema | None:
        """Return the last version of the generation before a first version that is a truncated table."""
        before = self.versions(table.table_id - (1 << OID_BITS)) if table.table_id > OID_MASK else ()
        return before[-1] if before and columns_of(before[-1]) == columns_of(table) else None

    def free_slot(self, oids: Sequence[int], commit_ts: int, count: int = 1, floor: int = 0) -> int:
        """Return the first of some ts below a transaction that are free for all of some tables, not below a floor."""
        taken = [v for oid in oids for v in self.starts_between(oid, commit_ts - DDL_SLOTS, commit_ts)]
        slot = max(floor, max(taken, default=commit_ts - DDL_SLOTS - 1) + 1)
        if slot + count > commit_ts:
            raise PenstockError("DDL_UNSUPPORTED", f"table {oids[0]}: more than {DDL_SLOTS} schema changes in one transaction")
        return slot
