"""Doubts that came up while the log was read, until a step carries them: those with a ts, and those of transactions that have none yet.

Runs in the log service; one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from penstock.kernels.jit import U64
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table import TableSchema
from penstock.source.single_log import TableDoubt


class DoubtBook:
    """Not thread safe."""

    def __init__(self) -> None:
        self._dated: list[TableDoubt] = []
        self._undated: list[tuple[int, TableDoubt]] = []

    def add(self, doubts: Iterable[TableDoubt], ts: int | None = None) -> None:
        """Note doubts for the next step, at a ts of their own or at this one."""
        self._dated += [d if ts is None else msgspec.structs.replace(d, ts=ts) for d in doubts]

    def add_undated(self, transaction: int, doubts: Iterable[TableDoubt]) -> None:
        """Note doubts of a transaction, by its number among those that were not given yet."""
        self._undated += [(transaction, doubt) for doubt in doubts]

    def date(self, ts: U64) -> None:
        """Give the doubts of the first transactions their ts; those that follow are counted anew."""
        for number, doubt in self._undated:
            if number < len(ts):
                self.add([doubt], int(ts[number]))
        self._undated = [(number - len(ts), doubt) for number, doubt in self._undated if number >= len(ts)]

    def take(self) -> list[TableDoubt]:
        """Return what the next step tells."""
        taken, self._dated = self._dated, []
        return list(dict.fromkeys(taken))

    def take_for(self, wanted: Callable[[int], bool], ddls: Sequence[DdlEvent]) -> tuple[TableDoubt, ...]:
        """Return what the next step tells of tables that are captured, or that its DDLs make.

        Nobody can have asked yet for a table that is made in the place of none, or of one that is captured.
        """
        creating = [d for d in ddls if d.type is DdlType.CREATE_TABLE and all(map(wanted, d.dropped_table_ids))]
        made = {table.table_id for ddl in creating for table in ddl.tables}
        return tuple(d for d in self.take() if d.table_id == 0 or d.table_id in made or wanted(d.table_id))

    def take_all(self) -> list[TableDoubt]:
        """Return everything, for a transaction that is held back."""
        taken = [*self.take(), *(doubt for _, doubt in self._undated)]
        self._undated = []
        return taken


def doubts_of(tables: Sequence[TableSchema], reason: str, code: str = "", hint: str = "") -> list[TableDoubt]:
    """Return doubts about tables, at no ts yet."""
    return [TableDoubt(t.table_id, t.schema, t.table, 0, reason, code, hint) for t in tables]


def reasoned_doubts(table: TableSchema, ts: int, reasons: Sequence[str], code: str = "") -> tuple[TableDoubt, ...]:
    """Return the doubt about a table for some reasons, none where there is none."""
    text = "; ".join(dict.fromkeys(reasons))
    return (TableDoubt(table.table_id, table.schema, table.table, ts, text, code),) if reasons else ()
