"""The sources under contract: each with a table ``t`` of a key ``id``, and the few things that a suite does to it.

A new source adds a rig here and names it where its protocols are listed; a server is started by the first test that wants it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pymysql
import pytest
import sqlalchemy as sa

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.model.clock import SystemClock
from penstock.model.rows.row_key import encode_row_keys
from penstock.model.table import TableSchema
from penstock.source.catalog import open_upstream
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from penstock.source.postgres.slot import release_slot
from penstock.source.postgres.upstream import PostgresSettings, PostgresUpstream
from testing.servers.loopback_server import mariadb, postgres
from testing.twins.logged_database import MemoryDatabase

SLOT_FREE_S = 120.0


@pytest.fixture(scope="session")
def new_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Give what makes an empty database of a kind and returns its URL; each server starts with the first test that wants it."""
    servers: dict[str, str] = {}
    made = 0
    with contextlib.ExitStack() as running:

        def make_database(kind: str) -> str:
            nonlocal made
            if kind not in servers:
                start = {"mariadb": mariadb, "postgres": postgres}[kind]
                servers[kind] = running.enter_context(start(tmp_path_factory.mktemp(kind)))
            address = sa.make_url(servers[kind])
            made += 1
            driver = {"mariadb": "mysql+pymysql", "postgres": "postgresql+psycopg"}[kind]
            engine = sa.create_engine(address.set(drivername=driver), isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.exec_driver_sql(f"CREATE DATABASE meta{made}")
            engine.dispose()
            return address.set(database=f"meta{made}").render_as_string(hide_password=False)

        yield make_database


@pytest.fixture(params=["sqlite", "mariadb", "postgres"])
def url(request: pytest.FixtureRequest, new_database: Callable[[str], str], tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "meta.db") if request.param == "sqlite" else new_database(request.param)


@pytest.fixture
def meta(url: str) -> Iterator[MetaDatabase]:
    with MetaDatabase(url) as database:
        yield database


class DataServerRig:
    """The embedded data server."""

    def __init__(self, uri: str) -> None:
        self.upstream: Any = open_upstream(uri)
        self.upstream_holds_nothing = False
        self.schema = "d"
        self.upstream.execute_ddl("CREATE DATABASE d")
        for name in ("t", "other"):
            self.upstream.execute_ddl(f"CREATE TABLE d.{name} (id BIGINT PRIMARY KEY, v INT)")

    def put(self, ids: Sequence[int], table: str = "t") -> None:
        with self.upstream.txn() as txn:
            txn.put(self.upstream.table("d", table), {"id": pa.array(ids, pa.int64()), "v": pa.array([1] * len(ids))})

    def delete(self, ids: Sequence[int]) -> None:
        table = self.upstream.table("d", "t")
        with self.upstream.txn() as txn:
            txn.delete(table, encode_row_keys(table, {"c1": pa.array(ids, pa.int64())}))

    def alter(self) -> None:
        self.upstream.execute_ddl("ALTER TABLE d.t ADD COLUMN z BIGINT")


class SqlRig:
    """A database that is spoken to in SQL."""

    def __init__(self, schema: str, upstream: Any, run: Callable[[str], None]) -> None:
        self.schema = schema
        self.upstream = upstream
        self.upstream_holds_nothing = not isinstance(upstream, PostgresUpstream)
        self._run = run

    def put(self, ids: Sequence[int], table: str = "t") -> None:
        self._run(f"INSERT INTO {self.schema}.{table} (id, v) VALUES {', '.join(f'({i}, 1)' for i in ids)}")

    def delete(self, ids: Sequence[int]) -> None:
        self._run(f"DELETE FROM {self.schema}.t WHERE id IN ({', '.join(map(str, ids))})")

    def alter(self) -> None:
        self._run(f"ALTER TABLE {self.schema}.t ADD COLUMN z BIGINT")


class MemoryRig:
    """The twin of a source with one log."""

    schema = "shop"
    upstream_holds_nothing = False

    def __init__(self) -> None:
        self.upstream: Any = MemoryDatabase()
        self._ids = {"t": 1, "other": 2}
        for table_id in self._ids.values():
            self.upstream.commit(table_id)

    def put(self, ids: Sequence[int], table: str = "t") -> None:
        self.upstream.commit(self._ids[table], ids)

    def delete(self, ids: Sequence[int]) -> None:
        self.upstream.commit(1, gone=ids)

    def alter(self) -> None:
        self.upstream.alter(1)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Give what returns the URI of a server of a kind, started once."""
    started: dict[str, str] = {}
    with contextlib.ExitStack() as running:

        def uri_of(kind: str) -> str:
            if kind not in started:
                directory = tmp_path_factory.mktemp(kind)
                if kind == "mariadb":
                    server = mariadb(directory, ("--log-bin=bin", "--server-id=1", "--binlog-format=ROW"))
                else:
                    server = postgres(directory, ("-c", "wal_level=logical"))
                started[kind] = running.enter_context(server)
            return started[kind]

        yield uri_of


_NUMBERS = itertools.count(1)


@contextlib.contextmanager
def dataserver_rig(servers: Callable[[str], str]) -> Iterator[DataServerRig]:
    with DataServer(DataServerSettings(stores=2, resolved_interval_ms=20)) as server:
        rig = DataServerRig(server.uri)
        with contextlib.closing(rig.upstream):
            yield rig


@contextlib.contextmanager
def memory_rig(servers: Callable[[str], str]) -> Iterator[MemoryRig]:
    yield MemoryRig()


@contextlib.contextmanager
def mariadb_rig(servers: Callable[[str], str]) -> Iterator[SqlRig]:
    uri, schema = servers("mariadb"), f"c{next(_NUMBERS)}"
    port = urlsplit(uri).port or 0
    with contextlib.closing(pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True)) as connection:

        def run(statement: str) -> None:
            with connection.cursor() as cursor:
                cursor.execute(statement)

        run(f"CREATE DATABASE {schema}")
        for name in ("t", "other"):
            run(f"CREATE TABLE {schema}.{name} (id BIGINT PRIMARY KEY, v INT)")
        with contextlib.closing(open_upstream(uri)) as upstream:
            yield SqlRig(schema, upstream, run)
        run(f"DROP DATABASE {schema}")


@contextlib.contextmanager
def postgres_rig(servers: Callable[[str], str]) -> Iterator[SqlRig]:
    uri, schema = servers("postgres"), f"c{next(_NUMBERS)}"
    with psycopg.connect(uri, autocommit=True) as connection:

        def run(statement: str) -> None:
            connection.execute(statement)

        run(f"CREATE SCHEMA {schema}")
        for name in ("t", "other"):
            run(f"CREATE TABLE {schema}.{name} (id BIGINT PRIMARY KEY, v INT)")
        # A snapshot that nobody reads a log beside need not wait for a reader.
        upstream = PostgresUpstream(f"{uri}?slot={schema}", PostgresSettings(reader_wait_s=0.0))
        with contextlib.closing(upstream):
            yield SqlRig(schema, upstream, run)
        release_slot(upstream.address, SystemClock(), SLOT_FREE_S)
        run(f"DROP SCHEMA {schema} CASCADE")


RIGS: dict[str, Callable[[Callable[[str], str]], Any]] = {
    "dataserver": dataserver_rig,
    "mariadb": mariadb_rig,
    "memory log": memory_rig,
    "postgres": postgres_rig,
}


@pytest.fixture(params=sorted(RIGS))
def source(request: pytest.FixtureRequest, servers: Callable[[str], str]) -> Iterator[Any]:
    """Every source."""
    with RIGS[request.param](servers) as rig:
        yield rig


@pytest.fixture(params=["mariadb", "memory log", "postgres"])
def logged(request: pytest.FixtureRequest, servers: Callable[[str], str]) -> Iterator[Any]:
    """Sources with one log."""
    with RIGS[request.param](servers) as rig:
        yield rig


@pytest.fixture
def table_of() -> Callable[..., TableSchema]:
    """Give what returns the newest version of a rig's table."""

    def find(rig: Any, name: str = "t") -> TableSchema:
        wanted = {"t": ("t", "t1"), "other": ("other", "t2")}[name]
        return next(t for t in rig.upstream.list_tables() if t.schema == rig.schema and t.table in wanted)

    return find


@pytest.fixture
def unreachable() -> Callable[[Any], None]:
    """Give what asks a source that is gone: a server of which nothing is held open by the upstream is asked where none listens."""

    def ask(rig: Any) -> None:
        rig.upstream.close()
        if rig.upstream_holds_nothing:
            open_upstream("mysql://root@127.0.0.1:1/")
        rig.upstream.current_ts()

    return ask
