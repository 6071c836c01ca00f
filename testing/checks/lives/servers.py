"""The servers on which tables live: sessions, what the catalog says of tables, and their rows as a plain client sees them.

Nothing of the product speaks to the server here. A statement that the server refuses is part of life: its session rolls back. Each life has
a database or schema of its own. Runs in tests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import psutil
import psycopg
import pymysql

from testing.checks.lives.comparable import Row, comparable
from testing.servers.databases.mysql_server import mysql
from testing.servers.loopback import STOP_S_MAX, as_user, free_port, unprivileged
from testing.servers.loopback_server import mariadb, postgres
from testing.servers.waiting import wait_until

AWAY = "lives_away"
"""A database or schema outside of every feed, in which tables are for a while."""
REFUSED = (pymysql.Error, psycopg.Error)
"""What a server may say to a statement."""
_BINLOG = ("--log-bin=bin", "--server-id=1", "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--sync-binlog=0")
_SETTINGS = ("wal_level=logical", "max_replication_slots=40", "max_wal_senders=40", "max_prepared_transactions=5")
_LOGICAL = tuple(word for setting in _SETTINGS for word in ("-c", setting))
_FAMILIES = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "bit", "year"), "number"),
    **dict.fromkeys(("int2", "int4", "int8", "bool", "numeric"), "number"),
    "float": "float",
    "float4": "float",
    "double": "double",
    "float8": "double",
    **dict.fromkeys(("date", "datetime", "timestamp", "timestamptz", "time"), "time"),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bytea"), "bytes"),
}


@dataclasses.dataclass(frozen=True)
class LiveColumn:
    """A column as the catalog shows it: ``base`` is the type's name alone."""

    name: str
    type: str
    base: str
    nullable: bool
    generated: bool = False

    @property
    def family(self) -> str:
        """Return the family of its type."""
        return _FAMILIES.get(self.base, "text")


@dataclasses.dataclass(frozen=True)
class LiveTable:
    """A table as the catalog shows it."""

    name: str
    columns: tuple[LiveColumn, ...]
    key: tuple[str, ...]
    partitions: tuple[str, ...] = ()

    @property
    def stored(self) -> tuple[LiveColumn, ...]:
        """Return the columns whose values are captured."""
        return tuple(c for c in self.columns if not c.generated)


class Server(Protocol):
    """A server in which lives take place one after the other."""

    kind: str

    def begin(self, schema: str) -> str:
        """Make a place for a life; return the source's URI."""

    def end(self, schema: str) -> None:
        """Remove everything of a life."""

    def session(self, schema: str) -> Any:
        """Open a session in which unqualified names are the life's own."""

    def tables(self, schema: str) -> list[LiveTable]:
        """Return the tables by name."""

    def rows(self, schema: str, table: LiveTable) -> Counter[Row]:
        """Return the rows of a table and how often each is there."""

    def rotate(self) -> None:
        """Begin another file of the log."""

    def lose_log(self, schema: str) -> None:
        """Lose the log of a life up to now, while nobody reads it."""

    def restart(self) -> None:
        """Stop the server and start it again."""


