"""The demo's own MariaDB and PostgreSQL, and its workload on them: what it counts is what the databases hold."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import psutil
import pytest

from penstock.cli.demo.databases import STARTERS
from penstock.cli.demo.sql_workload import DDLS, DIALECTS, SqlWorkload
from penstock.model.errors import PenstockError
from penstock.source.dataserver.workload import WorkloadSettings

TABLES = ("orders", "order_items", "products")
BEFORE, ROWS = 500, 3_000


def counted(kind: str, uri: str) -> int:
    """How many rows the tables have, by the server's own count, seen by a session of its own."""
    total = 0
    with contextlib.closing(DIALECTS[kind](uri)) as session:
        for table in TABLES:
            session.execute(f"CREATE TABLE shop.seen_{table} AS SELECT * FROM shop.{table}")
            total += session.execute(f"DELETE FROM shop.seen_{table}")
        session.execute("COMMIT")
    return total


@pytest.mark.parametrize("kind", sorted(STARTERS))
def test_what_the_workload_counts_is_what_the_database_holds(kind: str, tmp_path: Path) -> None:
    here = psutil.Process()
    before = {child.pid for child in here.children(recursive=True)}
    with STARTERS[kind](tmp_path / "database", threading.Event()) as uri:
        started = [child for child in here.children(recursive=True) if child.pid not in before]
        assert {child.username() for child in started} - {"root"}
        with contextlib.closing(DIALECTS[kind](uri)) as session:
            workload = SqlWorkload(session, WorkloadSettings(rate=6_000, rows=ROWS, rollback_share=0.3), threading.Event())
            workload.setup(BEFORE)
            assert (workload.report.rows, counted(kind, uri)) == (BEFORE, BEFORE)
            for table in TABLES:
                session.execute(f"DROP TABLE shop.seen_{table}")
            session.execute("COMMIT")
            workload.run()
            report = workload.report
        assert report.rows == BEFORE + ROWS == report.inserts + report.updates + report.deletes
        assert min(report.updates, report.deletes, report.rollbacks) > 0
        assert (report.ddls, workload.last_ddl) == (len(DDLS), DDLS[-1])
        assert counted(kind, uri) == report.inserts - report.deletes
    assert psutil.wait_procs(started, timeout=240)[1] == []


@pytest.mark.parametrize("kind", sorted(STARTERS))
def test_a_start_that_is_stopped_leaves_no_process(kind: str, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(PenstockError) as caught, STARTERS[kind](tmp_path / "database", stop):
        pass
    assert caught.value.code == "CANCELLED"
    assert [child for child in psutil.Process().children(recursive=True) if child.pid not in before] == []
