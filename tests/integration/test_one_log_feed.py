"""Feeds on MariaDB and PostgreSQL, from the bootstrap to files that replay to what the database holds, through crashes and purged logs."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from penstock.feed.bootstrap.part import BootstrapPart
from penstock.feed.window.assignment import Dispatcher
from penstock.feed.window.following import live_dispatchers
from penstock.meta.log_journal import LogJournal
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.sink.contract import DispatcherId
from penstock.source.catalog import open_upstream
from penstock.source.single_log import has_log
from penstock.store.contract import EndOfRange
from penstock.store.flight.server import FlightService
from testing.checks.change_walk import ChangeWalk
from testing.checks.transaction_consumer import windows
from testing.paths.one_log_path import OneLogPath
from testing.servers.databases.live_database import Database, live_database
from testing.servers.databases.mysql_server import mysql
from testing.servers.waiting import meanwhile, wait_until

pytestmark = pytest.mark.integration
ROWS = 2_000
WALK_FILES_MAX = 40


class LosingDatabase(Database):
    """A database with tables, and how its log is lost."""

    @property
    def exact(self) -> bool:
        return self.kind == "postgres"

    def make_tables(self) -> str:
        """Make a schema with a filled and an empty table; return its name."""
        schema = self.make_schema()
        values = ",".join(f"({n}, 'first {n}', {n % 7})" for n in range(ROWS))
        self.run(
            f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note VARCHAR(40), amount INT)",
            f"CREATE TABLE {schema}.empty (id INT PRIMARY KEY, note VARCHAR(40))",
            f"INSERT INTO {schema}.orders VALUES {values}",
        )
        return schema

    def _drop_slots(self) -> bool:
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active AND NOT temporary")
            cursor.execute("SELECT count(*) FROM pg_replication_slots WHERE NOT temporary")
            return bool(cursor.fetchone()[0] == 0)

    def purge_log(self) -> None:
        """Lose the log up to now. Nobody may be reading it."""
        if self.kind == "postgres":
            # A process that ended may be served for a moment longer.
            wait_until(self._drop_slots, "the slot is not let go of")
            return
        never, looks = threading.Event(), 0
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("FLUSH BINARY LOGS")
            cursor.execute("SHOW MASTER STATUS")
            newest = cursor.fetchone()[0]
            logs = 2
            while logs > 1:
                # The server keeps a log, without a word, while it believes that someone reads it.
                cursor.execute("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
                for (reader,) in cursor.fetchall():
                    with contextlib.suppress(pymysql.MySQLError):
                        cursor.execute(f"KILL {reader}")
                cursor.execute(f"PURGE BINARY LOGS TO '{newest}'")
                logs = cursor.execute("SHOW BINARY LOGS")
                assert looks < 200, "the log is not purged"
                looks += never.wait(0.05) + 1


@pytest.fixture(scope="module", params=["mariadb", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LosingDatabase]:
    directory = tmp_path_factory.mktemp(request.param)
    with live_database(request.param, directory) as found:
        yield LosingDatabase(request.param, found.uri)


def writing(database: LosingDatabase, schema: str, seed: int) -> contextlib.AbstractContextManager[None]:
    """Change rows all the time, in another thread."""
    rng = random.Random(seed)

    def write(stop: threading.Event) -> None:
        with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
            for number in itertools.count():
                if stop.is_set():
                    return
                low = rng.randrange(ROWS + 200)
                cursor.execute(f"UPDATE {schema}.orders SET amount = amount + 1 WHERE id BETWEEN {low} AND {low + 20}")
                cursor.execute(f"DELETE FROM {schema}.orders WHERE id = {rng.randrange(ROWS)}")
                cursor.execute(f"INSERT INTO {schema}.orders VALUES ({seed * 1_000_000 + number}, 'meanwhile', 0)")

    return meanwhile(write)


@contextlib.contextmanager
def feed(database: LosingDatabase, root: Path, schema: str) -> Iterator[OneLogPath]:
    path = OneLogPath(root, database.uri, [f"{schema}.*"])
    try:
        yield path
    finally:
        path.close()


def check(path: OneLogPath) -> int:
    verdict = path.verify()
    verdict.check()
    assert len(verdict.tables) == 2
    return verdict.rows


def dispatchers_after_drain(path: OneLogPath) -> int:
    path.drain()
    return len(live_dispatchers(path.context, path.meta))


def failing_after(parts: int) -> Callable[[BootstrapPart], None]:
    done = threading.Semaphore(parts)

    def before(part: BootstrapPart) -> None:
        if not done.acquire(blocking=False):
            raise PenstockError("UPSTREAM_REFUSED", f"part {part.number} is refused by the test")

    return before


def test_the_state_and_every_change_arrive_while_rows_change(database: LosingDatabase, tmp_path: Path) -> None:
    check_state_and_changes(database, tmp_path)


@pytest.mark.mysql
def test_mysql_without_gtids_is_followed_by_file_and_offset(tmp_path: Path) -> None:
    with mysql(tmp_path / "server", ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")) as uri:
        database = LosingDatabase("mysql", uri)
        check_state_and_changes(database, tmp_path)
        # A file that holds no transaction yet: its end is reached all the same.
        with contextlib.closing(open_upstream(uri)) as upstream:
            assert has_log(upstream)
            start = upstream.first_position()
            database.run("FLUSH BINARY LOGS")
            end = upstream.log_end()
            assert not upstream.reached(start.text, end)
            steps = upstream.read_log(start, (), lambda _: True, threading.Event())
            assert any(s.position is not None and upstream.reached(s.position.text, end) for s in itertools.islice(steps, 40))
        database.run("CREATE USER modest", "GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO modest")
        with contextlib.closing(open_upstream(uri.replace("root@", "modest@"))) as upstream:
            assert has_log(upstream)
            with pytest.raises(PenstockError, match="UPSTREAM_REFUSED") as refused:
                upstream.begin_snapshot()
            assert "RELOAD" in (refused.value.hint or "")


def check_state_and_changes(database: LosingDatabase, tmp_path: Path) -> None:
    schema = database.make_tables()
    with feed(database, tmp_path, schema) as path:
        with writing(database, schema, 1):
            path.begin()
            path.drain()
        assert check(path) > 0
        database.run(f"INSERT INTO {schema}.empty VALUES (1, 'no longer')", f"DELETE FROM {schema}.orders WHERE id < 100")
        path.drain()
        rows = check(path)
        path.restart()
        database.run(f"UPDATE {schema}.empty SET note = 'after a restart'")
        path.drain()
        assert path.tasks.pulled == [], "nothing is read again"
        assert check(path) == rows
        assert path.meta.resnapshots("f") == 0


def test_a_bootstrap_goes_on_after_its_driver_died(database: LosingDatabase, tmp_path: Path) -> None:
    schema = database.make_tables()
    with feed(database, tmp_path, schema) as path:
        path.close_services()
        path.open(failing_after(1))
        with writing(database, schema, 2):
            with pytest.raises(PenstockError, match="refused by the test"):
                path.begin()
            assert len(path.tasks.pulled) == 1
            path.restart()
        path.drain()
        check(path)
        # An exact snapshot ended with the process that held it; otherwise the part that was done is not read again.
        parts = len(path.tasks.pulled)
        assert parts > (1 if database.exact else 0)
        assert not list((tmp_path / "store" / "objects").glob("spans/*/bootstrap/*/*.json"))


def test_a_purged_log_leads_to_a_new_snapshot_with_deletes(database: LosingDatabase, tmp_path: Path) -> None:
    schema = database.make_tables()
    with feed(database, tmp_path, schema) as path:
        path.begin()
        path.drain()
        check(path)
        path.close_services()
        database.run(
            f"DELETE FROM {schema}.orders WHERE id < 50",
            f"UPDATE {schema}.orders SET note = 'changed' WHERE id BETWEEN 100 AND 109",
            f"INSERT INTO {schema}.orders VALUES (900001, 'new', 1)",
        )
        database.purge_log()
        database.run(f"INSERT INTO {schema}.empty VALUES (5, 'after the purge')")
        path.open()
        # The first run captures what it had and finds out; the second one begins again.
        path.begin()
        path.begin_behind_loss()
        with writing(database, schema, 3):
            path.drain()
        assert path.meta.resnapshots("f") == 1
        check(path)


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_who_got_little_far_loses_its_log_and_others_read_on(database: LosingDatabase, tmp_path: Path) -> None:
    """A feed that was paused for long begins with a new snapshot; one that was not is told of nothing, and loses no DDL."""
    schema, other = database.make_tables(), database.make_tables()
    with feed(database, tmp_path, schema) as path:
        path.begin()
        paused = next(Span(t.table_id) for t in path.upstream.list_tables() if t.full_name == f"{other}.orders")
        path.log.ensure_span(paused, path.log.settled_ts())
        path.log.remove_span(paused.span_id)
        path.drain()
        database.run(f"DELETE FROM {other}.orders WHERE id < 50", f"INSERT INTO {schema}.empty VALUES (1, 'read on')", "FLUSH BINARY LOGS")
        path.drain()
        end = path.upstream.log_end()
        with contextlib.closing(LogJournal(path.meta_url, "path")) as journal:
            path.wait_until("the place is kept", lambda: path.upstream.reached(journal.newest().text, end))
        database.purge_log()
        database.run(f"INSERT INTO {schema}.empty VALUES (2, 'behind the purge')")
        late = path._new_capture()
        late._span_ids.add(paused.span_id)
        path.log.ensure_span(paused, 0)
        database.run(f"ALTER TABLE {schema}.empty ADD COLUMN extra INT DEFAULT 4", f"CREATE TABLE {schema}.fresh (id INT PRIMARY KEY)")
        database.run(f"INSERT INTO {schema}.fresh VALUES (7)")
        while path.store.base_ts(paused.span_id) is None:
            # As runs of a feed do, one after the other: a span that is just tried again says nothing.
            path.wait_until("the purge is noticed", late.purged)
            late.begin([Dispatcher(DispatcherId(paused.table_id), paused, other, "orders")])
        path.drain()
        verdict = path.verify()
        verdict.check()
        assert {t.name: t.rows for t in verdict.tables} == {f"{schema}.orders": ROWS, f"{schema}.empty": 2, f"{schema}.fresh": 1}
        assert path.meta.resnapshots("f") == 0
        path.wait_until("the paused one is captured", lambda: path.store.resolved_ts(paused.span_id) >= path.feed.checkpoint_ts())
        rows, handle = 0, path.store.collect_changes(paused.span_id, 0, path.store.resolved_ts(paused.span_id))
        while not isinstance(step := handle.next(), EndOfRange):
            rows += sum(batch.header.rows for batch in step.data)
        handle.close()
        assert rows == ROWS - 50


def test_tables_that_come_change_and_go_are_followed(database: LosingDatabase, tmp_path: Path) -> None:
    schema = database.make_tables()
    with feed(database, tmp_path, schema) as path:
        path.begin()
        path.drain()
        database.run(
            f"CREATE TABLE {schema}.fresh (id INT PRIMARY KEY, note VARCHAR(40))",
            f"INSERT INTO {schema}.fresh VALUES (1, 'new'), (2, 'too')",
            f"ALTER TABLE {schema}.orders ADD COLUMN extra INT",
            f"UPDATE {schema}.orders SET extra = 5 WHERE id < 10",
            f"INSERT INTO {schema}.empty VALUES (1, 'will be gone')",
            f"TRUNCATE TABLE {schema}.empty",
            f"INSERT INTO {schema}.empty VALUES (2, 'stays')",
        )
        path.drain()
        rename = f"ALTER TABLE {schema}.fresh RENAME TO {'' if database.kind == 'postgres' else schema + '.'}moved"
        database.run(rename, f"INSERT INTO {schema}.moved VALUES (3, 'after')")
        path.drain()
        verdict = path.verify()
        verdict.check()
        assert {t.name: t.rows for t in verdict.tables} == {f"{schema}.orders": ROWS, f"{schema}.empty": 1, f"{schema}.moved": 3}
        # A table that is gone again before anybody looked at it.
        database.run(
            f"CREATE TABLE {schema}.brief (id INT PRIMARY KEY, note VARCHAR(40))",
            f"INSERT INTO {schema}.brief VALUES (1, 'soon gone')",
            f"DROP TABLE {schema}.brief",
            f"INSERT INTO {schema}.moved VALUES (4, 'goes on')",
        )
        path.drain()
        database.run(f"DROP TABLE {schema}.moved")
        path.drain()
        # PostgreSQL's log does not tell it; the catalog does, when the log is quiet.
        path.wait_until("the table is gone", lambda: dispatchers_after_drain(path) == 2)
        assert {t.name for t in path.verify().tables} == {f"{schema}.orders", f"{schema}.empty"}
        assert path.meta.resnapshots("f") == 0


def test_a_transaction_of_the_source_is_one_of_the_target(database: LosingDatabase, tmp_path: Path) -> None:
    """Each transaction writes its number into its rows; two are open at once, parts of some are taken back, and some wholly."""
    schema = database.make_schema()
    database.run(*(f"CREATE TABLE {schema}.{table} (id INT PRIMARY KEY, number INT)" for table in "ab"))
    rng, ids = random.Random(5), itertools.count()
    committed: list[tuple[int, int]] = []

    def work(cursor: Any, number: int) -> int:
        count = rng.randint(1, 4)
        for _ in range(count):
            cursor.execute(f"INSERT INTO {schema}.{rng.choice('ab')} VALUES ({next(ids)}, {number})")
        cursor.execute("SAVEPOINT s")
        cursor.execute(f"INSERT INTO {schema}.a VALUES ({next(ids)}, {number})")
        cursor.execute("ROLLBACK TO SAVEPOINT s")
        return count

    with feed(database, tmp_path, schema) as path:
        path.sink_options = {"transaction-atomicity": "transaction", "file-size": "1KiB"}
        path.restart()
        path.drain()
        with contextlib.closing(database.connect()) as one, contextlib.closing(database.connect()) as other:
            first, second = one.cursor(), other.cursor()
            for number in range(0, 30, 3):
                first.execute("BEGIN")
                before = work(first, number)
                second.execute("BEGIN")
                committed.append((number + 1, work(second, number + 1)))
                second.execute("COMMIT")
                committed.append((number, before + work(first, number)))
                first.execute("COMMIT")
                first.execute("BEGIN")
                work(first, number + 2)
                first.execute("ROLLBACK")
                if number % 9 == 0:
                    path.drain()
        path.drain()
    transactions = [one for window in windows(path.target) for one in window.transactions]
    assert [({int(row[1]) for _, _, row in one.changes}, len(one.changes)) for one in transactions] == [({n}, c) for n, c in committed]


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_the_walk_in_the_architecture_is_that_of_a_change(
    database: LosingDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file that has a row in hand stands there, and nothing that does not run; ``model`` and ``kernels`` are under all of them."""
    text = (Path(__file__).parents[2] / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"^\d+\. `([a-z_/]+\.py)`", text.partition("### The walk of one change")[2].partition("\n## ")[0], re.MULTILINE)
    walk = ChangeWalk("zq~walk~zq")

    def traced(service: FlightService, *arguments: Any, do_get: Callable[..., Any] = FlightService.do_get) -> Any:
        walk.attach()
        return do_get(service, *arguments)

    monkeypatch.setattr(FlightService, "do_get", traced)
    schema = database.make_tables()
    with walk.threads(), feed(database, tmp_path, schema) as path:
        path.begin()
        path.drain()
        with walk.switched_on():
            database.run(f"INSERT INTO {schema}.orders VALUES (-1, 'zq~walk~zq', 0)")
            path.drain()
    passed = {name for name in walk.passed if not name.startswith(("model/", "kernels/"))}
    assert passed - set(named) == set()
    assert set(named) - walk.ran == set()
    assert len(named) == len(set(named)) <= WALK_FILES_MAX