class MySqlServer:
    """MariaDB or MySQL."""

    def __init__(self, kind: str, directory: Path, uri: str) -> None:
        self.kind = kind
        self._directory = directory
        self._port = int(re.findall(r":(\d+)", uri)[-1])
        self._again: subprocess.Popen[bytes] | None = None

    def begin(self, schema: str) -> str:
        """Make a database."""
        self._run(f"DROP DATABASE IF EXISTS {schema}", f"CREATE DATABASE {schema} CHARACTER SET utf8mb4")
        self._run(f"DROP DATABASE IF EXISTS {AWAY}", f"CREATE DATABASE {AWAY} CHARACTER SET utf8mb4")
        return f"mysql://root@127.0.0.1:{self._port}/"

    def end(self, schema: str) -> None:
        """Drop the database."""
        self._run(f"DROP DATABASE IF EXISTS {schema}")

    def session(self, schema: str) -> Any:
        """Open a session without converters: every value is the server's text."""
        session = pymysql.connect(
            host="127.0.0.1", port=self._port, user="root", database=schema, autocommit=True, charset="utf8mb4", conv={}
        )
        with session.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', lock_wait_timeout = 2, innodb_lock_wait_timeout = 1")
        return session

    def tables(self, schema: str) -> list[LiveTable]:
        """Return the tables by name."""
        columns = (
            "SELECT c.TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, DATA_TYPE, IS_NULLABLE, EXTRA FROM information_schema.COLUMNS c"
            " JOIN information_schema.TABLES t USING (TABLE_SCHEMA, TABLE_NAME)"
            f" WHERE TABLE_SCHEMA = '{schema}' AND TABLE_TYPE <> 'VIEW' ORDER BY c.TABLE_NAME, ORDINAL_POSITION"
        )
        keys = (
            "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.STATISTICS"
            f" WHERE TABLE_SCHEMA = '{schema}' AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX"
        )
        parts = f"SELECT TABLE_NAME, PARTITION_NAME FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = '{schema}'"
        with contextlib.closing(self.session(schema)) as session:
            described = _fetch(session, columns)
            key_of = _fetch(session, keys)
            part_of = _fetch(session, parts)
        found: dict[str, list[LiveColumn]] = {}
        for table, name, full, base, nullable, extra in described:
            found.setdefault(table, []).append(LiveColumn(name, full, base, nullable == "YES", "VIRTUAL" in extra))
        return [
            LiveTable(
                name,
                tuple(found[name]),
                tuple(c for t, c in key_of if t == name),
                tuple(p for t, p in part_of if t == name and p is not None),
            )
            for name in sorted(found)
        ]

    def rows(self, schema: str, table: LiveTable) -> Counter[Row]:
        """Return the rows of a table."""
        shown = [_mysql_expression(c) for c in table.stored]
        with contextlib.closing(self.session(schema)) as session:
            rows = _fetch(session, f"SELECT {', '.join(shown)} FROM `{table.name}`")
        return Counter(tuple(comparable(c.family, v) for c, v in zip(table.stored, row, strict=True)) for row in rows)

    def rotate(self) -> None:
        """Begin another file of the binlog."""
        self._run("FLUSH BINARY LOGS")

    def lose_log(self, schema: str) -> None:
        """Purge all files but a new one; the server keeps one, without a word, while it believes that someone reads it."""
        self.rotate()

        def is_purged() -> bool:
            with contextlib.closing(self.session(schema)) as session:
                newest = _fetch(session, "SHOW BINARY LOGS")[-1][0]
                for (reader,) in _fetch(session, "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"):
                    with contextlib.suppress(pymysql.Error):
                        _fetch(session, f"KILL {reader}")
                _fetch(session, f"PURGE BINARY LOGS TO '{newest}'")
                return len(_fetch(session, "SHOW BINARY LOGS")) == 1

        wait_until(is_purged, "the log is not purged")

    def restart(self) -> None:
        """Stop the server and start it again the same way."""
        process = psutil.Process(int((self._directory / "pid").read_text()))
        command = process.cmdline()
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S_MAX)
        if self._again is not None:
            self._again.wait(STOP_S_MAX)
        with (self._directory / "again.log").open("ab") as out:
            self._again = subprocess.Popen(
                as_user(unprivileged(self._directory), command),
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                start_new_session=True,
            )
        wait_until(self._answers, "the server does not answer")

    def close(self) -> None:
        """End what was started again."""
        if self._again is not None and self._again.poll() is None:
            os.killpg(self._again.pid, signal.SIGTERM)
            self._again.wait(STOP_S_MAX)

    def _answers(self) -> bool:
        with contextlib.suppress(pymysql.Error):
            self.session("mysql").close()
            return True
        return False

    def _run(self, *statements: str) -> None:
        with contextlib.closing(self.session("mysql")) as session, session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


