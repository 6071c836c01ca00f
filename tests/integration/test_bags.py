"""Tables without a key on MariaDB and PostgreSQL: every copy of a row counts, in files, in the store, after restarts and merges."""

from __future__ import annotations

import contextlib
import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.meta.table_states import TableState
from testing.paths.one_log_path import OneLogPath
from testing.servers.databases.live_database import Database, live_database

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", params=["mariadb", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with live_database(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


def copies_in_files(target: Path, table: str) -> Counter[tuple[str, ...]]:
    """Count by hand: the CSV files in their order, an insert is one more, a delete one less; an update is not told of a bag."""
    found: Counter[tuple[str, ...]] = Counter()
    for file in sorted(target.glob(f"*/{table}/**/CDC*.csv"), key=lambda f: (f.parts[-2:], f.name)):
        for op, _, _, _, *row in csv.reader(file.read_text(encoding="utf-8").splitlines()):
            assert op in {"I", "D"}
            found[tuple(row)] += 1 if op == "I" else -1
    assert min(found.values(), default=0) >= 0
    return +found


def copies_on_server(database: Database, schema: str, table: str) -> Counter[tuple[str, ...]]:
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT a, b FROM {schema}.{table}")
        return Counter(tuple("\\N" if v is None else str(v) for v in row) for row in cursor.fetchall())


def copies_in_store(path: OneLogPath) -> int:
    """Count the rows of the state that a second feed would begin with."""
    total = 0
    for dispatcher in path.dispatchers:
        ts = path.store.resolved_ts(dispatcher.span.span_id)
        handle = path.store.collect_changes(dispatcher.span.span_id, 0, ts)
        while hasattr(step := handle.next(), "data"):
            total += sum(batch.header.rows for batch in step.data)
    return total


def still_open(path: OneLogPath) -> list[TableState]:
    return [s for s in path.log.table_states() if s.is_open]


def delete_one(database: Database, name: str) -> str:
    if database.kind == "postgres":
        return f"DELETE FROM {name} WHERE ctid = (SELECT ctid FROM {name} WHERE a = 1 LIMIT 1)"
    return f"DELETE FROM {name} WHERE a = 1 LIMIT 1"


def test_every_copy_counts(database: Database, tmp_path: Path) -> None:
    schema = database.make_schema()
    name = f"{schema}.bag"
    database.run(f"CREATE TABLE {name} (a INT, b VARCHAR(40))")
    if database.kind == "postgres":
        database.run(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
    database.run(f"INSERT INTO {name} VALUES (1, 'd'), (1, 'd'), (1, 'd'), (2, NULL), (2, NULL), (3, 'x')")
    path = OneLogPath(tmp_path, database.uri, [f"{schema}.*"])

    def check() -> None:
        path.drain()
        expected = copies_on_server(database, schema, "bag")
        assert copies_in_files(path.target, "bag") == expected
        assert copies_in_store(path) == sum(expected.values())
        path.verify().check()

    try:
        path.begin()
        check()
        database.run(delete_one(database, name))
        check()
        database.run(f"INSERT INTO {name} VALUES (1, 'd'), (3, 'x')", f"UPDATE {name} SET b = 'y' WHERE a = 2")
        check()
        with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
            # Comes and goes in one transaction, beside copies that stay.
            cursor.execute("BEGIN")
            cursor.execute(f"INSERT INTO {name} VALUES (1, 'd'), (9, 'brief')")
            cursor.execute(f"DELETE FROM {name} WHERE a = 9")
            cursor.execute(f"UPDATE {name} SET a = 4 WHERE a = 3")
            cursor.execute(f"UPDATE {name} SET a = 3 WHERE a = 4")
            cursor.execute("COMMIT")
        check()
        path.restart()
        database.run(delete_one(database, name), delete_one(database, name))
        check()
        (span,) = [d.span.span_id for d in path.dispatchers]
        path.store.flush(span)
        assert path.store.merge(span)
        database.run(delete_one(database, name), f"INSERT INTO {name} VALUES (2, 'y')")
        check()
        database.run(f"DELETE FROM {name}")
        check()
        database.run(f"INSERT INTO {name} VALUES (1, 'd')")
        check()
    finally:
        path.close()


def test_rows_that_change_while_the_table_is_read_count_once(database: Database, tmp_path: Path) -> None:
    """MariaDB shows a table page by page, so a row that came meanwhile is in the snapshot and in the log: the table is read again."""
    schema = database.make_schema()
    name = f"{schema}.bag"
    database.run(f"CREATE TABLE {name} (a INT, b VARCHAR(40))")
    if database.kind == "postgres":
        database.run(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
    database.run(f"INSERT INTO {name} VALUES " + ",".join(f"({n % 50}, 'x')" for n in range(2_000)))
    path = OneLogPath(tmp_path, database.uri, [f"{schema}.*"])
    try:
        path.close_services()
        # Between the ticket and the reading.
        path.open(lambda _: database.run(f"INSERT INTO {name} VALUES (1, 'x'), (1, 'x'), (99, 'new')", delete_one(database, name)))
        path.begin()
        assert [s.table for s in still_open(path)] == ([] if database.kind == "postgres" else ["bag"])
        for _ in range(5):
            if found := still_open(path):
                path.reread().run(found[0].table_id)
        assert still_open(path) == []
        path.drain()
        expected = copies_on_server(database, schema, "bag")
        assert copies_in_files(path.target, "bag") == expected
        assert copies_in_store(path) == sum(expected.values())
    finally:
        path.close()
