"""Feeds whose event store is on shared storage: a machine is lost, another goes on, little is pulled again, files are right."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.model.batch import ChangeBatch, Op
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN
from penstock.server.verify.verification import open_reader
from penstock.store.contract import WindowWish
from penstock.store.event_store import ColumnarEventStore
from testing.checks.target_audit import DeliveredChanges, numbering_problems
from testing.paths.feed_path import FeedPath
from testing.paths.one_log_path import OneLogPath
from testing.paths.whole_path import WholePath
from testing.servers.databases.live_database import Database, live_database

pytestmark = pytest.mark.integration
ROUNDS = 40
ROWS = 50


@pytest.fixture(scope="module", params=["mariadb", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with live_database(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield Database(request.param, found.uri)


class Pulled:
    """Counts the rows that a store is given from now on."""

    def __init__(self, store: ColumnarEventStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        append = store.append

        def counted(span_id: int, batches: Sequence[ChangeBatch], on_persisted: Any) -> bool:
            self.rows += sum(b.header.rows for b in batches)
            return append(span_id, batches, on_persisted)

        monkeypatch.setattr(store, "append", counted)


def share(path: FeedPath) -> None:
    assert path.store._sharing is not None
    path.store._sharing.share()


def write(database: Database, schema: str, first: int, rounds: int) -> None:
    for n in range(first, first + rounds):
        values = ",".join(f"({n * ROWS + k}, 'round {n}', {k})" for k in range(ROWS))
        database.run(f"INSERT INTO {schema}.orders VALUES {values}", f"UPDATE {schema}.quiet SET amount = amount + 1 WHERE id = {n % 3}")


def test_the_loss_of_a_machine_loses_nothing_and_little_is_pulled_again(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = database.make_schema()
    columns = "(id INT PRIMARY KEY, note VARCHAR(40), amount INT)"
    database.run(f"CREATE TABLE {schema}.orders {columns}", f"CREATE TABLE {schema}.quiet {columns}")
    database.run(f"INSERT INTO {schema}.quiet VALUES (0, 'a', 0), (1, 'b', 0), (2, 'c', 0)")
    path = OneLogPath(tmp_path, database.uri, [f"{schema}.*"], shared=tmp_path / "shared")
    with contextlib.closing(path):
        path.begin()
        first = Pulled(path.store, monkeypatch)
        write(database, schema, 0, ROUNDS)
        database.run(f"ALTER TABLE {schema}.orders ADD COLUMN late INT DEFAULT 7")
        path.drain()
        share(path)
        shared_ts = path.store.recoverable_ts([DDL_SPAN.span_id, *(d.span.span_id for d in path.live())])
        # These are captured and delivered, and in no object yet.
        database.run(f"INSERT INTO {schema}.orders (id, note, amount) VALUES (-1, 'newest', 0), (-2, 'newest', 0)")
        path.drain()
        assert path.log._recoverable_ts() == shared_ts < path.meta.get_feed("f").checkpoint_ts, "the log is kept for a successor"
        path.lose_disk()
        database.run(f"DELETE FROM {schema}.orders WHERE id = 5", f"UPDATE {schema}.quiet SET note = 'after' WHERE id = 1")
        path.open()
        again = Pulled(path.store, monkeypatch)
        path.begin()
        path.drain()
        assert path.verify().identical
        assert first.rows >= ROUNDS * (ROWS + 1)
        new = 1 + 2  # A delete, and an update with what was before.
        assert 0 < again.rows - new <= 0.05 * first.rows, (again.rows, first.rows)
        changes = DeliveredChanges(open_reader(path.target_uri, {}))
        assert changes.problems() == []
        inserts = changes.operations()[Op.INSERT]
        assert inserts == ROUNDS * ROWS + 3 + 2, "what was pulled again was not delivered again"
        assert numbering_problems(path.target) == []


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_corrections_that_no_log_gives_again_survive_the_machine(database: Database, tmp_path: Path) -> None:
    schema = database.make_schema()
    database.run(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note VARCHAR(40))", f"INSERT INTO {schema}.orders VALUES (1, 'a')")
    with contextlib.closing(OneLogPath(tmp_path, database.uri, [f"{schema}.*"], shared=tmp_path / "shared")) as path:
        path.begin()
        path.drain()
        share(path)
        database.run("SET sql_log_bin = 0", f"INSERT INTO {schema}.orders VALUES (2, 'no word of it')")
        table_id = path.dispatchers[0].id.table_id
        path.log.doubt_table(table_id, schema, "orders", "the test says so")
        settled = path.reread().run(table_id)
        assert settled is not None
        assert (settled.rows, settled.closed) == (1, True)
        path.lose_disk()
        path.open()
        path.begin()
        path.drain()
        assert path.verify().identical


def test_ranges_go_on_elsewhere_and_a_server_that_lives_on_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = WholePath(tmp_path, ["CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(20))"], shared=tmp_path / "shared")
    with contextlib.closing(path):
        first = Pulled(path.store, monkeypatch)
        for n in range(ROUNDS):
            path.write({"d.t": {n * ROWS + k: f"round {n}" for k in range(ROWS)}})
        path.drain()
        share(path)
        path.wait_resolved(path.write({"d.t": {-1: "newest"}}))
        # Cut off from everything but its own disk, the old server still has its store.
        old = path.store
        path.disk = "other"
        path.open_services(path.upstream, path._capture)
        again = Pulled(path.store, monkeypatch)
        path._capture()
        path.drain()
        assert path.verify().identical
        assert again.rows <= 0.05 * first.rows, (again.rows, first.rows)
        with pytest.raises(PenstockError, match=r"\[FENCED\]"):
            old.flush(path.live()[0].span.span_id)
        with pytest.raises(PenstockError, match=r"\[FENCED\]"):
            old.plan_window(WindowWish([path.live()[0].span.span_id], [], 1, 1 << 20))
        old.close()
