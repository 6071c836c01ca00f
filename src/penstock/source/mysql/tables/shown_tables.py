"""What the server shows of its tables now: hints for a log that tells less, and all that there is where it tells nothing.

Not thread safe; ``table_versions`` holds the lock. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.ddl.tokens import TableName
from penstock.source.mysql.tables.columns import ServerTable
from penstock.source.mysql.tables.map_columns import map_charsets
from penstock.source.mysql.tables.row_history import may_show_end, shown_part
from penstock.source.mysql.wire.tablemap import TableMap

ReadTable = Callable[[str, str], ServerTable | None]
"""Returns a table as the server has it now."""


class ShownTables:
    """The tables that the server showed, each as it was when it was looked at last."""

    def __init__(self, read_table: ReadTable, collations: Callable[[], dict[int, str]]) -> None:
        self._read_table = read_table
        self._read_collations = collations
        self._collations: dict[int, str] | None = None
        self._noted: dict[TableName, ServerTable] = {}

    def note(self, table: ServerTable) -> None:
        """Remember a table as it was just seen."""
        self._noted[table.schema, table.table] = table

    def read(self, name: TableName) -> ServerTable | None:
        """Look at a table now; None where there is none, or none that we may see."""
        found = self._read_table(*name)
        if found is not None:
            self.note(found)
        return found

    def read_sound(self, name: TableName) -> ServerTable | None:
        """Look at a table now; None as well where it cannot be captured."""
        found = self.read(name)
        return None if found is None or found.problem else found

    def problem(self, name: TableName) -> str:
        """Return why a table cannot be captured, or nothing."""
        return self._noted[name].problem if name in self._noted else ""

    def computed(self, name: TableName) -> frozenset[str]:
        """Return the columns whose default the server computes, in lower case."""
        return self._noted[name].computed if name in self._noted else frozenset()

    def row_end(self, mapped: TableMap) -> str:
        """Return the shown column that ends rows of a system-versioned table, empty for others; no log tells it, so it is looked for."""
        name = (mapped.schema, mapped.table)
        found = self._noted.get(name) or (self.read(name) if may_show_end(mapped) else None)
        return found.row_end if found is not None else ""

    def noted_charsets(self, name: TableName) -> dict[str, str]:
        """Return the charset of each text column, by names in lower case, as they were when the table was looked at last."""
        found = self._noted.get(name)
        pairs = zip(found.columns, found.charsets, strict=True) if found is not None else ()
        return {c.name.lower(): charset for c, charset in pairs if charset}

    def charset(self, name: TableName, column: str) -> str:
        """Return the charset that a column has now, empty where it has none."""
        found = self._noted.get(name) or self.read(name)
        pairs = zip(found.columns, found.charsets, strict=True) if found is not None else ()
        return next((charset for c, charset in pairs if c.name.lower() == column.lower()), "utf8mb4")

    def map_charsets(self, mapped: TableMap) -> tuple[str | None, ...]:
        """Return the charset of each column of a table map, None where it does not tell."""
        told = any(c.collation is not None for c in mapped.columns)
        return map_charsets(mapped, self.collations() if told else {})

    def collations(self) -> dict[int, str]:
        """Return the charset of each collation by its number; the server is asked once."""
        if self._collations is None:
            self._collations = self._read_collations()
        return self._collations

    def shown_part(self, mapped: TableMap, known: int | None) -> TableMap:
        """Return a table map without what the table does not show; ``known`` is how many columns it has where that is known."""
        return shown_part(mapped, known, self.row_end(mapped))
