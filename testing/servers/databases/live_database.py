"""A real MariaDB, MySQL or PostgreSQL whose log can be captured, and how statements reach it, whichever it is. Runs in tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from penstock.access.mysql_server import parse_uri
from testing.servers.databases.mysql_lab import BINLOG
from testing.servers.databases.mysql_server import mysql
from testing.servers.loopback_server import mariadb, postgres


class Database:
    """A database under test."""

    def __init__(self, kind: str, uri: str) -> None:
        self.kind = kind
        self.uri = uri
        self.number = 0

    def connect(self) -> Any:
        """Return a connection that commits each statement."""
        if self.kind == "postgres":
            return psycopg.connect(self.uri, autocommit=True)
        address = parse_uri(self.uri)
        return pymysql.connect(host=address.host, port=address.port, user=address.user, autocommit=True, charset="utf8mb4")

    def run(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def make_schema(self) -> str:
        """Make a schema of its own; return its name."""
        self.number += 1
        schema = f"{self.kind}{self.number}"
        self.run(f"CREATE {'SCHEMA' if self.kind == 'postgres' else 'DATABASE'} {schema}")
        return schema


@contextlib.contextmanager
def live_database(kind: str, directory: Path) -> Iterator[Database]:
    """Run a ``mariadb``, a ``mysql`` or a ``postgres``."""
    if kind == "mysql":
        started = mysql(directory)
    else:
        started = mariadb(directory, BINLOG) if kind == "mariadb" else postgres(directory, ("-c", "wal_level=logical"))
    with started as uri:
        yield Database(kind, uri)
