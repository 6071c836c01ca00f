"""MariaDB and PostgreSQL as targets: one server of each for a test process, and a database of its own for each test.

The servers end with the process. What a kit reads it reads by the driver, not by the product. Runs in tests.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from penstock.access.mysql_server import parse_uri
from penstock.sink.catalog import kind_of
from penstock.target.kind import SinkRun
from testing.servers.databases.mysql_server import mysql
from testing.servers.loopback_server import mariadb, postgres
from testing.targets.kit import Kit

_numbers = itertools.count(1)
_lock = threading.Lock()
_servers: dict[str, str] = {}


def server_uri(kind: str) -> str:
    """Return the URI of the process's ``mariadb``, ``mysql`` or ``postgres``, which is started when it is first asked for."""
    with _lock:
        if kind not in _servers:
            running = contextlib.ExitStack()
            folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True)))
            folder.chmod(0o755)
            start = {"mariadb": mariadb, "mysql": mysql, "postgres": postgres}[kind]
            _servers[kind] = running.enter_context(start(folder / kind))
            atexit.register(running.close)
        return _servers[kind]


MYSQL = pytest.param("mysql", marks=pytest.mark.mysql)
"""MySQL itself as a parameter of a test."""


class TargetDatabase:
    """A target of a test: its URI, in which the books have a schema of their own, and names that no other test has."""

    def __init__(self, kind: str, server: str = "") -> None:
        """``server`` is the URI of a server of the test's own."""
        self.kind = kind
        self.number = next(_numbers)
        self.home = f"books{self.number}"
        self.server = server or server_uri(kind)
        self.prefix = f"t{self.number}_"
        self.options = {"schema-name": self.prefix + "{schema}", "progress-schema": self.home}
        self.uri = self.server.rpartition("/")[0] + ("/postgres" if kind == "postgres" else "/")

    def connect(self, **settings: Any) -> Any:
        """Return a connection of the driver that commits each statement."""
        if self.kind == "postgres":
            return psycopg.connect(self.server, autocommit=True)
        address = parse_uri(self.server)
        return pymysql.connect(host=address.host, port=address.port, user=address.user, autocommit=True, charset="utf8mb4", **settings)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements; return the rows of the last."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def name(self, schema: str, table: str) -> str:
        """Return the quoted name of an upstream's table in the target."""
        quote = '"' if self.kind == "postgres" else "`"
        return f"{quote}{self.prefix}{schema}{quote}.{quote}{table}{quote}"

    def rows(self, schema: str, table: str, columns: str = "id, note") -> list[tuple[Any, ...]]:
        """Return the rows of an upstream's table."""
        return self.run(f"SELECT {columns} FROM {self.name(schema, table)} ORDER BY 1")

    def kit(self, run: SinkRun | None = None, **options: str) -> Kit:
        """Return how the contract suite drives it."""
        kind, chosen, run = kind_of(self.uri), self.options | options, run or SinkRun("mine", 1)
        return Kit(
            lambda: kind.make_sink(self.uri, chosen, None, run),
            lambda: kind.make_maintainer(self.uri, chosen, lambda: None, run),
            lambda schema, table: dict(self.rows(schema, table)),
        )


@contextlib.contextmanager
def mariadb_kit(_: Path) -> Iterator[Kit]:
    """Yield tables of a MariaDB as target."""
    yield TargetDatabase("mariadb").kit()


@contextlib.contextmanager
def mysql_kit(_: Path) -> Iterator[Kit]:
    """Yield tables of a MySQL as target."""
    yield TargetDatabase("mysql").kit()


@contextlib.contextmanager
def postgres_kit(_: Path) -> Iterator[Kit]:
    """Yield tables of a PostgreSQL as target."""
    yield TargetDatabase("postgres").kit()
