"""Machines that end like a lamp, one after the other, while the event store is on shared storage and tables are written to.

Each machine is killed at a durable step or at any moment, often with its disk, and the next one goes on. A writer keeps a book of what it
committed (``testing/checks/lives/ledger.py``): in the end every change of it is in the files once, under one ts, and nothing else is.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.model.failpoints import POINTS
from testing.checks.lives.ledger import Ledger
from testing.checks.target_audit import digests, numbering_problems
from testing.servers.databases.live_database import Database, live_database
from testing.servers.seaweed import seaweed_s3
from testing.servers.sparkless_process import SparklessProcess
from testing.servers.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
WAIT_S = 240.0
RARE = ("spool-write", "cut-record", "transactions", "http-post", "dead-letter", "kafka-commit", "lake-commit")
"""Steps that a feed such as this one does not come to."""
STEPS = sorted(p for p in POINTS if p.partition(":")[0] not in RARE)


class Machines:
    """A feed, and the machine that runs it now."""

    def __init__(self, parts: ExitStack, database: Database, folder: Path, objects: str, seed: int) -> None:
        self._database, self._folder, self._objects = database, folder, objects
        self._target = folder / "files"
        self._schema = database.make_schema()
        self._published: dict[str, str] = {}
        self._number = 0
        self._said = ""
        self.machine: SparklessProcess | None = None
        self.ledger = Ledger(database, self._schema, seed)
        parts.callback(self.close)
        self._meta_url = sqlite_url(folder / "meta.db")
        self._meta = parts.enter_context(MetaDatabase(self._meta_url))

    def start(self, failpoints: str = "") -> None:
        """Start the next machine, on the disk of the last one where that is left; the first one creates the feed."""
        feed = {"name": "f", "source": "shop", "tables": [f"{self._schema}.*"], "sink": {"uri": self._target.as_uri()}}
        made = feed | {"flush-interval": "200ms"} if self.machine is None else None
        disk = self._folder / f"disk{self._number}"
        self.machine = SparklessProcess(disk, "one", self._database.uri, self._meta_url, self._objects, made, failpoints)

    def progress(self) -> None:
        """Wait until more rows are committed."""
        rows = self._meta.get_feed("f").rows_total
        self._until("rows are delivered", lambda: self._meta.get_feed("f").rows_total > rows)

    def die(self, failpoint: str, *, with_disk: bool) -> None:
        """Let a machine come to a durable step, and no further."""
        self.start(failpoint)
        assert self.machine is not None
        machine = self.machine
        self._until(f"the end at {failpoint}", lambda: machine.ended)
        self._ended(with_disk=with_disk)

    def kill(self, *, with_disk: bool) -> None:
        """End the machine now."""
        assert self.machine is not None
        self.machine.kill()
        self._ended(with_disk=with_disk)

    def _ended(self, *, with_disk: bool) -> None:
        assert self.machine is not None
        self.machine.close()
        self._look()
        if with_disk:
            self._said += self.machine.output()
            shutil.rmtree(self._folder / f"disk{self._number}")
            self._number += 1

    def check(self) -> None:
        """Compare the files with the book, once everything is there."""
        self.ledger.stop()
        self._until("the files hold every change", lambda: not any(p.startswith("missing") for p in self.ledger.problems(self._target)))
        assert self.ledger.problems(self._target) == [], self._told()
        assert numbering_problems(self._target) == []
        self._look()

    def close(self) -> None:
        """End everything. May be called twice."""
        self.ledger.stop()
        if self.machine is not None:
            self.machine.close()

    def _look(self) -> None:
        """No published file changes."""
        found = digests(self._target)
        assert {name: found.get(name) for name in self._published} == self._published
        self._published |= found

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        try:
            wait_until(condition, what, WAIT_S)
        except AssertionError as error:
            found = self.ledger.problems(self._target) if (self._target / "metadata").exists() else ["no checkpoint"]
            raise AssertionError(f"{error}: {self._meta.get_feed('f')}\n{found}\n{self._told()}") from None

    def _told(self) -> str:
        """Return the last that machines said."""
        assert self.machine is not None
        return (self._said + self.machine.output())[-20_000:]


@pytest.fixture(scope="module", params=["mariadb", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with live_database(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


@contextmanager
def machines(database: Database, folder: Path, objects: str, seed: int) -> Iterator[Machines]:
    with ExitStack() as parts:
        opened = Machines(parts, database, folder, objects, seed)
        opened.start()
        opened.progress()
        opened.ledger.start()
        opened.progress()
        yield opened


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_machine_is_lost(database: Database, tmp_path: Path) -> None:
    with machines(database, tmp_path, (tmp_path / "shared").as_uri(), 1) as arena:
        arena.kill(with_disk=True)
        arena.start()
        arena.check()


@pytest.mark.chaos
@pytest.mark.parametrize("where", ["file", "s3"])
def test_machines_are_lost_at_every_step(database: Database, tmp_path: Path, where: str) -> None:
    rng = random.Random(where)
    with ExitStack() as parts:
        objects = (tmp_path / "shared").as_uri() if where == "file" else parts.enter_context(seaweed_s3(tmp_path / "s3")).uri("events")
        arena = parts.enter_context(machines(database, tmp_path, objects, 2))
        arena.kill(with_disk=True)
        for point in STEPS:
            arena.die(f"{point}=kill@{rng.randint(1, 4)}", with_disk=rng.random() < 0.6)
        arena.start()
        arena.check()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(6))
def test_machines_are_lost_at_any_moment(database: Database, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with machines(database, tmp_path, (tmp_path / "shared").as_uri(), seed) as arena:
        for _ in range(12):
            arena.kill(with_disk=rng.random() < 0.6)
            arena.start()
            if rng.random() < 0.5:
                arena.progress()
            threading.Event().wait(rng.random() * 2.5)
        arena.check()
