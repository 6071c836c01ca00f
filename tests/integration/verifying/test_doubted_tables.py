"""Tables that changed behind the log's back are read again, on MariaDB and PostgreSQL: afterwards the files are the table."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from penstock.access.mysql_server import parse_uri
from penstock.config.server_tree import RereadSettings
from penstock.feed.bootstrap import reread_part
from penstock.feed.bootstrap.reread_part import RereadPart
from penstock.feed.settings import OnRewrite
from penstock.meta.table_states import TableCondition, TableState
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.puller.doubts import Corrections, Settlement
from penstock.puller.logged import hand_over
from penstock.puller.logged.hand_over import chunks
from penstock.server.doubts.doubt_rules import Recheck
from penstock.server.doubts.doubted_tables import DoubtedTables
from penstock.server.metrics import DoubtMetrics
from penstock.store.contract import EndOfRange
from testing.paths.one_log_path import OneLogPath
from testing.servers.databases.live_database import Database
from testing.servers.loopback_server import mariadb, postgres
from testing.servers.waiting import meanwhile

pytestmark = pytest.mark.integration
BINLOG = ("--log-bin=bin", "--server-id=1", "--binlog-format=ROW", "--binlog-row-metadata=FULL")
ROWS = 1_000


class UnloggedDatabase(Database):
    """A database whose rows change without a word in the log."""

    def make_tables(self) -> str:
        schema = self.make_schema()
        values = ",".join(f"({n}, 'first {n}', {n % 7})" for n in range(ROWS))
        self.run(
            f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note VARCHAR(40), amount INT)",
            f"CREATE TABLE {schema}.other (id INT PRIMARY KEY, note VARCHAR(40))",
            f"CREATE TABLE {schema}.bag (id INT, note VARCHAR(40))",
            f"INSERT INTO {schema}.orders VALUES {values}",
            f"INSERT INTO {schema}.bag VALUES (1, 'a'), (2, NULL), (3, 'c')",
        )
        if self.kind == "postgres":
            self.run(f"ALTER TABLE {schema}.bag REPLICA IDENTITY FULL")
        return schema

    def change_unlogged(self, table: str, *statements: str) -> None:
        """Change rows of a table without a word in the log."""
        if self.kind == "mariadb":
            self.run("SET sql_log_bin = 0", *statements)
        else:
            # What is written to an unlogged table is in no log, and making it a logged one again tells of none of its rows.
            self.run(f"ALTER TABLE {table} SET UNLOGGED", *statements, f"ALTER TABLE {table} SET LOGGED")


@pytest.fixture(scope="module", params=["mariadb", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnloggedDatabase]:
    directory = tmp_path_factory.mktemp(request.param)
    server = mariadb(directory, BINLOG) if request.param == "mariadb" else postgres(directory, ("-c", "wal_level=logical"))
    with server as uri:
        yield UnloggedDatabase(request.param, uri)


class Lab:
    """A feed on a schema of its own."""

    def __init__(self, database: UnloggedDatabase, root: Path, schema: str = "", uri: str = "") -> None:
        self.database = database
        self.schema = schema or database.make_tables()
        self.path = OneLogPath(root, uri or database.uri, [f"{self.schema}.*"])
        self.path.begin()
        self.path.drain()

    def run(self, *statements: str) -> None:
        self.database.run(*(s.format(s=self.schema) for s in statements))

    def unlogged(self, *statements: str, table: str = "orders") -> None:
        self.database.change_unlogged(f"{self.schema}.{table}", *(s.format(s=self.schema) for s in statements))

    def table_id(self, table: str) -> int:
        return next(d.id.table_id for d in self.path.dispatchers if (d.schema, d.table) == (self.schema, table))

    def doubt(self, table: str) -> int:
        table_id = self.table_id(table)
        self.path.log.doubt_table(table_id, self.schema, table, "the test says so")
        return table_id

    def reread(self, table: str, before: Callable[[RereadPart], None] = lambda _: None) -> Settlement | None:
        return self.path.reread(before).run(self.doubt(table))

    def settled(self, table: str, before: Callable[[RereadPart], None] = lambda _: None) -> Settlement:
        """Read a doubted table again until it is settled: PostgreSQL's catalog may tell of the same rewrite while it is read."""
        rows = 0
        for _ in range(5):
            found = self.path.reread(before).run(self.table_id(table))
            assert found is not None
            rows += found.rows
            if found.closed:
                return Settlement(found.ts, rows, found.left_out, closed=True)
        raise AssertionError(f"{table} is in doubt still: {self.state(table)}")

    def state(self, table: str) -> TableState:
        return next(s for s in self.path.log.table_states() if s.table_id == self.table_id(table))

    def check(self) -> None:
        """Compare the files with the server's own rows, all tables."""
        verdict = self.path.verify()
        verdict.check()
        assert len(verdict.tables) == 3

    def not_covered(self) -> dict[str, str]:
        """Return the tables of which the target itself says that its checkpoint does not hold for them."""
        found: dict[str, str] = json.loads((self.path.root / "files" / "metadata").read_text()).get("not-covered", {})
        return {name: state for name, state in found.items() if not name.endswith(".bag")}

    def bag_in_store(self) -> list[tuple[Any, ...]]:
        """Return the rows that the store has of the table without a key."""
        span_id = Span(self.table_id("bag")).span_id
        handle = self.path.store.collect_changes(span_id, 0, self.path.store.resolved_ts(span_id))
        found: list[tuple[Any, ...]] = []
        while not isinstance(step := handle.next(), EndOfRange):
            found += [tuple(r[c] for c in ("c1", "c2")) for b in step.data for r in b.records.to_pylist()]
        return found


