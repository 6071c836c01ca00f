"""Tables of a PostgreSQL feed whose names come, go and change places: its files, replayed by name, are what the server has under it."""

import contextlib
import sqlite3

import pytest

from penstock.readback.consumer import StorageConsumer
from penstock.readback.replay_opening import open_database
from penstock.server.verify.verification import open_reader
from testing.paths.one_log_path import OneLogPath

pytestmark = pytest.mark.integration
TWO = (
    "CREATE TABLE shop.a (id int PRIMARY KEY, v text); CREATE TABLE shop.b (id int PRIMARY KEY, v text);"
    "INSERT INTO shop.a VALUES (1, 'a'); INSERT INTO shop.b VALUES (1, 'b'), (2, 'b')"
)
SWAP = "BEGIN; ALTER TABLE shop.a RENAME TO tmp; ALTER TABLE shop.b RENAME TO a; ALTER TABLE shop.tmp RENAME TO b; COMMIT"
CASES = {
    "reload_and_swap": (
        "CREATE TABLE shop.s (id int PRIMARY KEY, v text); INSERT INTO shop.s VALUES (1, 'old')",
        [
            "BEGIN; CREATE TABLE shop.s_new (id int PRIMARY KEY, v text); INSERT INTO shop.s_new VALUES (1, 'new'), (2, 'new');"
            "DROP TABLE shop.s; ALTER TABLE shop.s_new RENAME TO s; COMMIT",
            "INSERT INTO shop.s VALUES (3, 'after')",
            "INSERT INTO shop.s VALUES (4, 'later')",
        ],
    ),
    "swap": (TWO, [SWAP, "INSERT INTO shop.a VALUES (5, 'into a'); INSERT INTO shop.b VALUES (6, 'into b')", SWAP]),
    "name_used_three_times": (
        "CREATE TABLE shop.t1 (a int PRIMARY KEY, b int); INSERT INTO shop.t1 VALUES (1, 1)",
        [
            "INSERT INTO shop.t1 VALUES (2, 2); ALTER TABLE shop.t1 RENAME TO t1_old;"
            "CREATE TABLE shop.t1 (a int PRIMARY KEY); INSERT INTO shop.t1 VALUES (3); ALTER TABLE shop.t1 RENAME TO t1_old2;"
            "CREATE TABLE shop.t1 (a int PRIMARY KEY); INSERT INTO shop.t1 VALUES (4)",
            "INSERT INTO shop.t1_old VALUES (5, 5); INSERT INTO shop.t1 VALUES (6)",
        ],
    ),
    "written_altered_and_written_in_one_transaction": (
        "CREATE TABLE shop.m (id int PRIMARY KEY, v text); INSERT INTO shop.m VALUES (1, 'old')",
        [
            "BEGIN; INSERT INTO shop.m VALUES (2, 'a'); UPDATE shop.m SET v = 'b' WHERE id = 1; ALTER TABLE shop.m ADD w int DEFAULT 5;"
            "INSERT INTO shop.m VALUES (3, 'c', 6); COMMIT",
            "INSERT INTO shop.m VALUES (4, 'd', 7)",
        ],
    ),
    "drop_and_create": (
        "CREATE TABLE shop.t (id int PRIMARY KEY, v text); INSERT INTO shop.t VALUES (1, 'old'), (2, 'old')",
        [
            "DROP TABLE shop.t; CREATE TABLE shop.t (id int PRIMARY KEY, v text); INSERT INTO shop.t VALUES (7, 'x')",
            "DROP TABLE shop.t",
            "CREATE TABLE shop.t (id int PRIMARY KEY, v text); INSERT INTO shop.t VALUES (8, 'y')",
        ],
    ),
}


def server_tables(lab):
    names = [row[0] for row in lab.sql("SELECT relname FROM pg_class WHERE relnamespace = 'shop'::regnamespace AND relkind = 'r'")]
    return {name: sorted(lab.sql(f'SELECT * FROM shop."{name}"')) for name in names}


def replayed_tables(path, file):
    """Replay the target from its beginning, as ``penstock replay`` does."""
    file.unlink(missing_ok=True)
    database = open_database(f"sqlite:///{file}")
    StorageConsumer(open_reader(path.target.as_uri(), {}), database).run_round()
    database.close()
    with contextlib.closing(sqlite3.connect(file)) as connection:
        names = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'") if n.startswith("shop.")]
        rows = {n: connection.execute(f'SELECT * FROM "{n}"').fetchall() for n in names}
    return {n.removeprefix("shop."): sorted(tuple(None if v is None else str(v) for v in r) for r in found) for n, found in rows.items()}


@pytest.mark.parametrize("together", [False, True], ids=["one_by_one", "at_once"])
@pytest.mark.parametrize("case", CASES)
def test_files_by_name_are_the_tables_by_name(lab, upstream, tmp_path, case, together):
    setup, statements = CASES[case]
    lab.sql(setup)
    path = OneLogPath(tmp_path, f"{lab.uri}?slot={upstream.address.slot}", ["shop.*"])
    seen = []

    def equal():
        path.drain()
        seen.append((replayed_tables(path, tmp_path / "replay.db"), server_tables(lab)))
        return seen[-1][0] == seen[-1][1]

    try:
        path.begin()
        path.drain()

        for statement in statements:
            lab.sql(statement)
            if not together:
                path.wait_until(f"{statement}: {seen[-1:]}", equal)
        path.wait_until("the tables are equal", equal)
        if together:
            path.restart()
            lab.sql("CREATE TABLE shop.last (id int PRIMARY KEY); INSERT INTO shop.last VALUES (1)")
            path.wait_until("the tables are equal after a restart", equal)
    finally:
        path.close()


def test_a_table_that_moves_into_the_feed_and_gets_no_row(lab, upstream, tmp_path):
    """A name that is taken without a row is in no log, and the table is nobody's until it is told."""
    lab.sql("CREATE SCHEMA IF NOT EXISTS apart; CREATE TABLE apart.w (id int PRIMARY KEY, v text); INSERT INTO apart.w VALUES (1, 'a')")
    lab.sql("CREATE TABLE shop.t (id int PRIMARY KEY, v text); INSERT INTO shop.t VALUES (1, 't')")
    path = OneLogPath(tmp_path, f"{lab.uri}?slot={upstream.address.slot}", ["shop.*"])

    def equal():
        path.drain()
        return replayed_tables(path, tmp_path / "replay.db") == server_tables(lab)

    try:
        path.begin()
        path.wait_until("the tables are equal", equal)
        lab.sql("ALTER TABLE apart.w SET SCHEMA shop")
        path.wait_until("the table has come", equal)
        lab.sql("INSERT INTO shop.w VALUES (2, 'b')")
        path.close_services()
        lab.sql("ALTER TABLE shop.w RENAME TO x")
        path.open()
        path.begin()
        path.wait_until("the table goes on", equal)
    finally:
        path.close()
        lab.sql("DROP SCHEMA apart CASCADE")
