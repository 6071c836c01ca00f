"""A feed on MariaDB whose tables are renamed, swapped, dropped and made again, also while the process is away or reads a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.feed.bootstrap.part import BootstrapPart
from testing.paths.one_log_path import OneLogPath
from testing.servers.loopback_server import mariadb
from testing.servers.mysql_lab import BINLOG, connect, run

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
