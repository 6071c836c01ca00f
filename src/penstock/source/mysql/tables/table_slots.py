"""Table slots: the table maps that the framing kernel knows, as arrays, and what each of them is bound to.

The kernel finds a table id by open addressing and compares the bytes of each table map with those of its slot; only unknown ones come to
Python. A slot is bound to a table version when its rows are decoded, and bound anew after every DDL. Runs in the log service, in the
thread that reads the log.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from penstock.kernels.jit import I64, U8
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.source.mysql.rows.image_layout import ImageLayout
from penstock.source.mysql.tables.columns import layout_of
from penstock.source.mysql.tables.row_history import hidden_columns, walked_columns
from penstock.source.mysql.tables.table_versions import TableVersions
from penstock.source.mysql.wire.framing import table_slot
from penstock.source.mysql.wire.tablemap import TableMap, parse_table_map

_IDS_MIN = 1024
_UNTOLD_HINT = "Set binlog_row_metadata=FULL, or take a new snapshot of the table."


class Binding(msgspec.Struct, frozen=True):
    """The table version whose rows a slot's events hold, and how they stand in the log."""

    table: TableSchema
    layout: ImageLayout
    charsets: tuple[str | None, ...]
    """Of each column; None where the log does not tell."""
    walked: TableSchema
    """The version with the columns that the log's rows have and nobody sees."""
    row_end: int | None = None
    """The place of the column that ends rows of a system-versioned table."""


class TableSlots:
    """The known table maps. Not thread safe."""

    def __init__(self, tables: TableVersions, mariadb: bool = True) -> None:
        self._tables = tables
        self._mariadb = mariadb
        self._slots: dict[bytes, int] = {}
        self._mapped: list[TableMap] = []
        self._bound: dict[int, Binding] = {}
        self._checked: set[int] = set()
        self._known = 0
        self.ids: I64 = np.zeros(_IDS_MIN, dtype=np.int64)
        self.id_slot: I64 = np.zeros(_IDS_MIN, dtype=np.int64)
        self.maps: U8 = np.zeros(0, dtype=np.uint8)
        self.map_from: I64 = np.zeros(0, dtype=np.int64)
        self.map_to: I64 = np.zeros(0, dtype=np.int64)
        self.wanted: U8 = np.zeros(0, dtype=np.uint8)

    def forget_ids(self) -> None:
        """Forget which id means which table: a server that restarted gives them anew."""
        self.ids[:] = 0
        self._known = 0

    def unbind(self) -> None:
        """Look at every table map anew, because the tables changed."""
        self._bound.clear()
        self._checked.clear()
        self.forget_ids()

    def unchecked(self, slot: int) -> bool:
        """Return whether a slot is looked at for the first time since the tables changed."""
        is_new = slot not in self._checked
        self._checked.add(slot)
        return is_new

    def add(self, table_id: int, body: bytes) -> int:
        """Make a table map known under an id, and return its slot; ``body`` is the event behind the id."""
        slot = self._slots.get(body)
        if slot is None:
            slot = len(self._mapped)
            self._mapped.append(parse_table_map(body, self._mariadb))
            self._slots[body] = slot
            start = len(self.maps)
            self.maps = np.concatenate([self.maps, np.frombuffer(body, dtype=np.uint8)])
            self.map_from = np.append(self.map_from, start)
            self.map_to = np.append(self.map_to, start + len(body))
            self.wanted = np.append(self.wanted, np.uint8(0))
        if 2 * (self._known + 1) > len(self.ids):
            self._grow()
        place = table_slot(self.ids, table_id)
        self._known += int(self.ids[place] == 0)
        self.ids[place] = table_id + 1
        self.id_slot[place] = slot
        return slot

    def slot_of(self, table_id: int) -> int | None:
        """Return the slot of a table id, None where no table map gave it."""
        place = table_slot(self.ids, table_id)
        return int(self.id_slot[place]) if self.ids[place] else None

    def map_of(self, slot: int) -> TableMap:
        """Return the table map of a slot."""
        return self._mapped[slot]

    def table_of(self, slot: int) -> TableSchema | None:
        """Return the version of a slot's table at the reader's place."""
        mapped = self._mapped[slot]
        return self._tables.live((mapped.schema, mapped.table))

    def choose(self, wanted: Callable[[int], bool]) -> None:
        """Ask anew whose rows are decoded."""
        for slot, mapped in enumerate(self._mapped):
            table = self._tables.live((mapped.schema, mapped.table))
            self.wanted[slot] = table is not None and wanted(table.table_id)

    def bind(self, slot: int) -> Binding:
        """Return what a slot's rows are; raise where the table map fits no version that is known at the reader's place."""
        found = self._bound.get(slot)
        if found is None:
            mapped = self._mapped[slot]
            table = self.table_of(slot)
            found = self._binding(table, mapped) if table is not None else None
            if found is None:
                code = "TYPE_UNSUPPORTED" if mapped.problem else "SCHEMA_UNKNOWN"
                why = mapped.problem or f"the log describes it with {len(mapped.columns)} columns that no known version of it has"
                raise PenstockError(code, f"{mapped.schema}.{mapped.table}: {why}", _UNTOLD_HINT)
            self._bound[slot] = found
        return found

    def _binding(self, table: TableSchema, mapped: TableMap) -> Binding | None:
        hidden = hidden_columns(mapped, len(table.columns))
        shown_end = self._tables.row_end(mapped).lower()
        walked = msgspec.structs.replace(table, columns=walked_columns(mapped, table.columns)) if hidden else table
        layout = layout_of(walked, mapped)
        if layout is None:
            return None
        row_end = len(walked.columns) - 1 if hidden else next((p for p, c in enumerate(table.columns) if c.name.lower() == shown_end), None)
        return Binding(table, layout, self._tables.map_charsets(mapped), walked, row_end)

    def _grow(self) -> None:
        old_ids, old_slots = self.ids, self.id_slot
        self.ids = np.zeros(2 * len(old_ids), dtype=np.int64)
        self.id_slot = np.zeros(2 * len(old_ids), dtype=np.int64)
        for at in np.flatnonzero(old_ids):
            place = table_slot(self.ids, int(old_ids[at]) - 1)
            self.ids[place] = old_ids[at]
            self.id_slot[place] = old_slots[at]
