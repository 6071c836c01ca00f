"""The columns of a new table version: from the text of a statement, from the server, or from a table map, whichever tells them.

The server is believed where the log ends behind the statement; before that it shows later tables, and the text decides as far as it is
understood. A column keeps its id while it is the same one. Not thread safe; ``table_versions`` holds the lock. Runs in the log service, in
the thread that reads the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from penstock.ddl.statement import Statement
from penstock.ddl.tokens import TableName, tokens
from penstock.model.table import Column, TableSchema
from penstock.source.mysql.tables.columns import ServerTable
from penstock.source.mysql.tables.ddl_columns import altered_columns, created_columns
from penstock.source.mysql.tables.map_columns import agrees, by_name, renumbered, told_columns
from penstock.source.mysql.tables.rewrites import clock_default, with_initial
from penstock.source.mysql.tables.shown_tables import ShownTables
from penstock.source.mysql.tables.table_book import TableBook
from penstock.source.mysql.wire.tablemap import TableMap

_INDEX_WORDS = frozenset({"INDEX", "KEY", "KEYS", "UNIQUE", "CONSTRAINT"})
_NOT_UNDERSTOOD = ("its statement was not understood",)
IsNewest = Callable[[], bool]
"""Tells whether the log ends behind the statement that is read."""


class Shape(msgspec.Struct, frozen=True):
    """Columns and unique keys of a version, and why its rows may be others than those that were captured."""

    columns: tuple[Column, ...]
    unique_keys: tuple[tuple[int, ...], ...] = ()
    reasons: tuple[str, ...] = ()


class VersionColumns:
    """Finds the columns of versions that come to be."""

    def __init__(self, book: TableBook, shown: ShownTables) -> None:
        self._book = book
        self._shown = shown

    def first(
        self, name: TableName, like: TableSchema | None, statement: Statement, query: str, filled: bool, is_newest: IsNewest
    ) -> Shape | None:
        """Return the shape of a table that a CREATE made, ``like`` another one or ``filled`` by a query; None where nobody tells it."""
        told = like.columns if like is not None else None if filled or statement.like is not None else created_columns(query)
        keys = like.unique_keys if like is not None else ()
        shown = self._shown.read_sound(name)
        if shown is not None and (told is None or is_newest()):
            told, keys = shown.columns, shown.unique_ids(shown.columns)
        return Shape(_fresh(told), keys) if told is not None else None

    def emptied(self, old: TableSchema, is_newest: IsNewest) -> Shape:
        """Return the shape of a table that was emptied, as the server shows it where it does: no row of it may tell for long."""
        columns, keys = old.columns, old.unique_keys
        shown = self._shown.read_sound((old.schema, old.table))
        if shown is not None and is_newest() and not is_alike(columns, shown.columns):
            columns = self.numbered(old, shown.columns)
            keys = shown.unique_ids(columns)
        return Shape(_fresh(columns), keys)

    def altered(
        self, old: TableSchema, name: TableName, statement: Statement, query: str, changes_columns: bool, is_newest: IsNewest
    ) -> Shape:
        """Return the shape of a table after a change; ``changes_columns`` where its text is about columns or the primary key."""
        told = altered_columns(old.columns, query)
        if told is None and not changes_columns:
            told = old.columns
        # The server is asked before the log's end is: what it showed is then of no later statement.
        shown = self._shown.read_sound(name)
        newest = shown is not None and is_newest()
        if shown is not None and (newest or told is None):
            renames = {o.lower(): n.lower() for o, n in statement.columns}
            known = {c.name.lower(): c.id for c in told if c.id} if told is not None else None
            columns = self.numbered(old, shown.columns, renames, _dropped(query), known)
            return Shape(columns, shown.unique_ids(columns), () if newest else _NOT_UNDERSTOOD)
        if told is None:
            return Shape(old.columns, (), _NOT_UNDERSTOOD)
        # No log tells unique keys. Where a statement may have changed them rows are counted, which is right with any.
        keys = () if _INDEX_WORDS.intersection(w.upper() for w in tokens(query)) else old.unique_keys
        known = {c.name.lower(): c.id for c in told if c.id}
        return Shape(renumbered(told, known, self._book.highest_column(old.table_id)), keys)

    def mapped(self, old: TableSchema, part: TableMap, charsets: tuple[str | None, ...]) -> tuple[Column, ...] | None:
        """Return the columns of a table whose map tells others than a version; None where it does not tell enough."""
        told = self.told(part, charsets, self._shown.read_sound((old.schema, old.table)), old.columns)
        columns = self.numbered(old, told) if told is not None else None
        return columns if columns is not None and agrees(columns, part, charsets) else None

    def told(
        self, part: TableMap, charsets: tuple[str | None, ...], shown: ServerTable | None, before: tuple[Column, ...] = ()
    ) -> tuple[Column, ...] | None:
        """Return the columns that a map tells, or those of the server where the map agrees with them."""
        now = shown.columns if shown is not None else ()
        if part.full:
            return told_columns(part, charsets, [by_name(before), by_name(now)])
        return now if now and len(now) == len(part.columns) and agrees(now, part, charsets) else None

    def with_initials(self, old: TableSchema, columns: tuple[Column, ...]) -> tuple[tuple[Column, ...], Sequence[str]]:
        """Fix what rows that exist show in columns that were added; others keep what they were given when they were."""
        before = {c.id: c for c in old.columns}
        computed = self._shown.computed((old.schema, old.table))
        fixed, reasons = [], []
        for column in columns:
            if column.id in before:
                fixed.append(msgspec.structs.replace(column, initial_default=before[column.id].initial_default))
                continue
            made, reason = with_initial(column, column.name.lower() in computed or clock_default(column))
            fixed.append(made)
            reasons += [reason] if reason else []
        return tuple(fixed), reasons

    def numbered(
        self,
        old: TableSchema,
        columns: tuple[Column, ...],
        renames: dict[str, str] | None = None,
        dropped: Iterable[str] = (),
        known: dict[str, int] | None = None,
    ) -> tuple[Column, ...]:
        """Give columns the ids that they had under their old names, and new ids to new ones."""
        if known is None:
            called = renames or {}
            known = {called.get(c.name.lower(), c.name.lower()): c.id for c in old.columns if c.name.lower() not in dropped}
        return renumbered(columns, known, self._book.highest_column(old.table_id))


def is_alike(one: Sequence[Column], two: Sequence[Column]) -> bool:
    """Return whether columns have the same names and types, and the same of them the key."""
    return [(c.name.lower(), c.type, c.primary_key) for c in one] == [(c.name.lower(), c.type, c.primary_key) for c in two]


def _fresh(columns: Iterable[Column]) -> tuple[Column, ...]:
    return tuple(msgspec.structs.replace(c, initial_default=msgspec.UNSET) for c in columns)


def _dropped(query: str) -> frozenset[str]:
    """Return the names that an ALTER TABLE drops, in lower case: a column that comes again under one of them is another one."""
    words = [w.strip('`"').lower() for w in tokens(query)]
    found = set()
    for at, word in enumerate(words):
        if word == "drop":
            rest = [w for w in words[at + 1 : at + 5] if w not in {"column", "if", "exists"}]
            found.update(rest[:1])
    return frozenset(found)
