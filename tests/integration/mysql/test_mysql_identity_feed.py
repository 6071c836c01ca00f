"""A feed on MariaDB whose tables are renamed, swapped, dropped and made again, also while the process is away or reads a snapshot."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.feed.bootstrap.part import BootstrapPart
from penstock.source.mysql.log_reader import LogReaderSettings
from penstock.source.mysql.upstream import MySqlUpstream
from penstock.source.single_log import LogPosition, LogStep
from testing.paths.one_log_path import OneLogPath
from testing.servers.databases.mysql_lab import BINLOG, connect, run
from testing.servers.loopback_server import mariadb

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mariadb(tmp_path_factory.mktemp("mariadb"), (*BINLOG, "--binlog-row-metadata=FULL")) as uri:
        yield uri


def made(uri: str, root: Path, name: str, *before: str) -> tuple[object, OneLogPath]:
    writer = connect(uri)
    run(writer, f"create database {name}", f"use {name}", *before)
    root.mkdir()
    return writer, OneLogPath(root, uri, [f"{name}.*"])


def delivered(path: OneLogPath) -> dict[str, int]:
    """Deliver everything and compare it with the server; return how many rows each table has."""
    path.drain()
    verdict = path.verify()
    verdict.check()
    return {t.name.split(".")[1]: t.rows for t in verdict.tables}


def test_a_name_that_is_used_again_and_again(server: str, tmp_path: Path) -> None:
    writer, path = made(server, tmp_path / "feed", "reused", "create table first(id int primary key)")
    path.begin()
    path.drain()
    run(writer, "create table t1(a int primary key, b int)", "insert into t1 values(1,1),(2,2)", "rename table t1 to t1_old")
    run(writer, "create table t1(a int primary key)", "insert into t1 values(1),(2)", "rename table t1 to t1_old2")
    run(writer, "create table t1(a int primary key)", "insert into t1 values(5)")
    assert delivered(path) == {"first": 0, "t1": 1, "t1_old": 2, "t1_old2": 2}
    path.restart()
    run(writer, "rename table t1 to tmp, t1_old to t1, tmp to t1_old", "insert into t1 values(3,3)", "insert into t1_old values(6)")
    assert delivered(path) == {"first": 0, "t1": 3, "t1_old": 2, "t1_old2": 2}
    path.close()


def test_tables_made_and_swapped_while_the_process_is_away(server: str, tmp_path: Path) -> None:
    writer, path = made(server, tmp_path / "feed", "away", "create table t0(id int primary key)", "insert into t0 values(1)")
    path.begin()
    path.drain()
    path.close_services()
    run(writer, "create table t1(id int primary key, v int)", "insert into t1 values(1,1)", "insert into t0 values(2)")
    run(writer, "alter table t1 add column w int default 3", "insert into t1 values(2,2,2)")
    run(
        writer,
        "create table t0_new(id int primary key)",
        "insert into t0_new values(7),(8),(9)",
        "drop table t0",
        "rename table t0_new to t0",
    )
    path.open()
    path.begin()
    assert delivered(path) == {"t0": 3, "t1": 2}
    path.close()


@pytest.mark.parametrize(
    ("name", "ddls", "tables"),
    [
        (
            "during_made_again",
            ("drop table t", "create table t(k varchar(9) primary key, w int)", "insert into t values('x',1)"),
            {"t": 1, "other": 1},
        ),
        ("during_column_renamed", ("alter table t rename column v to x", "insert into t values(900,1)"), {"t": 301, "other": 1}),
        ("during_column_dropped", ("alter table t drop column v", "insert into t values(900)"), {"t": 301, "other": 1}),
        ("during_renamed", ("rename table t to moved", "insert into moved values(900,1)"), {"moved": 301, "other": 1}),
        ("during_dropped", ("drop table t",), {"other": 1}),
    ],
)
def test_ddls_while_the_first_snapshot_is_read(
    server: str, tmp_path: Path, name: str, ddls: tuple[str, ...], tables: dict[str, int]
) -> None:
    before = ("create table t(id int primary key, v int)", "create table other(id int primary key)", "insert into other values(1)")
    writer, path = made(server, tmp_path / "feed", name, *before, "insert into t select seq, seq from seq_1_to_300")
    pending = [*ddls]

    def change(part: BootstrapPart) -> None:
        if part.table is not None and part.table.table == "t" and pending:
            run(writer, *pending)
            pending.clear()

    path.close_services()
    path.open(change)
    path.begin()
    assert delivered(path) == tables
    path.close()


class SteppedReader:
    """The reader of a log whose steps are taken by hand, so that it stands wherever a test wants it."""

    def __init__(self, uri: str) -> None:
        # Without marks: nothing but what is committed makes a position.
        self.upstream = MySqlUpstream(uri, LogReaderSettings(mark_interval_s=3600.0))
        self.upstream.adopt_schemas(())
        self.start = self.upstream.first_position()

    def read(self) -> Iterator[LogStep]:
        """Begin to read at the start, as a puller does where a span joins that is further back; no step is taken."""
        return self.upstream.read_log(self.start, (), lambda _: True, threading.Event())

    def read_to_end(self, steps: Iterator[LogStep]) -> LogPosition:
        """Take steps until everything that the log holds now was read."""
        end = self.upstream.log_end()
        return next(s.position for s in steps if s.position is not None and self.upstream.reached(s.position.text, end))

    def names(self, database: str) -> dict[str, tuple[str, ...]]:
        """Return the tables that are told, with their columns."""
        return {t.table: tuple(c.name for c in t.columns) for t in self.upstream.list_tables() if t.schema == database}


def shown_names(writer: object, database: str) -> dict[str, tuple[str, ...]]:
    """Return what the server says of the same."""
    with writer.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute(
            f"select table_name, column_name from information_schema.columns where table_schema = '{database}' order by 1, ordinal_position"
        )
        found: dict[str, tuple[str, ...]] = {}
        for table, column in cursor.fetchall():
            found[table] = (*found.get(table, ()), column)
        return found


@pytest.mark.parametrize(
    ("name", "ddls"),
    [
        ("back_made_again", ("drop table t", "create table t(k varchar(9) primary key, w int)", "insert into t values('x',1)")),
        ("back_made", ("create table late(a int primary key)", "insert into late values(1)")),
        ("back_renamed", ("rename table t to moved",)),
        ("back_swapped", ("rename table t to tmp, other to t, tmp to other",)),
        ("back_truncated", ("truncate table t", "alter table t add column x int")),
        ("back_dropped", ("drop table t",)),
    ],
)
def test_a_reader_that_went_back_takes_no_table_away(server: str, name: str, ddls: tuple[str, ...]) -> None:
    """Whoever decides that a table is gone, or what is verified, asks while the reader stands before DDLs that were read already."""
    writer = connect(server)
    run(
        writer,
        f"create database {name}",
        f"use {name}",
        "create table t(id int primary key, v int)",
        "create table other(o int primary key)",
    )
    reader = SteppedReader(server)
    with contextlib.closing(reader.upstream):
        run(writer, *ddls)
        reader.read_to_end(reader.read())
        newest = reader.upstream.list_tables()
        reader.read()
        assert reader.names(name) == shown_names(writer, name)
        assert list(reader.upstream.list_tables()) == list(newest)


def test_tables_are_told_only_where_the_log_was_read_to_its_end(server: str) -> None:
    """A reader that stalls before a DDL: whoever asks for the tables waits for it."""
    writer = connect(server)
    run(writer, "create database stalled", "use stalled", "create table t(id int primary key)")
    reader = SteppedReader(server)
    with contextlib.closing(reader.upstream), ThreadPoolExecutor(1) as pool:
        steps = reader.read()
        run(writer, "drop table t", "create table u(a int primary key)")
        told = pool.submit(reader.names, "stalled")
        reader.read_to_end(steps)
        assert told.result(60) == shown_names(writer, "stalled") == {"u": ("a",)}