class PostgresServer:
    """PostgreSQL; a life's slot has the name of its schema."""

    kind = "postgres"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._running = contextlib.ExitStack()
        self._uri = self._running.enter_context(postgres(directory, _LOGICAL, self._port))

    def begin(self, schema: str) -> str:
        """Make a schema."""
        self.end(schema)
        self._run(f"CREATE SCHEMA {schema}", f"DROP SCHEMA IF EXISTS {AWAY} CASCADE", f"CREATE SCHEMA {AWAY}")
        return f"{self._uri}?slot={schema}"

    def end(self, schema: str) -> None:
        """Drop schema and slot."""
        self._run(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        self.lose_log(schema)

    def lose_log(self, schema: str) -> None:
        """Drop the slot."""

        def dropped() -> bool:
            with contextlib.suppress(psycopg.Error):
                self._run(f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{schema}'")
                return True
            return False

        wait_until(dropped, "the slot is not let go of")

    def session(self, schema: str) -> Any:
        """Open a session."""
        session = psycopg.connect(self._uri, autocommit=True)
        session.execute(f"SET search_path = {schema}")
        session.execute("SET timezone = 'UTC'; SET lock_timeout = '1s'; SET extra_float_digits = 1; SET datestyle = 'ISO'")
        return session

    def tables(self, schema: str) -> list[LiveTable]:
        """Return the tables by name; partitions count as their root."""
        columns = (
            "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), t.typname, NOT a.attnotnull, a.attgenerated <> ''"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid"
            f" JOIN pg_type t ON t.oid = a.atttypid WHERE n.nspname = '{schema}' AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
            " AND c.relpersistence = 'p' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY c.relname, a.attnum"
        )
        keys = (
            "SELECT c.relname, a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid"
            " JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey)"
            f" WHERE n.nspname = '{schema}' AND i.indisprimary ORDER BY array_position(i.indkey::int2[], a.attnum)"
        )
        parts = (
            "SELECT p.relname, c.relname FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid JOIN pg_class p ON p.oid = h.inhparent"
            f" JOIN pg_namespace n ON n.oid = p.relnamespace WHERE n.nspname = '{schema}' AND p.relkind = 'p' ORDER BY c.relname"
        )
        with contextlib.closing(self.session(schema)) as session:
            described, key_of, part_of = (session.execute(q).fetchall() for q in (columns, keys, parts))
        found: dict[str, list[LiveColumn]] = {}
        for table, name, full, base, nullable, generated in described:
            found.setdefault(table, []).append(LiveColumn(name, full, base, nullable, generated))
        return [
            LiveTable(name, tuple(found[name]), tuple(c for t, c in key_of if t == name), tuple(p for t, p in part_of if t == name))
            for name in sorted(found)
        ]

    def rows(self, schema: str, table: LiveTable) -> Counter[Row]:
        """Return the rows of a table."""
        shown = [_postgres_expression(c) for c in table.stored]
        with contextlib.closing(self.session(schema)) as session:
            # A table's own rows: those of tables that inherit from it are captured as theirs.
            only = "" if table.partitions else "ONLY "
            rows = session.execute(f'SELECT {", ".join(shown)} FROM {only}"{table.name}"').fetchall()
        return Counter(tuple(comparable(c.family, v) for c, v in zip(table.stored, row, strict=True)) for row in rows)

    def rotate(self) -> None:
        """Begin another file of the log."""
        self._run("SELECT pg_switch_wal()", "CHECKPOINT")

    def restart(self) -> None:
        """Stop the server without waiting for its clients, and start it again."""
        self._running.close()
        self._running.enter_context(postgres(self._directory, _LOGICAL, self._port))

    def close(self) -> None:
        """Stop the server."""
        self._running.close()

    def _run(self, *statements: str) -> None:
        with psycopg.connect(self._uri, autocommit=True) as session:
            for statement in statements:
                session.execute(statement)


@contextlib.contextmanager
def life_server(kind: str, directory: Path) -> Iterator[Server]:
    """Run a ``mariadb``, ``mysql`` or ``postgres``."""
    if kind == "postgres":
        with contextlib.closing(PostgresServer(directory)) as server:
            yield server
        return
    started = mariadb(directory, _BINLOG) if kind == "mariadb" else mysql(directory)
    with started as uri, contextlib.closing(MySqlServer(kind, directory, uri)) as running:
        yield running


def _fetch(session: Any, query: str) -> list[tuple[Any, ...]]:
    with session.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def _mysql_expression(column: LiveColumn) -> str:
    if column.base == "bit":
        return f"`{column.name}` + 0"
    return f"CAST(`{column.name}` AS DOUBLE)" if column.base == "float" else f"`{column.name}`"


def _postgres_expression(column: LiveColumn) -> str:
    name = f'"{column.name}"'
    if column.base == "bool":
        return f"{name}::int"
    if column.base == "bytea":
        return name
    if column.base == "timestamptz":
        return f"({name} AT TIME ZONE 'UTC')::text"
    # A cast to text would take the blanks of a char(n) away, and give an address its mask.
    is_shown = column.base in {"bpchar", "inet"}
    return f"CASE WHEN {name} IS NULL THEN NULL ELSE format('%s', {name}) END" if is_shown else f"{name}::text"
