"""Updates of unique keys through the whole path: a database with the same keys takes the files line by line."""

import contextlib
import csv
import io
import sqlite3
from pathlib import Path

import pymysql
import pytest

from penstock.access.mysql_server import parse_uri
from penstock.source.mysql.upstream import MySqlUpstream
from testing.paths.whole_path import WholePath
from testing.servers.loopback_server import mariadb

pytestmark = pytest.mark.integration

SETUP = [
    "CREATE DATABASE d",
    "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40) NOT NULL UNIQUE)",
    "CREATE TABLE d.b (id INT PRIMARY KEY, v VARCHAR(40))",
]


def lines(path: WholePath, table: str) -> list[tuple[str, int, str]]:
    """Return (operation, id, v) of a table's lines, in the order of versions, dates and numbers."""
    files = sorted((path.root / "files" / "d" / table).rglob("CDC*.csv"))
    rows = [row for file in files for row in csv.reader(io.StringIO(file.read_text(encoding="utf-8"), newline=""))]
    return [(row[0], int(row[4]), row[5]) for row in rows]


def apply_one_by_one(rows: list[tuple[str, int, str]]) -> dict[int, str]:
    """Apply lines to a table whose second column is unique; a line that collides raises."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT NOT NULL UNIQUE)")
        for operation, row_id, value in rows:
            if operation == "I":
                database.execute("INSERT INTO t VALUES (?, ?)", (row_id, value))
            elif operation == "U":
                assert database.execute("UPDATE t SET v = ? WHERE id = ?", (value, row_id)).rowcount == 1
            else:
                assert database.execute("DELETE FROM t WHERE id = ?", (row_id,)).rowcount == 1
        return dict(database.execute("SELECT id, v FROM t").fetchall())


@pytest.mark.parametrize("protocol_options", [{}, {"transaction-atomicity": "table"}], ids=["default", "whole-transactions"])
def test_values_move_between_rows(tmp_path: Path, protocol_options: dict[str, str]) -> None:
    with contextlib.closing(WholePath(tmp_path, SETUP, sink_options=protocol_options)) as path:
        path.write({"d.a": {1: "a", 2: "b", 3: "c"}})
        path.feed.run_window()
        path.write({"d.a": {1: "b", 2: "c", 3: "a"}})
        path.write({"d.a": {4: "d", 1: "z"}}, {"d.a": [3]})
        path.drain()
        path.write({"d.a": {2: "c"}})
        path.drain()
        path.verify().check()
        rows = lines(path, "a")
    assert apply_one_by_one(rows) == {1: "z", 2: "c", 4: "d"}
    assert rows[3:9] == [("D", 1, "a"), ("D", 2, "b"), ("D", 3, "c"), ("I", 1, "b"), ("I", 2, "c"), ("I", 3, "a")]
    assert rows[-1] == ("U", 2, "c")


def test_a_key_that_is_declared_later_counts_from_then_on(tmp_path: Path) -> None:
    with contextlib.closing(WholePath(tmp_path, SETUP)) as path:
        path.write({"d.b": {1: "a", 2: "b"}})
        path.write({"d.b": {1: "c"}})
        path.upstream.execute_ddl("ALTER TABLE d.b ADD UNIQUE KEY k (v)")
        path.write({"d.b": {1: "b", 2: "c"}})
        path.drain()
        path.verify().check()
        rows = lines(path, "b")
    assert rows[2:] == [("U", 1, "c"), ("D", 1, "c"), ("D", 2, "b"), ("I", 1, "b"), ("I", 2, "c")]
    assert apply_one_by_one(rows) == {1: "b", 2: "c"}


def test_a_mariadb_server_tells_its_unique_keys(tmp_path: Path) -> None:
    with mariadb(tmp_path, ("--log-bin=bin", "--server-id=1", "--binlog-format=ROW")) as uri:
        address = parse_uri(uri)
        connection = pymysql.connect(host=address.host, port=address.port, user=address.user, autocommit=True)
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE u")
            cursor.execute("CREATE TABLE u.a (id INT PRIMARY KEY, m VARCHAR(9) NOT NULL, n INT, KEY (n), UNIQUE k (n, m), UNIQUE j (m(4)))")
            cursor.execute("CREATE TABLE u.b (n INT, m INT NOT NULL, UNIQUE (n), UNIQUE (m))")
            cursor.execute("CREATE TABLE u.c (n INT)")
        with contextlib.closing(MySqlUpstream(uri)) as upstream:
            found = {t.table: t for t in upstream.list_tables() if t.schema == "u"}
    keys = {name: {tuple(c.name for i in key for c in t.columns if c.id == i) for key in t.unique_keys} for name, t in found.items()}
    assert keys == {"a": {("n", "m"), ("m",)}, "b": {("n",)}, "c": set()}
    assert {name: [c.name for c in t.handle_columns] for name, t in found.items()} == {"a": ["id"], "b": ["m"], "c": []}
