"""The databases that a storage target can be replayed into: SQLite, DuckDB, MySQL or MariaDB, and PostgreSQL.

Owns names, types and statements of each; everything above works with tables and frames. A replay keeps its notes in a table of the
database itself, so rows and notes are committed together and a step is never applied twice. Structures are made from schema files, not
from DDL text, so any upstream DDL works on any of these databases. Invariants: nothing of another application is touched, tables of the
replayed databases that this replay did not make included; every name and literal is written as the dialect writes it. Runs wherever
``penstock replay`` does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import polars as pl

from penstock.format.csv.dialect import row_columns
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.readback.replay_dialect import Dialect, shown
from penstock.readback.replay_loading import LOADERS

NOTES = "penstock_replay"
_SPARE_NAMES_MAX = 100


class ReplayDatabase:
    """One database under replay. Not thread safe."""

    def __init__(self, dialect: Dialect, connection: Any, fetch: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]) -> None:
        self.dialect = dialect
        self._connection = connection
        self._fetch = fetch
        self._rows = LOADERS[dialect.name](dialect, connection, fetch)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is done inside, or undo all of it."""
        self.execute(self.dialect.begin)
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            self.execute("ROLLBACK")
            raise

    def execute(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Run one statement."""
        self._guard(lambda: self._fetch(sql, values))

    def prepare_notes(self) -> None:
        """Make sure of the table of notes."""
        key = self.dialect.note_key or self.dialect.text
        options = self.dialect.table_options
        self.execute(f"CREATE TABLE IF NOT EXISTS {NOTES} (item {key} NOT NULL PRIMARY KEY, note {self.dialect.text} NOT NULL){options}")
        if self.dialect.note_key:
            # Notes of an older version may take names that differ by case, or not take a name at all.
            known = "SELECT collation_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = %s"
            if {row[0] for row in self._guard(lambda: self._fetch(known, (NOTES,)))} != {"utf8mb4_bin"}:
                self.execute(f"ALTER TABLE {NOTES} CONVERT TO{options}")

    def notes(self) -> dict[str, str]:
        """Return all notes."""
        return dict(self._guard(lambda: self._fetch(f"SELECT item, note FROM {NOTES}", ())))

    def write_note(self, item: str, note: str | None) -> None:
        """Write a note, or remove it; part of the open transaction."""
        mark = self.dialect.mark
        if note is None:
            self.execute(f"DELETE FROM {NOTES} WHERE item = {mark}", (item,))
        elif self._guard(lambda: self._fetch(f"SELECT 1 FROM {NOTES} WHERE item = {mark}", (item,))):
            self.execute(f"UPDATE {NOTES} SET note = {mark} WHERE item = {mark}", (note, item))
        else:
            self.execute(f"INSERT INTO {NOTES} (item, note) VALUES ({mark}, {mark})", (item, note))

    def exists(self, schema: str, table: str) -> bool:
        """Return whether a table, or something else of its name, is there."""
        return bool(self._guard(lambda: self._fetch(self.dialect.exists, (schema, self.dialect.own_name(schema, table)))))

    def spare_name(self, schema: str, table: str, purpose: str) -> str:
        """Return a name that nobody has, for a table that stands in for another for a while; the same one while it is free."""
        digest = hashlib.sha256(f"{schema}/{table}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
        names = (f"penstock_{purpose}_{digest}_{at}" for at in range(_SPARE_NAMES_MAX))
        found = next((name for name in names if not self.exists(schema, name)), None)
        if found is None:
            raise PenstockError("SINK_UNWRITABLE", f"{self.dialect.name}: {schema} has a table of every spare name")
        return found

    def create_table(self, table: TableSchema, *, again: bool = False) -> None:
        """Create a table with the structure of a version; one that is there is an error, unless it may have been made before a stop."""
        if self.dialect.has_schemas:
            self.execute(f"CREATE {self.dialect.schema_word} IF NOT EXISTS {self.dialect.identifier(table.schema)}")
        handle = table.handle_columns
        columns = [self._definition(c, in_key=c in handle) for c in row_columns(table)]
        keys = [self.dialect.identifier(c.name) for c in handle]
        if keys:
            columns.append(f"PRIMARY KEY ({', '.join(keys)})")
        there = " IF NOT EXISTS" if again else ""
        self.execute(f"CREATE TABLE{there} {self._name(table)} ({', '.join(columns)}){self.dialect.table_options}")

    def drop_table(self, schema: str, table: str) -> None:
        """Drop a table if it is there."""
        self.execute(f"DROP TABLE IF EXISTS {self.dialect.table(schema, table)}")

    def clear_table(self, table: TableSchema) -> None:
        """Remove all rows of a table."""
        self.execute(f"DELETE FROM {self._name(table)}")

    def rename_table(self, old: tuple[str, str], new: TableSchema) -> None:
        """Give a table another name; another schema is a copy, which every database can do."""
        before = msgspec.structs.replace(new, schema=old[0], table=old[1], version=0)
        if self.dialect.ddl_commits:
            # What was done before a stop is recognised and not done again.
            if self._present(before):
                self.execute(f"CREATE DATABASE IF NOT EXISTS {self.dialect.identifier(new.schema)}")
                self.execute(f"RENAME TABLE {self._name(before)} TO {self._name(new)}")
            return
        self.create_table(new)
        names = ", ".join(self.dialect.identifier(c.name) for c in row_columns(new))
        self.execute(f"INSERT INTO {self._name(new)} ({names}) SELECT {names} FROM {self._name(before)}")
        self.drop_table(*old)

    def rebuild_table(self, before: TableSchema, after: TableSchema, defaults: dict[int, Any], spares: tuple[str, str]) -> None:
        """Give a table the structure of another version: rows move by column id, new columns take their default.

        ``spares`` are names that nobody else has, for the new table and for the old one; after a stop the same ones come again.
        """
        temporary, gone = (msgspec.structs.replace(after, table=name) for name in spares)
        names = [[c.name for c in row_columns(version)] for version in (before, after)]
        if self.dialect.ddl_commits:
            renamed = self.exists(gone.schema, gone.table)
            self.drop_table(gone.schema, gone.table)
            self.drop_table(temporary.schema, temporary.table)
            if renamed or self._present(before) == names[1] != names[0]:
                return
        self.create_table(temporary)
        self._move_rows(before, temporary, defaults)
        if self.dialect.ddl_commits:
            self.execute(f"RENAME TABLE {self._name(before)} TO {self._name(gone)}, {self._name(temporary)} TO {self._name(after)}")
            self.drop_table(gone.schema, gone.table)
        else:
            self.drop_table(before.schema, before.table)
            new = self.dialect.identifier(self.dialect.own_name(after.schema, after.table))
            self.execute(f"ALTER TABLE {self._name(temporary)} RENAME TO {new}")

    def _move_rows(self, before: TableSchema, after: TableSchema, defaults: dict[int, Any]) -> None:
        """Copy rows by column id.

        Rows from before a key may be alike in it: the server gave them keys that no log tells. One of them stays, until the corrections
        come that take it away and bring those that there are.
        """
        known = {c.id: c for c in row_columns(before)}
        targets = [self.dialect.identifier(c.name) for c in row_columns(after)]
        fresh = [c for c in row_columns(after) if c.id not in known]
        marked = self.dialect.with_marks if fresh else str
        sources = [marked(self._converted(known[c.id], c)) if c.id in known else self.dialect.mark for c in row_columns(after)]
        keyed = [c.id for c in after.handle_columns]
        insert, ending = "INSERT INTO", ""
        if keyed and keyed != [c.id for c in before.handle_columns]:
            insert, ending = self.dialect.insert_first
            named = [f"{self.dialect.identifier(known[i].name)} IS NOT NULL" for i in keyed if i in known]
            # Where no text tells what rows from before a column of the key have in it, none of them can be named.
            nameless = any(i not in known and defaults.get(i) is None for i in keyed)
            ending = marked(f" WHERE {' AND '.join(['1 = 0' if nameless else '1 = 1', *named])}") + ending
        self.execute(
            f"{insert} {marked(self._name(after))} ({marked(', '.join(targets))}) "
            f"SELECT {', '.join(sources)} FROM {marked(self._name(before))}{ending}",
            [self.dialect.bound(defaults.get(c.id)) for c in fresh],
        )

    def apply_rows(self, table: TableSchema, alive: pl.DataFrame, gone: pl.DataFrame) -> None:
        """Put rows in, in place of those with the same key, and remove those whose keys are gone; doing it twice leaves the same."""
        self._on_rows(self._rows.delete, table, gone)
        self._on_rows(self._rows.upsert, table, alive)

    def insert_rows(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Put rows in."""
        self._on_rows(self._rows.insert, table, rows)

    def delete_copies(self, table: TableSchema, rows: pl.DataFrame, counts: pl.Series) -> None:
        """Remove as many rows of each content as counted, for tables without a key."""
        self._on_rows(lambda t, r: self._rows.delete_copies(t, r, counts), table, rows)

    def _on_rows(self, operation: Callable[[TableSchema, pl.DataFrame], None], table: TableSchema, rows: pl.DataFrame) -> None:
        if rows.height:
            self._guard(lambda: operation(table, rows))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _name(self, table: TableSchema) -> str:
        return self.dialect.table(table.schema, table.table)

    def _present(self, table: TableSchema) -> list[str]:
        """Return the columns that a table of a MySQL server has now; none where there is no such table."""
        sql = (
            "SELECT column_name FROM information_schema.columns "
            "WHERE BINARY table_schema = %s AND BINARY table_name = %s ORDER BY ordinal_position"
        )
        return [str(row[0]) for row in self._guard(lambda: self._fetch(sql, (table.schema, table.table)))]

    def _definition(self, column: Column, *, in_key: bool) -> str:
        nullable = " NOT NULL" if in_key else self.dialect.null
        return f"{self.dialect.identifier(column.name)} {self.dialect.column_type(column, in_key=in_key)}{nullable}"

    def _converted(self, old: Column, new: Column) -> str:
        name, kind = self.dialect.identifier(old.name), self.dialect.column_type(new)
        same = self.dialect.column_type(old) == kind
        return name if same or not self.dialect.casts else f"CAST({name} AS {kind})"

    def _guard(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001 - every driver has its own root
            cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            raise PenstockError("SINK_UNWRITABLE", f"{self.dialect.name}: {cause}") from None


__all__ = ["NOTES", "ReplayDatabase", "shown"]
