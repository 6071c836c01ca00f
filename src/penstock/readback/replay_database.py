"""The databases that a storage target can be replayed into: SQLite, DuckDB, MySQL or MariaDB, and PostgreSQL.

Owns names, types and statements of each; everything above works with tables and frames. A replay keeps its notes in a table of the
database itself, so rows and notes are committed together and a step is never applied twice. Structures are made from schema files, not
from DDL text, so any upstream DDL works on any of these databases. Invariant: nothing of another application is touched but the
tables of the replayed databases and the table of notes. Runs wherever ``penstock replay`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import polars as pl

from penstock.format.csv.dialect import row_columns
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.readback.replay_dialect import DIALECTS, Dialect, shown
from penstock.readback.replay_loading import LOADERS

NOTES = "penstock_replay"


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
        self.execute(f"CREATE TABLE IF NOT EXISTS {NOTES} (item {key} NOT NULL PRIMARY KEY, note {self.dialect.text} NOT NULL)")

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

    def create_table(self, table: TableSchema) -> None:
        """Create a table with the structure of a version; one that is there already stays."""
        if self.dialect.has_schemas:
            self.execute(f"CREATE {self.dialect.schema_word} IF NOT EXISTS {self.dialect.identifier(table.schema)}")
        handle = table.handle_columns
        columns = [self._definition(c, in_key=c in handle) for c in row_columns(table)]
        keys = [self.dialect.identifier(c.name) for c in handle]
        if keys:
            columns.append(f"PRIMARY KEY ({', '.join(keys)})")
        self.execute(f"CREATE TABLE IF NOT EXISTS {self._name(table)} ({', '.join(columns)}){self.dialect.table_options}")

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

    def rebuild_table(self, before: TableSchema, after: TableSchema, defaults: dict[int, Any]) -> None:
        """Give a table the structure of another version: rows move by column id, new columns take their default.

        Rows from before a key may be alike in it: the server gave them keys that no log tells. One of them stays, until the corrections
        come that take it away and bring those that there are.
        """
        names = [[c.name for c in row_columns(version)] for version in (before, after)]
        if self.dialect.ddl_commits and self._present(before) == names[1] != names[0]:
            return
        temporary = msgspec.structs.replace(after, table=f"{after.table}__penstock")
        self.drop_table(temporary.schema, temporary.table)
        self.create_table(temporary)
        known = {c.id: c for c in row_columns(before)}
        targets, sources, values = [], [], []
        for column in row_columns(after):
            targets.append(self.dialect.identifier(column.name))
            old = known.get(column.id)
            if old is not None:
                sources.append(self._converted(old, column))
            else:
                sources.append(self.dialect.mark)
                values.append(defaults.get(column.id))
        keyed = [c.id for c in after.handle_columns]
        insert, ending = "INSERT INTO", ""
        if keyed and keyed != [c.id for c in before.handle_columns]:
            insert, ending = self.dialect.insert_first
            named = [f"{self.dialect.identifier(known[i].name)} IS NOT NULL" for i in keyed if i in known]
            ending = (f" WHERE {' AND '.join(named)}" if named else " WHERE 1 = 1") + ending
        self.execute(
            f"{insert} {self._name(temporary)} ({', '.join(targets)}) SELECT {', '.join(sources)} FROM {self._name(before)}{ending}", values
        )
        if self.dialect.ddl_commits:
            gone = TableSchema(0, before.schema, f"{before.table}__gone", 0, ())
            self.drop_table(gone.schema, gone.table)
            self.execute(f"RENAME TABLE {self._name(before)} TO {self._name(gone)}, {self._name(temporary)} TO {self._name(after)}")
            self.drop_table(gone.schema, gone.table)
        else:
            self.drop_table(before.schema, before.table)
            new = after.table if self.dialect.has_schemas else f"{after.schema}.{after.table}"
            self.execute(f"ALTER TABLE {self._name(temporary)} RENAME TO {self.dialect.identifier(new)}")

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
        sql = "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
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


def open_database(uri: str) -> ReplayDatabase:
    """Open the database of a URI: ``sqlite:///file``, ``duckdb:///file``, ``mysql://user:password@host/``, ``postgresql://.../name``."""
    parts = urlsplit(uri)
    scheme = {"mariadb": "mysql", "postgres": "postgresql"}.get(parts.scheme, parts.scheme)
    openers = {"sqlite": _open_sqlite, "duckdb": _open_duckdb, "mysql": _open_mysql, "postgresql": _open_postgresql}
    if scheme not in openers:
        raise PenstockError("SINK_URI_INVALID", f"scheme {parts.scheme or 'none'!r} is not one of {', '.join(openers)}")
    try:
        return openers[scheme](uri)
    except PenstockError:
        raise
    except ImportError as error:
        extra = {"postgresql": "postgres"}.get(scheme, scheme)
        raise PenstockError("MISSING_DEPENDENCY", f"{error.name} is not installed; install penstock[{extra}]") from None
    except Exception as error:  # noqa: BLE001 - every driver has its own root
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise PenstockError("SINK_UNWRITABLE", f"{scheme}: cannot open: {cause}") from None


def _path(uri: str) -> str:
    path = unquote(urlsplit(uri).path)
    if not path.startswith("/") or len(path) < 2:
        raise PenstockError("SINK_URI_INVALID", "a database file must have an absolute path, as in sqlite:////dir/file.db")
    return "/" + path.lstrip("/")


def _open_sqlite(uri: str) -> ReplayDatabase:
    import sqlite3

    connection = sqlite3.connect(_path(uri), isolation_level=None)

    def fetch(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return connection.execute(sql, tuple(values)).fetchall()

    return ReplayDatabase(DIALECTS["sqlite"], connection, fetch)


def _open_duckdb(uri: str) -> ReplayDatabase:
    import duckdb

    connection = duckdb.connect(_path(uri))

    def fetch(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = connection.execute(sql, list(values)).fetchall()
        return rows

    return ReplayDatabase(DIALECTS["duckdb"], connection, fetch)


def _open_mysql(uri: str) -> ReplayDatabase:
    import pymysql

    parts = urlsplit(uri)
    name = parts.path.strip("/")
    if not name:
        raise PenstockError("SINK_URI_INVALID", "name the database that keeps the notes of the replay, as in mysql://user@host:3306/replay")
    connection = pymysql.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=unquote(parts.username or "root"),
        password=unquote(parts.password or ""),
        database=name,
        autocommit=True,
        charset="utf8mb4",
        init_command="SET time_zone = '+00:00', sql_mode = 'NO_AUTO_VALUE_ON_ZERO'",
    )

    def fetch(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(sql, tuple(values) or None)
            return list(cursor.fetchall())

    return ReplayDatabase(DIALECTS["mysql"], connection, fetch)


def _open_postgresql(uri: str) -> ReplayDatabase:
    import psycopg

    connection = psycopg.connect(uri, autocommit=True)

    def fetch(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        cursor = connection.execute(sql, tuple(values) or None)
        return cursor.fetchall() if cursor.description is not None else []

    return ReplayDatabase(DIALECTS["postgresql"], connection, fetch)


__all__ = ["NOTES", "ReplayDatabase", "open_database", "shown"]
