"""Verification on a schedule, on MariaDB and PostgreSQL: what changed behind the log's back is found and repaired, and nothing else is."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from penstock.config.server_tree import RereadSettings
from penstock.feed.settings import OnRewrite
from penstock.model.clock import SystemClock
from penstock.model.span import Span, cut
from penstock.server.doubts.doubt_rules import Recheck
from penstock.server.doubts.doubted_tables import FOUND, DoubtedTables
from penstock.server.metrics import DoubtMetrics, VerifyMetrics, render
from penstock.server.verify.range_check import CheckSettings, RangeCheck
from penstock.server.verify.scheduled_verification import ScheduledVerification, VerifyWish
from testing.paths.one_log_path import OneLogPath
from testing.servers.databases.live_database import Database
from testing.servers.loopback_server import mariadb, postgres

pytestmark = pytest.mark.integration
BINLOG = ("--log-bin=bin", "--server-id=1", "--binlog-format=ROW", "--binlog-row-metadata=FULL")
ROWS = 300
RANGES = 3
NAMES = ("bag", "named", "orders")


class QuietDatabase(Database):
    """A database whose rows change without a word in the log."""

    def unlogged(self, *statements: str) -> None:
        """Change rows without a word in what is captured."""
        if self.kind == "mariadb":
            self.run("SET sql_log_bin = 0", *statements)
        else:
            # Whatever a publication leaves out is noticed. What surgery does to a page is not: it makes rows of a transaction that was
            # rolled back visible, and others dead.
            self.run("CREATE EXTENSION IF NOT EXISTS pg_surgery")
            for statement in statements:
                self._operate(statement)

    def _operate(self, statement: str) -> None:
        table = re.findall(r"(?:UPDATE|INTO|FROM) (\S+)", statement)[0]
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:

            def ask(query: str, *values: Any) -> list[Any]:
                cursor.execute(query, values)
                return [row[0] for row in cursor.fetchall()] if cursor.description else []

            before = set(ask(f"SELECT ctid::text FROM {table}"))
            ask("BEGIN")
            ask(statement)
            after = ask(f"SELECT ctid::text FROM {table}")
            came = ask(f"SELECT to_json(t)::text FROM {table} t WHERE NOT ctid = ANY(%s::tid[])", list(before))
            ask("ROLLBACK")
            gone = [one for one in before if one not in set(after)]
            # Once more as deletes and inserts, so that every new row is in all indexes.
            ask("BEGIN")
            ask(f"DELETE FROM {table} WHERE ctid = ANY(%s::tid[])", gone)
            made = [
                ask(f"INSERT INTO {table} SELECT * FROM json_populate_record(NULL::{table}, %s::json) RETURNING ctid::text", row)[0]
                for row in came
            ]
            ask("ROLLBACK")
            ask("SELECT heap_force_freeze(%s::regclass, %s::tid[])", table, made)
            ask("SELECT heap_force_kill(%s::regclass, %s::tid[])", table, gone)

    def make_tables(self) -> str:
        schema = self.make_schema()
        values = ",".join(f"({n}, 'first {n}', {n % 7})" for n in range(ROWS))
        names = ",".join(f"('name {n:04d}', 'é {n}')" for n in range(200))
        self.run(
            f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note VARCHAR(40), amount INT)",
            f"CREATE TABLE {schema}.named (name VARCHAR(40) PRIMARY KEY, note VARCHAR(40))",
            f"CREATE TABLE {schema}.bag (id INT, note VARCHAR(40))",
            f"INSERT INTO {schema}.orders VALUES {values}",
            f"INSERT INTO {schema}.named VALUES {names}",
            f"INSERT INTO {schema}.bag VALUES (1, 'a'), (1, 'a'), (2, NULL), (3, 'c')",
        )
        if self.kind == "postgres":
            self.run(f"ALTER TABLE {schema}.bag REPLICA IDENTITY FULL")
        return schema


@pytest.fixture(scope="module", params=["mariadb", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuietDatabase]:
    directory = tmp_path_factory.mktemp(request.param)
    server = mariadb(directory, BINLOG) if request.param == "mariadb" else postgres(directory, ("-c", "wal_level=logical"))
    with server as uri:
        yield QuietDatabase(request.param, uri)


class SmallRanges(RangeCheck):
    """A check that cuts the orders in several ranges, which a source does only with tables too large for a test."""

    def pieces(self, span: Span) -> list[Span]:
        cuts = self.cuts.get(span.table_id)
        return list(cut(span, cuts)) if cuts else super().pieces(span)

    cuts: dict[int, tuple[bytes, ...]]


class Keep:
    """Feeds that wish no re-read of what the log doubts: what is repaired is repaired by a verification."""

    def rule(self, schema: str, table: str) -> OnRewrite:
        return "keep"

    def rechecks(self) -> list[Recheck]:
        return []


class Lab:
    """A feed on a schema of its own, and the schedule, which the test drives by hand."""

    def __init__(self, database: QuietDatabase, root: Path, *, repair: bool) -> None:
        self.database = database
        self.schema = database.make_tables()
        self.path = OneLogPath(root, database.uri, [f"{self.schema}.*"])
        self.path.begin()
        self.path.drain()
        clock = SystemClock()
        self.registry = CollectorRegistry()
        settings = RereadSettings(delay_s=0.0)
        self.doubted = DoubtedTables(
            self.path.log, self.path.reread, Keep(), settings, clock, random.Random(0), DoubtMetrics(self.registry)
        )
        self.check = SmallRanges(self.path.upstream, self.path.store, self.path.log.settled_ts, clock, CheckSettings(pauses_s=(0.1, 0.2)))
        keys = [(n * ROWS // RANGES + (1 << 63)).to_bytes(8, "big") for n in range(1, RANGES)]
        self.check.cuts = {self.table_id("orders"): tuple(keys)}
        self.repair = repair
        self.schedule = ScheduledVerification(
            self.check, self.wishes, self.doubted.states, self.repair_table, clock, random.Random(1), VerifyMetrics(self.registry)
        )
        self.settle()
        self.schedule.scan()

    def settle(self) -> None:
        """Settle what the log doubts: MariaDB reads a table without a key twice."""
        for _ in range(5):
            doubted = [s.table_id for s in self.doubted.states() if s.is_open]
            if not doubted:
                return
            self.doubted.retry(doubted)
            while self.doubted.scan():
                pass
            self.path.drain()
        raise AssertionError(f"in doubt still: {self.doubted.states()}")

    def wishes(self) -> list[VerifyWish]:
        return [VerifyWish("f", 0.0, self.repair, tuple((d.span, d.schema, d.table) for d in self.path.live()))]

    def repair_table(self, table_id: int, schema: str, table: str) -> None:
        self.doubted.resnapshot(table_id, schema, table, FOUND)

    def table_id(self, table: str) -> int:
        return next(d.id.table_id for d in self.path.dispatchers if d.table == table)

    def round(self) -> dict[str, dict[str, Any]]:
        """Do one round and return what is shown, by table."""
        assert self.schedule.scan()
        found = self.schedule.view("f")
        assert found is not None
        return {table["name"].partition(".")[2]: table for table in found["tables"]}

    def check_identical(self) -> None:
        """Let everything come to rest, then look at every range: all tables are identical. What the log tells late is settled first."""
        for _ in range(10):
            self.path.drain()
            self.settle()
            for _ in range(RANGES):
                shown = {name: one["unchecked"] or one["state"] for name, one in self.round().items()}
            assert "differs" not in shown.values(), shown
            if shown == dict.fromkeys(NAMES, "identical"):
                return
        raise AssertionError(f"not identical: {shown}")

    def rounds_until(self, table: str, state: str) -> tuple[int, dict[str, Any]]:
        for number in range(1, RANGES + 1):
            shown = self.round()[table]
            if shown["state"] == state:
                return number, shown
        raise AssertionError(f"{table} is not {state} after {RANGES} rounds: {shown}")

    def unlogged(self, *statements: str) -> None:
        self.database.unlogged(*(s.format(s=self.schema) for s in statements))


@pytest.fixture
def lab(database: QuietDatabase, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = Lab(database, tmp_path, repair=getattr(request, "param", False))
    try:
        yield made
    finally:
        made.path.close()


@contextlib.contextmanager
def writing(lab: Lab, sessions: int) -> Iterator[list[int]]:
    """Change rows of all tables all the time, in several sessions; yields how many transactions each did."""
    stop, done = threading.Event(), [0] * sessions

    def write(number: int) -> None:
        rng = random.Random(number)
        with contextlib.closing(lab.database.connect()) as connection, connection.cursor() as cursor:
            for turn in itertools.count():
                if stop.is_set():
                    return
                low = rng.randrange(ROWS // sessions) * sessions + number
                cursor.execute(f"UPDATE {lab.schema}.orders SET amount = amount + 1 WHERE id = {low}")
                cursor.execute(f"DELETE FROM {lab.schema}.orders WHERE id = {rng.randrange(ROWS // sessions) * sessions + number}")
                cursor.execute(
                    f"INSERT INTO {lab.schema}.orders (id, note, amount) VALUES ({(number + 1) * 1_000_000 + turn}, 'meanwhile', 0)"
                )
                cursor.execute(f"UPDATE {lab.schema}.named SET note = 'turn {turn}' WHERE name = 'name {number:04d}'")
                cursor.execute(f"INSERT INTO {lab.schema}.bag VALUES ({number}, 'turn {turn % 3}')")
                if turn % 20 == 19:
                    cursor.execute(f"DELETE FROM {lab.schema}.bag WHERE id = {number}")
                done[number] += 1
                stop.wait(0.01)

    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(sessions)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_change_behind_the_log_is_found_within_as_many_rounds_as_there_are_ranges(lab: Lab) -> None:
    lab.unlogged("UPDATE {s}.orders SET note = 'unlogged' WHERE id = 299", "DELETE FROM {s}.orders WHERE id = 298")
    rounds, shown = lab.rounds_until("orders", "differs")
    assert rounds <= RANGES
    assert (shown["missing"], shown["unexpected"], shown["different"]) == (0, 1, 1)
    assert sorted(shown["sample_keys"]) == ["(298,)", "(299,)"]
    for _ in range(2):
        assert lab.round()["orders"]["state"] == "differs", "it is shown until it is gone, though other ranges have their turn"
    assert all(not s.is_open for s in lab.doubted.states()), "without verify-repair it is only shown"
    metrics = render([lab.registry]).decode()
    assert f'penstock_table_differences{{feed="f",table="{lab.schema}.orders"}} 2.0' in metrics
    lab.unlogged(
        "UPDATE {s}.orders SET note = 'first 299' WHERE id = 299",
        "INSERT INTO {s}.orders VALUES (298, 'first 298', 4)",
    )
    assert lab.round()["orders"]["state"] == "identical"


@pytest.mark.parametrize("lab", [True], indirect=True)
def test_with_repair_the_table_is_read_again_and_the_files_are_right(lab: Lab) -> None:
    lab.unlogged("UPDATE {s}.orders SET note = 'unlogged' WHERE id BETWEEN 150 AND 170")
    lab.unlogged("DELETE FROM {s}.named WHERE name = 'name 0007'", "INSERT INTO {s}.named VALUES ('Ünlogged', 'x')")
    lab.unlogged("INSERT INTO {s}.bag VALUES (1, 'a')", "DELETE FROM {s}.bag WHERE id = 3")
    lab.rounds_until("orders", "differs")
    reasons = {s.table: s.reason for s in lab.doubted.states() if s.is_open}
    assert reasons == dict.fromkeys(NAMES, FOUND)
    shown = lab.round()
    assert all("doubtful" in shown[name]["unchecked"] for name in NAMES), "a table in doubt is named, not passed over"
    while lab.doubted.scan():
        pass
    lab.settle()
    lab.path.verify().check()
    lab.check_identical()


def test_nothing_is_found_while_others_write_and_ddls_pass(lab: Lab) -> None:
    ddls = {
        1: "TRUNCATE TABLE {s}.named",
        3: "ALTER TABLE {s}.orders ADD COLUMN extra INT",
        4: "INSERT INTO {s}.named VALUES ('again', 'x')",
    }
    with writing(lab, 3) as done:
        for number in range(2 * RANGES):
            if number in ddls:
                lab.database.run(ddls[number].format(s=lab.schema))
            lab.path.drain()
            wrong = {name: one for name, one in lab.round().items() if one["state"] == "differs"}
            assert not wrong, f"round {number}: {wrong}"
    assert min(done) > 0, "the sessions wrote meanwhile"
    lab.check_identical()


def test_a_difference_is_found_while_others_write(lab: Lab) -> None:
    lab.unlogged("UPDATE {s}.named SET note = 'unlogged' WHERE name = 'name 0150'")
    with writing(lab, 2):
        _, shown = lab.rounds_until("named", "differs")
    assert (shown["missing"], shown["unexpected"], shown["different"], shown["sample_keys"]) == (0, 0, 1, ["('name 0150',)"])


def test_a_table_that_may_not_be_read_is_named_and_hinders_no_other(lab: Lab) -> None:
    lab.database.run(f"DROP TABLE {lab.schema}.named")
    shown = lab.round()
    assert shown["orders"]["state"] == shown["bag"]["state"] == "identical"
    assert "named" not in shown or shown["named"]["state"] == "unchecked"