@pytest.fixture
def lab(database: UnloggedDatabase, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(database, tmp_path)
    try:
        yield made
    finally:
        made.path.close()


CHANGES = (
    "UPDATE {s}.orders SET note = 'unlogged' WHERE id BETWEEN 10 AND 19",
    "DELETE FROM {s}.orders WHERE id BETWEEN 30 AND 34",
    "INSERT INTO {s}.orders VALUES (5000, 'unlogged', 1), (5001, NULL, NULL)",
)


def writing(lab: Lab, seed: int) -> contextlib.AbstractContextManager[None]:
    """Change rows of two tables all the time, in another thread."""
    rng = random.Random(seed)

    def write(stop: threading.Event) -> None:
        with contextlib.closing(lab.database.connect()) as connection, connection.cursor() as cursor:
            for number in itertools.count():
                if stop.is_set():
                    return
                low = rng.randrange(ROWS)
                cursor.execute(f"UPDATE {lab.schema}.orders SET amount = amount + 1 WHERE id BETWEEN {low} AND {low + 5}")
                cursor.execute(f"DELETE FROM {lab.schema}.orders WHERE id = {rng.randrange(ROWS)}")
                cursor.execute(f"INSERT INTO {lab.schema}.orders VALUES ({seed * 1_000_000 + number}, 'meanwhile', 0)")
                cursor.execute(f"INSERT INTO {lab.schema}.other VALUES ({seed * 1_000_000 + number}, 'meanwhile')")

    return meanwhile(write)


def test_a_table_that_changed_unlogged_is_right_again(lab: Lab) -> None:
    lab.unlogged(*CHANGES)
    with pytest.raises(PenstockError):
        lab.check()
    lab.doubt("orders")
    settlement = lab.settled("orders")
    # An update is a before-image and a row.
    assert (settlement.rows, settlement.left_out, settlement.closed) == (20 + 5 + 2, 0, True)
    assert lab.state("orders").state is TableCondition.OK
    assert lab.state("orders").settled_ts == settlement.ts
    lab.check()
    again = lab.reread("orders")
    assert again is not None
    assert (again.rows, again.closed) == (0, True), "what was corrected differs no more"
    lab.check()


def test_while_others_write(lab: Lab) -> None:
    """Rows that the log changes meanwhile are the log's; the windows of other tables go on."""
    lab.unlogged(*CHANGES)
    delivered: list[int] = []

    def deliver(_: RereadPart) -> None:
        before = lab.path.feed.checkpoint_ts()
        lab.run(f"INSERT INTO {{s}}.other VALUES ({-1 - len(delivered)}, 'while the table is read')")
        lab.path.drain()
        delivered.append(lab.path.feed.checkpoint_ts() - before)

    with writing(lab, 1):
        lab.doubt("orders")
        settlement = lab.settled("orders", deliver)
        assert settlement.rows > 0
        assert delivered
        assert min(delivered) > 0, "the feed got on while the table was read"
    lab.check()


def test_a_row_that_the_log_changes_while_the_table_is_read_is_left_to_the_log(lab: Lab) -> None:
    lab.unlogged("UPDATE {s}.orders SET note = 'unlogged' WHERE id < 3")

    def change(_: RereadPart) -> None:
        lab.run(
            "UPDATE {s}.orders SET note = 'logged' WHERE id = 0",
            "DELETE FROM {s}.orders WHERE id = 1",
            "INSERT INTO {s}.orders VALUES (7000, 'logged', 1)",
        )

    settlement = lab.reread("orders", change)
    assert settlement is not None
    assert settlement.rows == 2, "row 2 alone is corrected"
    lab.check()


def int_key(number: int) -> bytes:
    """Return the row key of an integer."""
    return (number + (1 << 63)).to_bytes(8, "big")


def test_many_ranges_and_buckets(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most rows differ, in every range; each range is compared by a task of its own, in several buckets."""
    cuts = [b"", *(int_key(n) for n in (0, 100, 101, 700, 4000)), b""]
    monkeypatch.setattr(lab.path.upstream, "divide", lambda span: [Span(span.table_id, *pair) for pair in itertools.pairwise(cuts)])
    monkeypatch.setattr(reread_part, "BUCKET_BYTES", 4_000)
    lab.unlogged(
        "UPDATE {s}.orders SET note = 'unlogged' WHERE id % 2 = 0",
        "DELETE FROM {s}.orders WHERE id % 10 = 1",
        "INSERT INTO {s}.orders SELECT id + 3000, note, amount FROM {s}.orders WHERE id % 3 = 0",
    )
    read: list[int] = []
    with writing(lab, 2):
        lab.doubt("orders")
        settlement = lab.settled("orders", lambda part: read.append(part.read.number))
    assert settlement.rows > 100
    assert sorted(set(read)) == list(range(6))
    lab.check()
    again = lab.reread("orders")
    assert again is not None
    assert (again.rows, again.closed) == (0, True)


def test_a_table_without_a_key_that_is_written_to_meanwhile(lab: Lab) -> None:
    """Where the log touched rows that differ, another round settles them."""
    lab.unlogged("DELETE FROM {s}.bag WHERE id = 1", "INSERT INTO {s}.bag VALUES (4, 'd')", table="bag")
    numbers = itertools.count(100)

    def write(_: RereadPart) -> None:
        lab.run(f"INSERT INTO {{s}}.bag VALUES ({next(numbers)}, 'meanwhile')", "UPDATE {s}.bag SET note = 'changed' WHERE id = 3")

    settlement = lab.reread("bag", write)
    assert settlement is not None
    if not settlement.closed:
        lab.settled("bag")
    lab.check()


def test_rows_without_a_key_are_counted(lab: Lab) -> None:
    lab.unlogged("DELETE FROM {s}.bag WHERE id = 1", "INSERT INTO {s}.bag VALUES (4, 'd'), (5, NULL)", table="bag")
    lab.doubt("bag")
    assert lab.settled("bag").rows == 3
    assert sorted(lab.bag_in_store()) == [(2, None), (3, "c"), (4, "d"), (5, None)]
    lab.check()


def test_an_empty_table_and_one_that_became_empty(lab: Lab) -> None:
    settlement = lab.reread("other")
    assert settlement is not None
    assert (settlement.rows, settlement.closed) == (0, True)
    lab.unlogged("DELETE FROM {s}.orders")
    lab.doubt("orders")
    assert lab.settled("orders").rows == ROWS
    lab.check()


def test_a_table_that_is_dropped_while_it_is_read_is_closed_with_its_drop(lab: Lab) -> None:
    lab.unlogged(*CHANGES)

    def drop(_: RereadPart) -> None:
        lab.run("DROP TABLE IF EXISTS {s}.orders")

    table_id = lab.table_id("orders")
    assert lab.reread("orders", drop) is None
    lab.path.log.forget_table(table_id)
    assert [s for s in lab.path.log.table_states() if s.table_id == table_id] == []
    lab.run("INSERT INTO {s}.other VALUES (1, 'goes on')")
    lab.path.drain()
    assert lab.path.verify().identical


def test_a_schema_that_changes_while_the_table_is_read_begins_another_round(lab: Lab) -> None:
    lab.unlogged(*CHANGES)
    altered = threading.Event()

    def alter(_: RereadPart) -> None:
        if not altered.is_set():
            altered.set()
            # PostgreSQL's log tells of it with the next row.
            lab.run("ALTER TABLE {s}.orders ADD COLUMN more INT", "UPDATE {s}.orders SET more = 1 WHERE id = 900")

    with pytest.raises(PenstockError) as caught:
        lab.reread("orders", alter)
    assert caught.value.code == "UPSTREAM_CHANGING"
    lab.path.log.fail_round(lab.table_id("orders"), caught.value, 0.0)
    assert lab.state("orders").state is TableCondition.DOUBTFUL
    settlement = lab.path.reread().run(lab.table_id("orders"))
    assert settlement is not None
    assert settlement.closed
    lab.check()


def test_two_doubts_of_one_table(lab: Lab) -> None:
    """A doubt that comes while the table is read stays open for another round."""
    lab.unlogged(*CHANGES)
    first = lab.reread("orders", lambda _: lab.doubt("orders") and None)
    assert first is not None
    assert not first.closed
    assert lab.state("orders").state is TableCondition.DOUBTFUL
    second = lab.path.reread().run(lab.table_id("orders"))
    assert second is not None
    assert (second.rows, second.closed) == (0, True)
    lab.check()


MEANWHILE = {
    "truncated": ("TRUNCATE TABLE {s}.orders", "INSERT INTO {s}.orders VALUES (1, 'again', 1)"),
    "swapped": (
        "ALTER TABLE {s}.orders RENAME TO {new}",
        "CREATE TABLE {s}.orders (id INT PRIMARY KEY, other VARCHAR(10))",
        "INSERT INTO {s}.orders VALUES (1, 'x')",
        "UPDATE {s}.moved SET note = 'moved' WHERE id < 5",
    ),
}


@pytest.mark.parametrize("meanwhile", sorted(MEANWHILE))
def test_whatever_happens_to_a_table_while_it_is_read(lab: Lab, meanwhile: str) -> None:
    """The server's own loop, until nothing is in doubt: then the files are the tables, under whatever names they have."""
    lab.unlogged(*CHANGES)
    done = threading.Event()

    def change(_: RereadPart) -> None:
        if not done.is_set():
            done.set()
            new = "moved" if lab.database.kind == "postgres" else f"{lab.schema}.moved"
            lab.database.run(*(s.format(s=lab.schema, new=new) for s in MEANWHILE[meanwhile]))

    settings = RereadSettings(delay_s=0.0, backoff_s=0.01, backoff_max_s=0.1)
    wishes = Wishes(lab)
    metrics = DoubtMetrics(CollectorRegistry())
    loop = DoubtedTables(lab.path.log, lambda: lab.path.reread(change), wishes, settings, SystemClock(), random.Random(1), metrics)
    loop.resnapshot(lab.table_id("orders"), lab.schema, "orders")

    def is_settled() -> bool:
        lab.path.drain()
        lab.path.begin()
        loop.scan()
        # What was changed while a table was read may bring another one in doubt, as soon as the log is read that far.
        lab.path.drain()
        return all(not s.is_open for s in lab.path.log.table_states() if s.schema == lab.schema)

    lab.path.wait_until("nothing in doubt", is_settled)
    assert done.is_set()
    verdict = lab.path.verify()
    verdict.check()
    wanted = {"orders", "other", "bag"} | ({"moved"} if meanwhile == "swapped" else set())
    assert {t.name.partition(".")[2] for t in verdict.tables} == wanted


@pytest.mark.parametrize("at", ["before reading", "before settling", "while corrections are handed over", "after settling"])
def test_a_process_that_ends_at_any_step(lab: Lab, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.unlogged(*CHANGES)
    if at == "before reading":

        def end(_: RereadPart) -> None:
            raise PenstockError("CANCELLED", "the process ends")

        with pytest.raises(PenstockError):
            lab.reread("orders", end)
    elif at == "before settling":
        with monkeypatch.context() as patch:

            def end_now(*_: object, **__: object) -> Settlement:
                raise PenstockError("CANCELLED", "the process ends")

            patch.setattr(lab.path.log, "settle", end_now)
            with pytest.raises(PenstockError):
                lab.reread("orders")
    elif at == "while corrections are handed over":

        def torn(piece: Corrections, _: int) -> Iterator[Corrections]:
            yield next(iter(chunks(piece, 200)))
            raise PenstockError("CANCELLED", "the process ends")

        with monkeypatch.context() as patch:
            patch.setattr(hand_over, "chunks", torn)
            with pytest.raises(PenstockError):
                lab.reread("orders")
    else:
        with monkeypatch.context() as patch:

            def no_close(*_: object, **__: object) -> bool:
                raise PenstockError("CANCELLED", "the process ends")

            patch.setattr(lab.path.log._puller._doubted, "close", no_close)  # type: ignore[union-attr]
            with pytest.raises(PenstockError):
                lab.reread("orders")
    assert lab.state("orders").state is TableCondition.REREADING
    lab.path.restart()
    assert lab.state("orders").is_open
    settlement = lab.settled("orders")
    assert (settlement.rows == 0) == (at == "after settling")
    lab.check()
    leftovers = [n for d in lab.path.dispatchers for n in lab.path.store.objects.list_names(f"spans/{d.span.span_id}/bulk/reread-")]
    assert leftovers == []


def test_a_table_that_is_paused_is_left_out_until_it_is_read_again(lab: Lab) -> None:
    table_id = lab.doubt("orders")
    lab.path.log.fail_round(table_id, PenstockError("TABLE_PAUSED", "left out"), 0.0)
    lab.run("UPDATE {s}.orders SET note = 'while paused' WHERE id < 5", "INSERT INTO {s}.other VALUES (1, 'goes on')")
    lab.path.drain()
    with pytest.raises(PenstockError, match="orders"):
        lab.check()
    assert lab.not_covered() == {f"{lab.schema}.orders": "quarantined"}, "the files say it"
    settlement = lab.reread("orders")
    assert settlement is not None
    assert (settlement.rows, settlement.closed) == (10, True)
    lab.run("UPDATE {s}.orders SET note = 'again' WHERE id < 5")
    lab.check()
    assert lab.not_covered() == {}


class Wishes:
    """Every table is read again; a feed has those that are delivered to it."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def rule(self, schema: str, table: str) -> OnRewrite:
        del schema, table
        return "resnapshot"

    def rechecks(self) -> list[Recheck]:
        return []

    def has_table(self, table_id: int) -> bool:
        return any(d.id.table_id == table_id for d in self._lab.path.live())

    def concerns(self, table_id: int, schema: str, table: str) -> bool:
        del table
        return schema == self._lab.schema or self.has_table(table_id)


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_the_server_s_loop_quarantines_a_table_that_it_may_not_read_and_heals_it_later(database: UnloggedDatabase, tmp_path: Path) -> None:
    """Nobody is told: the loop finds the doubts, other tables go on, and the table is right once it can be read."""
    user = "REPLICATION SLAVE, REPLICATION SLAVE ADMIN, BINLOG MONITOR, RELOAD"
    schema = database.make_tables()
    database.run("CREATE OR REPLACE USER cdc@'%'", f"GRANT {user} ON *.* TO cdc@'%'")
    database.run(*(f"GRANT SELECT ON {schema}.{table} TO cdc@'%'" for table in ("orders", "other", "bag")))
    address = parse_uri(database.uri)
    lab = Lab(database, tmp_path, schema, f"mysql://cdc@{address.host}:{address.port}/")
    registry = CollectorRegistry()
    settings = RereadSettings(delay_s=0.01, backoff_s=0.1, backoff_max_s=0.5)
    loop = DoubtedTables(lab.path.log, lab.path.reread, Wishes(lab), settings, SystemClock(), random.Random(1), DoubtMetrics(registry))
    with contextlib.closing(lab.path):
        lab.unlogged(*CHANGES)
        database.run(f"REVOKE SELECT ON {schema}.orders FROM cdc@'%'", f"UPDATE {schema}.orders SET amount = -1 WHERE id > 900")
        database.run("CREATE DATABASE nobodys", "GRANT SELECT ON nobodys.* TO cdc@'%'")
        database.run("SET binlog_format = STATEMENT", "CREATE TABLE nobodys.filled AS SELECT 1 AS a")
        lab.path.wait_until("the doubt", lambda: "filled" in {s.table for s in lab.path.log.table_states() if s.is_open})
        loop.start()
        try:
            loop.resnapshot(lab.table_id("orders"), schema, "orders")
            lab.path.wait_until("the quarantine", lambda: lab.state("orders").state is TableCondition.QUARANTINED)
            assert lab.state("orders").code == "TABLE_UNKNOWN"
            assert lab.state("orders").hint
            loop.resnapshot(lab.table_id("other"), schema, "other")
            database.run(f"INSERT INTO {schema}.other VALUES (1, 'goes on')")
            lab.path.drain()
            lab.path.wait_until("the other table", lambda: lab.state("other").state is TableCondition.OK)
            database.run(f"GRANT SELECT ON {schema}.orders TO cdc@'%'")
            lab.path.wait_until("the table itself", lambda: lab.state("orders").state is TableCondition.OK)
            lab.path.wait_until("a table in no feed is forgotten", lambda: all(s.table != "filled" for s in lab.path.log.table_states()))
        finally:
            loop.stop()
        lab.check()


def test_a_table_that_only_has_a_name_is_read_when_the_log_tells_its_columns(lab: Lab) -> None:
    """Nobody said how it was made, and what the log shows is not what the server shows."""
    if lab.database.kind == "postgres":
        pytest.skip("its log names the columns of every table")
    quiet, told = "SET sql_log_bin = 0", "SET sql_log_bin = 1"
    lab.run("SET GLOBAL binlog_row_metadata = 'NO_LOG'")
    try:
        lab.path.close_services()
        lab.run(quiet, "CREATE TABLE {s}.odd (id INT PRIMARY KEY, a INT)", told, "INSERT INTO {s}.odd VALUES (1, 1), (2, NULL)")
        lab.run(quiet, "CREATE TABLE {s}.brief (id INT PRIMARY KEY)", told, "INSERT INTO {s}.brief VALUES (1)")
        lab.run(quiet, "ALTER TABLE {s}.odd ADD COLUMN b INT", "ALTER TABLE {s}.brief ADD COLUMN b INT", told)
        lab.run("INSERT INTO {s}.orders VALUES (-1, 'others go on', 1)")
        lab.path.open()
        lab.path.begin()
        lab.path.drain()
        [state] = [s for s in lab.path.log.table_states() if s.table == "odd"]
        assert (state.table_id, state.state, state.code) == (0, TableCondition.QUARANTINED, "SCHEMA_UNKNOWN")
        assert [s.table_id for s in lab.path.log.table_states() if s.table == "brief"] == [0]
        lab.check()
        lab.run("DROP TABLE {s}.brief")
        lab.path.drain()
        assert all(s.table != "brief" for s in lab.path.log.table_states()), "nobody waits for a table that is no more"
        lab.path.log.look_again()
        lab.run("INSERT INTO {s}.odd VALUES (3, 3, 3)")
        lab.path.drain()
        lab.path.begin()
        [state] = [s for s in lab.path.log.table_states() if s.table == "odd"]
        assert state.table_id != 0, "from here on it is a doubt about a table"
        found = lab.path.reread().run(state.table_id) if state.is_open else None
        assert found is None or found.closed
        lab.path.drain()
        verdict = lab.path.verify()
        verdict.check()
        assert {t.name.partition(".")[2]: t.rows for t in verdict.tables}["odd"] == 3
    finally:
        lab.run("SET GLOBAL binlog_row_metadata = 'FULL'")
