"""Servers in processes of their own that are stopped and continued, and a meta database that is restarted, while a log is read.

A server that stands still for longer than its leases loses the log and its feeds to another. When it goes on, it must notice that before
it writes anything. The files are read by a reader of their own (``testing/checks/lives/files.py``), for which a change that is missing or
doubled is an error, and compared with the table itself.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.meta.database import MetaDatabase
from penstock.meta.records import ReachedState
from penstock.model.errors import PenstockError
from testing.checks.lives.files import read_target
from testing.checks.target_audit import digests, numbering_problems
from testing.servers.clusters.burners import LOAD, burners
from testing.servers.databases.live_database import Database, live_database
from testing.servers.databases.mysql_lab import restarted
from testing.servers.databases.postgres_lab import PostgresLab
from testing.servers.loopback_server import mariadb
from testing.servers.sparkless_process import SparklessProcess
from testing.servers.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
WAIT_S = 240.0


class Writer:
    """Inserts, changes and deletes rows all the time, several rows in a transaction."""

    def __init__(self, database: Database, table: str, seed: int) -> None:
        self._database, self._table, self._rng = database, table, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.transactions = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _write(self) -> None:
        with contextlib.closing(self._database.connect()) as connection, connection.cursor() as cursor:
            first = 1
            while not self._stop.wait(0.02):
                count = self._rng.randint(1, 5)
                values = ",".join(f"({n}, 'row {n}')" for n in range(first, first + count))
                old = self._rng.randrange(first)
                cursor.execute("BEGIN")
                cursor.execute(f"INSERT INTO {self._table} VALUES {values}")
                cursor.execute(f"UPDATE {self._table} SET note = 'changed {self.transactions}' WHERE id = {old}")
                cursor.execute(f"DELETE FROM {self._table} WHERE id = {self._rng.randrange(first)}")
                cursor.execute("COMMIT")
                first += count
                self.transactions += 1


class Group:
    """Two servers, a feed that either may run, and a writer."""

    def __init__(self, parts: ExitStack, database: Database, meta_url: str, folder: Path, objects: str = "") -> None:
        self.parts, self.database, self.meta_url, self.folder, self.objects = parts, database, meta_url, folder, objects
        self.target = folder / "files"
        self.schema = database.make_schema()
        database.run(f"CREATE TABLE {self.schema}.orders (id INT PRIMARY KEY, note VARCHAR(40))")
        self.meta = parts.enter_context(MetaDatabase(meta_url))
        self.servers: dict[str, SparklessProcess] = {}
        self.first_seen: dict[str, str] = {}
        self.writer = Writer(database, f"{self.schema}.orders", 5)
        parts.callback(self.writer.stop)

    def start(self, name: str) -> None:
        sink = {"uri": self.target.as_uri()}
        feed = {"name": "f", "source": "shop", "tables": [f"{self.schema}.*"], "sink": sink, "flush-interval": "300ms"}
        made = feed if not self.servers else None
        process = SparklessProcess(self.folder / name, name, self.database.uri, self.meta_url, self.objects, made)
        self.servers[name] = process
        self.parts.callback(process.close)

    def owner(self) -> str:
        return self.meta.get_feed("f").owner.partition("~")[0].partition("-")[0]

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        def held() -> bool:
            try:
                return condition()
            except PenstockError as error:
                # The meta database may be away for a moment.
                if error.code != "META_UNAVAILABLE":
                    raise
                return False

        try:
            wait_until(held, what, WAIT_S)
        except AssertionError as error:
            said = "\n".join(f"--- {name}\n{server.output()[-6000:]}" for name, server in self.servers.items())
            raise AssertionError(f"{error}: {self.meta.get_feed('f')}\n{said}") from None

    def progress(self) -> None:
        """Wait until rows are committed beyond those that are now; note every file."""
        rows = self.meta.get_feed("f").rows_total
        self.until("rows are delivered", lambda: self.meta.get_feed("f").rows_total > rows)
        self.look()

    def look(self) -> None:
        """Note the files that are new, and that those that were there are as they were."""
        found = digests(self.target)
        assert {name: found.get(name) for name in self.first_seen} == self.first_seen
        self.first_seen |= found

    def check(self) -> None:
        """Everything that was written is in the files, once."""
        self.writer.stop()
        wanted = self.rows()
        self.until("the files hold the table", lambda: self.delivered() == wanted)
        assert self.writer.transactions > 0
        # One that was tried again says so for a moment longer.
        self.until("nothing is wrong", lambda: self.meta.get_feed("f").reached_state is ReachedState.RUNNING)
        self.look()
        assert numbering_problems(self.target) == []
        assert self.delivered() == wanted

    def rows(self) -> Counter[Any]:
        with contextlib.closing(self.database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT id, note FROM {self.schema}.orders")
            return Counter((int(key), note) for key, note in cursor.fetchall())

    def delivered(self) -> Counter[Any]:
        shown = read_target(self.target, self.schema)["orders"].shown()
        return Counter({(int(key), note): count for (key, note), count in shown.items()})


@pytest.fixture(scope="module")
def mariadb_source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with live_database("mariadb", tmp_path_factory.mktemp("mariadb")) as found:
        yield found


@pytest.fixture(scope="module")
def meta_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A meta database of its own: a process that stands still while it has the lock of an embedded one keeps it from everybody."""
    with mariadb(tmp_path_factory.mktemp("meta")) as uri:
        yield Database("mariadb", uri)


@pytest.fixture
def group(mariadb_source: Database, meta_server: Database, tmp_path: Path) -> Iterator[Group]:
    with ExitStack() as parts:
        meta_url = urlsplit(meta_server.uri)._replace(path=f"/{meta_server.make_schema()}").geturl()
        yield Group(parts, mariadb_source, meta_url, tmp_path)


def stopped_and_continued(group: Group, rounds: int, rng: random.Random) -> None:
    """Stop whoever has the feed, until the other one has delivered; let it go on, and see that it leaves the feed alone."""
    group.start("one")
    group.writer.start()
    group.progress()
    group.start("two")
    for _ in range(rounds):
        holder = group.owner()
        other = "two" if holder == "one" else "one"
        threading.Event().wait(rng.random() * 0.2)
        group.servers[holder].pause()
        try:
            group.until("the other server has the feed", lambda other=other: group.owner() == other)
            group.progress()
        finally:
            group.servers[holder].go_on()
        group.progress()
    group.check()


def test_a_server_that_stood_still_notices_that_it_lost_the_log(group: Group) -> None:
    stopped_and_continued(group, 2, random.Random(1))


@contextmanager
def meta_database(kind: str, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Run a meta database; yield its URI and what restarts it."""
    with ExitStack() as parts:
        if kind == "mariadb":
            uri = parts.enter_context(mariadb(folder))
            yield uri, lambda: parts.enter_context(restarted(folder, uri))
        else:
            lab = PostgresLab(folder)
            parts.callback(lab.stop)
            yield lab.uri, lab.restart


@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
def test_the_meta_database_is_restarted_while_a_log_is_read(
    mariadb_source: Database, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    with meta_database(kind, tmp_path_factory.mktemp("meta")) as (uri, restart), ExitStack() as parts:
        group = Group(parts, mariadb_source, uri, tmp_path)
        group.start("one")
        group.writer.start()
        group.progress()
        restart()
        group.progress()
        assert group.meta.get_feed("f").epoch == 1, "a feed stays where it is while nobody could have taken it"
        group.check()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("load", [0, LOAD])
def test_servers_stand_still_in_turn(group: Group, load: int, seed: int) -> None:
    with burners(load):
        stopped_and_continued(group, 8, random.Random(seed))
