"""A feed on PostgreSQL is controlled while it runs, without Spark: a log has one reader, and tables that come in are read by tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.clock import SystemClock
from penstock.server.verify.moving_verification import MovingVerifier
from penstock.server.verify.verification import open_reader
from testing.checks.target_audit import numbering_problems
from testing.paths.controlled_server import ControlledServer
from testing.paths.one_log_path import OneLogPath
from testing.servers.databases.postgres_lab import PostgresLab
from testing.servers.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[PostgresLab]:
    lab = PostgresLab(tmp_path / "server")
    lab.sql("CREATE SCHEMA shop")
    for table in "abc":
        lab.sql(f"CREATE TABLE shop.{table} (id int PRIMARY KEY, v text); INSERT INTO shop.{table} VALUES (1, 'first'), (2, 'second')")
    yield lab
    lab.stop()


@pytest.fixture
def server(lab: PostgresLab, tmp_path: Path) -> Iterator[ControlledServer]:
    (tmp_path / "feed").mkdir()
    path = OneLogPath(tmp_path / "feed", lab.uri, ["shop.*"])
    with contextlib.closing(ControlledServer(path, path.upstream, lab.uri)) as opened:
        yield opened


def verify(server: ControlledServer, rows: int) -> None:
    def settled_and_delivered() -> int:
        ts = server.path.log.settled_ts()
        server.delivers(ts)
        return ts

    ids = sorted({d.table_id for d in server.meta.dispatchers("g") or []})
    verdict = MovingVerifier(server.upstream, settled_and_delivered, SystemClock()).verify(open_reader(server.out.as_uri(), {}), ids)
    verdict.check()
    assert verdict.rows == rows
    assert numbering_problems(server.out) == []


def test_pause_and_alter(lab: PostgresLab, server: ControlledServer) -> None:
    server.create("shop.a", "shop.b")
    wait_until(server.has_tables("shop.a", "shop.b"), "both are in", 60)
    server.delivers(1)
    verify(server, 4)
    server.do("pause")
    server.reaches("paused")
    lab.sql("INSERT INTO shop.a VALUES (3, 'while paused')")
    server.do("alter", changes={"tables": ["shop.a", "shop.c"]})
    server.do("resume")
    wait_until(server.has_tables("shop.a", "shop.c"), "c is in, and b is out", 60)
    lab.sql("INSERT INTO shop.c VALUES (3, 'after')")
    verify(server, 6)
    lab.sql("DELETE FROM shop.b WHERE id = 1; UPDATE shop.b SET v = 'changed' WHERE id = 2; INSERT INTO shop.b VALUES (3, 'while out')")
    server.do("alter", changes={"tables": ["shop.*"]})
    wait_until(server.has_tables("shop.a", "shop.b", "shop.c"), "all are in", 60)
    lab.sql("INSERT INTO shop.b VALUES (4, 'after')")
    verify(server, 9)
