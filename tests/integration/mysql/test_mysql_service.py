"""The log service between a real MariaDB and the real event store: the captured tables are the server's, also after restarts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from penstock.access.mysql_server import parse_uri
from penstock.model.span import Span, cut
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.source.contract import LogPosition, SnapshotTicket
from penstock.source.mysql.connection import Session
from penstock.source.mysql.server import Server
from penstock.source.mysql.snapshot.key_ranges import cut_keys, span_conditions
from penstock.source.mysql.upstream import MySqlUpstream
from penstock.store.contract import EndOfRange
from testing.servers.databases.mysql_lab import BINLOG, Capture, connect, run
from testing.servers.databases.mysql_server import mysql
from testing.servers.loopback_server import mariadb

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mariadb(tmp_path_factory.mktemp("mariadb"), BINLOG) as uri:
        yield uri


def random_changes(connection: Any, rng: random.Random, rounds: int) -> None:
    """Write transactions that insert, update, delete, replace and roll back, some of them to savepoints."""
    for _ in range(rounds):
        run(connection, "BEGIN")
        for _ in range(rng.randint(1, 6)):
            low = rng.randint(0, 180)
            kind = rng.randint(0, 5)
            if kind == 0:
                values = ",".join(f"({rng.randint(0, 200)}, 'n{rng.randint(0, 9)}', {rng.randint(-999, 999)}.25)" for _ in range(5))
                run(connection, f"INSERT IGNORE INTO orders VALUES {values}")
            elif kind == 1:
                run(connection, f"UPDATE orders SET amount = amount + 1, note = 'u' WHERE id BETWEEN {low} AND {low + 9}")
            elif kind == 2:
                run(connection, f"DELETE FROM orders WHERE id BETWEEN {low} AND {low + 3}")
            elif kind == 3:
                run(connection, f"REPLACE INTO orders VALUES ({low}, 'r', 7)")
            elif kind == 4:
                run(connection, f"UPDATE IGNORE orders SET id = id + 1000 WHERE id = {low}")
            else:
                run(connection, "SAVEPOINT s", f"DELETE FROM orders WHERE id > {low}", "ROLLBACK TO s")
        run(connection, "COMMIT" if rng.random() < 0.85 else "ROLLBACK")


def test_random_transactions_over_restarts_are_captured_as_the_server_has_them(server: str, tmp_path: Path) -> None:
    check_random_transactions(server, tmp_path)


@pytest.mark.mysql
def test_random_transactions_on_mysql_are_captured_as_the_server_has_them(tmp_path: Path) -> None:
    with mysql(tmp_path / "server", ("--binlog-row-metadata=MINIMAL",)) as uri:
        check_random_transactions(uri, tmp_path)


def check_random_transactions(server: str, tmp_path: Path) -> None:
    writer = connect(server)
    run(writer, "CREATE DATABASE shop", "USE shop", "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(20), amount DECIMAL(10,2))")
    rng = random.Random(7)
    first = Capture(server, tmp_path)
    table = first.table("shop.orders")
    # Two spans of one table, cut inside the keys that are written, and one table in all.
    cut = (100 + (1 << 63)).to_bytes(8, "big")
    spans = [Span(table.table_id, b"", cut), Span(table.table_id, cut, b"")]
    for span in spans:
        first.service.ensure_span(span, TS_ZERO)
    for round_ in range(3):
        capture = first if round_ == 0 else Capture(server, tmp_path)
        for span in spans:
            capture.service.ensure_span(span, TS_ZERO)
        random_changes(writer, rng, 40)
        settled = capture.service.settled_ts()
        for span in spans:
            capture.wait(span.span_id, settled)
        assert capture.table("shop.orders") == table
        assert capture.state(table, spans, settled).equals(capture.expected(table))
        # Written while nobody captures: read from the log after the restart.
        capture.close()
        random_changes(writer, rng, 10)
    last = Capture(server, tmp_path)
    for span in spans:
        last.service.ensure_span(span, TS_ZERO)
    settled = last.service.settled_ts()
    for span in spans:
        last.wait(span.span_id, settled)
    got = last.state(table, spans, settled)
    assert got.height > 20
    assert got.equals(last.expected(table))
    last.close()


def test_a_snapshot_beside_a_running_log_and_ddl(server: str, tmp_path: Path) -> None:
    writer = connect(server)
    run(writer, "CREATE DATABASE late", "USE late", "CREATE TABLE t (a INT, b VARCHAR(10), c INT, PRIMARY KEY (b, a))")
    run(writer, "INSERT INTO t VALUES (1, 'x', 1), (2, 'y', 2), (3, 'z', 3)")
    capture = Capture(server, tmp_path)
    table = capture.table("late.t")
    span = Span(table.table_id)
    # A commit that the reader has passed before the snapshot begins.
    run(writer, "UPDATE t SET c = 20 WHERE a = 2")
    capture.service.settled_ts()
    ticket = capture.upstream.begin_snapshot()
    capture.service.ensure_span(span, ticket.start.ts)
    run(writer, "DELETE FROM t WHERE a = 1", "INSERT INTO t VALUES (4, 'w', 4)")
    rows = list(capture.upstream.read_snapshot(ticket, span, table, 2))
    assert {b.header.min_ts for b in rows} == {ticket.start.ts}
    assert sorted(v for b in rows for v in b.records.column("c1").to_pylist()) == [2, 3, 4]
    run(writer, "ALTER TABLE t ADD COLUMN d DATETIME(3) FIRST, RENAME COLUMN c TO e", "INSERT INTO t VALUES (NOW(3), 5, 'v', 5)")
    settled = capture.service.settled_ts()
    capture.wait(span.span_id, settled)
    history = capture.store.schema_history(table.table_id)
    assert [[c.name for c in v.columns] for v in history] == [["a", "b", "c"], ["d", "a", "b", "e"]]
    assert [c.id for c in history[1].columns] == [4, 1, 2, 3]
    handle = capture.store.collect_changes(span.span_id, ticket.start.ts, settled)
    seen: list[tuple[int, int]] = []
    while not isinstance(step := handle.next(), EndOfRange):
        for batch in (*step.tombstones, *step.data):
            seen += zip(batch.records.column("_op").to_pylist(), batch.records.column("c1").to_pylist(), strict=True)
    handle.close()
    assert sorted(seen) == [(0, 4), (0, 5), (2, 1)]
    capture.close()


def test_ddls_and_rows_that_were_written_while_nobody_read(server: str, tmp_path: Path) -> None:
    writer = connect(server)
    run(writer, "CREATE DATABASE away", "USE away", "CREATE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (1, 1)")
    first = Capture(server, tmp_path)
    table = first.table("away.t")
    span = Span(table.table_id)
    first.service.ensure_span(span, TS_ZERO)
    run(writer, "INSERT INTO t VALUES (2, 2)")
    first.wait(span.span_id, first.service.settled_ts())
    first.close()
    # The server shows only the last of these shapes, and rows of each are in the log.
    run(writer, "ALTER TABLE t ADD COLUMN b DECIMAL(5,2) DEFAULT 1.5 AFTER id", "INSERT INTO t VALUES (3, 3.25, 3)")
    run(writer, "ALTER TABLE t DROP COLUMN a, ADD COLUMN c BIGINT UNSIGNED", "INSERT INTO t VALUES (4, 4, 18446744073709551615)")
    run(writer, "ALTER TABLE t CHANGE b d VARCHAR(20), ADD COLUMN e ENUM('x','y')", "UPDATE t SET e = 'y' WHERE id = 4")
    second = Capture(server, tmp_path)
    second.service.ensure_span(span, TS_ZERO)
    settled = second.service.settled_ts()
    second.wait(span.span_id, settled)
    versions = second.store.schema_history(table.table_id)
    assert [[(c.id, c.name) for c in v.columns] for v in versions] == [
        [(1, "id"), (2, "a")],
        [(1, "id"), (3, "b"), (2, "a")],
        [(1, "id"), (3, "b"), (4, "c")],
    ]
    # Numbers that become texts are spelled otherwise by every reader: the table begins again.
    (anew,) = [t for t in second.upstream.list_tables() if t.full_name == "away.t"]
    assert anew.table_id != table.table_id
    assert [(c.id, c.name) for c in anew.columns] == [(1, "id"), (3, "d"), (4, "c"), (5, "e")]
    handle = second.store.collect_changes(span.span_id, 1, settled)
    seen = []
    while not isinstance(step := handle.next(), EndOfRange):
        for batch in step.data:
            seen += [{k: v for k, v in row.items() if not k.startswith("_")} for row in batch.records.to_pylist()]
    handle.close()
    assert seen == [
        {"c1": 2, "c2": 2},
        {"c1": 3, "c3": "3.25", "c2": 3},
        {"c1": 4, "c3": "4.00", "c4": 18446744073709551615},
    ]
    second.close()


def test_xa_transactions_count_when_they_are_committed(server: str, tmp_path: Path) -> None:
    check_xa(server, tmp_path)


@pytest.mark.mysql
def test_xa_transactions_of_mysql_count_when_they_are_committed(tmp_path: Path) -> None:
    with mysql(tmp_path / "server") as uri:
        check_xa(uri, tmp_path)


def check_xa(server: str, tmp_path: Path) -> None:
    writer, other = connect(server), connect(server)
    run(writer, "CREATE DATABASE xa", "USE xa", "CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    capture = Capture(server, tmp_path)
    table = capture.table("xa.t")
    spans = [Span(table.table_id)]
    capture.service.ensure_span(spans[0], TS_ZERO)
    run(writer, "XA START 'one'", "INSERT INTO t VALUES (1, 1), (2, 2)", "XA END 'one'", "XA PREPARE 'one'")
    run(other, "USE xa", "INSERT INTO t VALUES (3, 3)")
    # A restart between the two halves: the first one is read again.
    capture.close()
    capture = Capture(server, tmp_path)
    capture.service.ensure_span(spans[0], TS_ZERO)
    run(
        writer,
        "XA COMMIT 'one'",
        "XA START 'two','b'",
        "DELETE FROM t",
        "XA END 'two','b'",
        "XA PREPARE 'two','b'",
        "XA ROLLBACK 'two','b'",
    )
    run(writer, "XA START 'three'", "UPDATE t SET v = 7 WHERE id = 2", "XA END 'three'", "XA COMMIT 'three' ONE PHASE")
    assert capture.check(table, spans) == 3
    capture.close()


KEYS = [
    ("id INT", "CAST(seq AS SIGNED) - 600", "id"),
    ("id BIGINT UNSIGNED", "seq * 18000000000000000 + 1", "id"),
    ("id VARCHAR(40) CHARACTER SET latin1", "CONCAT(IF(seq % 2, 'Ä', 'z'), seq)", "id"),
    ("id VARBINARY(9), z INT", "UNHEX(LPAD(HEX(seq % 50), 8, '0')), seq", "id, z"),
    ("a INT, id DECIMAL(20,5)", "seq % 7, seq / 3", "id, a"),
    ("id DATETIME(6), b ENUM('y','x')", "'2026-01-01' + INTERVAL seq * 1001 MICROSECOND, 1 + seq % 2", "b, id"),
    ("id DOUBLE", "seq / 7", "id"),
    ("id INT, n INT", "seq, NULL", ""),
    ("id BINARY(16)", "UNHEX(MD5(seq))", "id"),
    ("id VARCHAR(30) COLLATE utf8mb4_bin, z INT", "CONCAT(CHAR(33 + seq % 90), IF(seq % 3, '', CHAR(9, 10)), 'ü', seq % 11), seq", "id, z"),
    ("id VARCHAR(30) CHARACTER SET ascii COLLATE ascii_bin, z INT", "CONCAT(REPEAT('a', seq % 5), CHAR(9 + seq % 40)), seq", "id, z"),
    (
        "id VARCHAR(9) COLLATE utf8mb4_nopad_bin, z INT",
        "CONCAT(REPEAT('b', seq % 7), ' ', CHAR(1 + seq % 99)), seq",
        "id, z",
    ),
    ("id DATE, z INT", "IF(seq % 9, '2020-01-01' + INTERVAL seq DAY, '0000-00-00'), seq", "id, z"),
    ("id UUID", "UUID()", "id"),
    ("id CHAR(36)", "UUID()", "id"),
]
ONE_RANGE = {2, 4, 5, 6, 7, 13, 14}
"""Keys whose order at the server is not that of their bytes, or by which no index begins."""


def test_snapshots_in_pages_and_ranges_hold_every_row_once_whatever_the_key(server: str, tmp_path: Path) -> None:
    writer = connect(server)
    run(writer, "CREATE DATABASE pages CHARACTER SET utf8mb4", "USE pages")
    upstream = MySqlUpstream(server)
    for number, (columns, values, key) in enumerate(KEYS):
        primary = f", PRIMARY KEY ({key})" if key else ""
        run(writer, f"CREATE TABLE t{number} ({columns}, v TEXT{primary})")
        run(writer, f"INSERT INTO t{number} SELECT {values}, REPEAT('x', seq % 30) FROM seq_1_to_1000", f"ANALYZE TABLE t{number}")
    session = Session(parse_uri(server))
    for table in (t for t in upstream.list_tables() if t.schema == "pages"):
        span = Span(table.table_id)
        ticket = SnapshotTicket(LogPosition(77, ""))
        whole = [b.records for b in upstream.read_snapshot(ticket, span, table, 1000)]
        keys = [k for r in whole for k in r.column("_key").to_pylist()]
        assert len(keys) == len(set(keys)) == 1000
        pages = [b.records for b in upstream.read_snapshot(ticket, span, table, 11)]
        assert len(pages) > 10 or not table.key_columns
        assert pl.from_arrow(pa.Table.from_batches(pages)).sort("_key").equals(pl.from_arrow(pa.Table.from_batches(whole)).sort("_key"))
        ranges = cut(span, cut_keys(Server(parse_uri(server)), table, span, range_rows=100))
        if int(table.table[1:]) in ONE_RANGE:
            assert len(ranges) == 1
        else:
            assert len(ranges) > 3, table
        assert [r.end_key for r in ranges[:-1]] == [r.start_key for r in ranges[1:]]
        parts, read = [], 0
        for piece in ranges:
            part = [b.records for b in upstream.read_snapshot(ticket, piece, table, 50)]
            assert all(piece.contains(k) for r in part for k in r.column("_key").to_pylist())
            parts += part
            if len(ranges) > 1:
                borders = span_conditions(session, table, piece)
                assert len(borders) == (piece is not ranges[0]) + (piece is not ranges[-1]), borders
                read += server_count(session, table, borders)
        assert sorted(k for r in parts for k in r.column("_key").to_pylist()) == sorted(keys)
        # The server reads little more than the parts.
        assert read <= 2 * len(keys)
    session.close()
    upstream.close()


def server_count(session: Session, table: TableSchema, borders: list[str]) -> int:
    return int(session.rows(f"SELECT COUNT(*) FROM {table.full_name} WHERE {' AND '.join(borders)}")[0][0])
