"""A server is killed in the middle of delivering and started again: nothing is missing, nothing is there twice, no file changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.server_client import ServerClient
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.model.batch import Op
from penstock.model.failpoints import VARIABLE
from penstock.server.verify.verification import open_reader
from penstock.source.dataserver.workload import Workload, WorkloadSettings
from testing.checks.target_audit import DeliveredChanges, checkpoint_of, data_files, digests, numbering_problems
from testing.servers.command_process import CommandProcess

pytestmark = pytest.mark.timeout(600)

RATE = 500
START_S = 120.0
BEFORE_COMMIT = "progress:before=kill@3"
"""A server that has this failpoint dies when the files of its third window are there and nothing of it is committed."""


class Arena:
    """A feed under load, and the server that runs it now."""

    def __init__(self, upstream: Any, waiting: Any, folder: Path) -> None:
        self.upstream, self.waiting = upstream, waiting
        self.data, self.target = folder / "data", folder / "files"
        self.published: dict[str, str] = {}
        self.start()
        self.meta = MetaDatabase(sqlite_url(self.data / "meta.db"))
        with ServerClient(self.url) as client:
            client.create_feed(
                {"name": "f", "tables": ["shop.*"], "sink": {"uri": self.target.as_uri()}, "flush-interval": "500ms", "spans-per-table": 2}
            )

    def start(self, failpoints: str = "") -> None:
        options = ["--source", self.upstream.uri, "--data-dir", str(self.data), "--http-port", "0", "--spark-master", "local[2]"]
        self.server = CommandProcess("server", *options, "--set", "spark.warm-up=false", environment={VARIABLE: failpoints})
        try:
            self.url = self.server.wait_for("penstock server: ", START_S).split()[0]
        except BaseException:
            self.server.stop()
            raise

    def close(self) -> None:
        self.server.stop()
        self.meta.close()

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        self.waiting.until(what, condition, explain=lambda: f"{self.meta.get_feed('f')}\n{self.server.output}")

    def committed_window(self) -> None:
        """Wait until the server that runs now has committed a window with rows."""
        before = self.meta.get_feed("f").rows_total
        self.until("a committed window", lambda: self.meta.get_feed("f").rows_total > before)

    def file_beyond_progress(self) -> bool:
        """Return whether the target has a data file that no committed window has."""
        committed = self.meta.get_feed("f").files_total
        return len(data_files(self.target)) > committed

    def window_recorded(self) -> bool:
        """Return whether a window is planned of which no file is there yet."""
        return self.meta.pending_window("f") is not None and not self.file_beyond_progress()

    def checkpoint_published(self) -> bool:
        return checkpoint_of(self.target) == self.meta.get_feed("f").checkpoint_ts

    def kill(self, moment: str, *, children: bool) -> None:
        """Kill the server at a moment, and note the files that are there."""
        self.committed_window()
        self.until(moment, getattr(self, moment))
        self.server.kill(children=children)
        self.published |= digests(self.target)

    def restart_and_die(self, failpoints: str) -> None:
        """Start a server that dies at a durable step, wait for that, kill what it started, and note the files that are there."""
        self.restart(failpoints)
        self.waiting.until("the end of the server", lambda: self.server.ended, explain=lambda: self.server.output)
        self.server.stop()
        self.published |= digests(self.target)

    def restart(self, failpoints: str = "") -> None:
        killed = self.server
        self.start(failpoints)
        # What outlived the killed process had its time to do harm; its end is not waited for.
        killed.stop()


@pytest.fixture
def arena(upstream, waiting, tmp_path: Path) -> Iterator[Arena]:
    opened = Arena(upstream, waiting, tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def workload(upstream) -> Iterator[Workload]:
    opened = Workload(upstream, WorkloadSettings(rate=RATE, rows=10_000_000, ddls=False))
    opened.setup()
    yield opened
    opened.stop()


def check(arena: Arena, workload: Workload) -> None:
    """Let the feed drain, then compare everything that arrived with what was written."""
    report = workload.stop()
    with ServerClient(arena.url) as client:
        shown = arena.waiting.drained(client, "f", arena.target, arena.upstream.current_ts())
        verdict = client.verify_feed("f")
    assert verdict["identical"], verdict
    changes = DeliveredChanges(open_reader(arena.target.as_uri(), {}))
    assert changes.problems() == []
    assert (shown["rows"], shown["files"]) == (changes.rows, len(data_files(arena.target)))
    assert verdict["rows"] == report.inserts - report.deletes
    assert changes.operations() == {Op.INSERT: report.inserts, Op.UPDATE: report.updates, Op.DELETE: report.deletes}
    assert numbering_problems(arena.target) == []
    after = digests(arena.target)
    assert {name: after.get(name) for name in arena.published} == arena.published


def ddl(arena: Arena, column: str) -> None:
    arena.upstream.execute_ddl(f"ALTER TABLE shop.orders ADD COLUMN {column} INT DEFAULT 5")


def test_killed_in_the_middle_of_windows(workload: Workload, arena: Arena) -> None:
    workload.start()
    # First only the server: its JVM and executors live a little longer, and may finish what they were doing.
    arena.kill("file_beyond_progress", children=False)
    ddl(arena, "while_down")
    arena.restart_and_die(BEFORE_COMMIT)
    assert arena.file_beyond_progress()
    arena.restart()
    ddl(arena, "at_the_end")
    check(arena, workload)


@pytest.mark.chaos
def test_killed_and_the_event_store_is_lost(workload: Workload, arena: Arena) -> None:
    workload.start()
    arena.committed_window()
    arena.server.stop()
    arena.restart_and_die(BEFORE_COMMIT)
    assert arena.file_beyond_progress()
    shutil.rmtree(arena.data / "store")
    arena.restart()
    check(arena, workload)


@pytest.mark.chaos
@pytest.mark.parametrize("children", [False, True])
@pytest.mark.parametrize("lose_store", [False, True])
@pytest.mark.parametrize("moment", ["file_beyond_progress", "window_recorded", "checkpoint_published"])
def test_killed_at_any_moment(workload: Workload, arena: Arena, moment: str, lose_store: bool, children: bool) -> None:
    workload.start()
    for column in ("first", "second"):
        arena.kill(moment, children=children)
        if lose_store:
            shutil.rmtree(arena.data / "store")
        ddl(arena, column)
        arena.restart()
    check(arena, workload)


@pytest.mark.chaos
@pytest.mark.parametrize("point", ["window-record:after=kill@3", BEFORE_COMMIT, "metadata:before=kill@3"])
def test_the_server_dies_at_durable_steps(workload: Workload, arena: Arena, point: str) -> None:
    workload.start()
    arena.committed_window()
    arena.server.stop()
    for _ in range(2):
        arena.restart_and_die(point)
    arena.restart()
    check(arena, workload)


POINTS = ["data-put:after=kill@7", "index-put:before=kill@5"]


@pytest.mark.chaos
@pytest.mark.parametrize("points", [*POINTS, ",".join(POINTS)])
def test_workers_die_at_durable_steps(workload: Workload, arena: Arena, points: str) -> None:
    """With a local master Spark attempts a task once, so the server starts the feed again."""
    workload.start()
    arena.committed_window()
    arena.server.stop()
    arena.start(points)
    for _ in range(4):
        arena.committed_window()
    arena.published |= digests(arena.target)
    assert "feed is tried again" in arena.server.output
    arena.server.stop()
    arena.start()
    check(arena, workload)
