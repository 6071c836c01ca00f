"""The life of a capture of MariaDB: compressed and huge transactions, many log files, lost connections, restarts, purged logs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.access.mysql_server import parse_uri
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.timestamp import TS_ZERO, compose_ts, physical_ms
from penstock.source.mysql.log_reader import LogReaderSettings
from penstock.source.mysql.position import LogPlace
from penstock.source.mysql.server import LogEnd, Server
from penstock.source.mysql.upstream import MySqlUpstream
from penstock.source.single_log import LogPosition
from penstock.store.contract import EndOfRange
from testing.servers.databases.mysql_lab import BINLOG, Capture, connect, restarted, run
from testing.servers.databases.mysql_server import mysql
from testing.servers.loopback_server import mariadb
from testing.servers.waiting import wait_until

pytestmark = pytest.mark.integration
COMPRESSED = ("--log-bin-compress=1", "--log-bin-compress-min-len=10", "--max-binlog-size=65536")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mariadb")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[str]:
    with mariadb(directory, (*BINLOG, *COMPRESSED)) as uri:
        yield uri


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_what_the_log_leaves_out_is_read_by_key(server: str, tmp_path: Path, image: str) -> None:
    writer = connect(server)
    name = f"few_{image.lower()}"
    columns = "a INT DEFAULT 5, k VARCHAR(9), f FLOAT, b TEXT, n DECIMAL(9,3) NOT NULL DEFAULT 1.5, PRIMARY KEY (k, id), id INT"
    run(writer, f"CREATE DATABASE {name}", f"USE {name}", f"CREATE TABLE t ({columns})", f"SET binlog_row_image = '{image}'")
    capture = Capture(server, tmp_path)
    table = capture.table(f"{name}.t")
    spans = [Span(table.table_id)]
    capture.service.ensure_span(spans[0], TS_ZERO)
    capture.service.settled_ts()
    run(
        writer,
        "INSERT INTO t (id, k) SELECT seq, CONCAT('k', seq % 7) FROM seq_1_to_2500",
        "UPDATE t SET b = REPEAT('x', id % 50), f = id / 3",
    )
    run(writer, "UPDATE t SET a = a + id", "UPDATE t SET id = -id WHERE id % 5 = 0", "DELETE FROM t WHERE id % 11 = 0")
    run(writer, "UPDATE t SET b = NULL, n = id WHERE id % 2 = 0", "UPDATE t SET k = 'é\\'' WHERE id % 13 = 0")
    assert capture.check(table, spans) == 2_273
    capture.close()


def test_huge_and_compressed_transactions_over_many_files_and_a_server_restart(server: str, directory: Path, tmp_path: Path) -> None:
    writer = connect(server)
    run(writer, "CREATE DATABASE big", "USE big", "CREATE TABLE t (id INT PRIMARY KEY, note VARCHAR(200), n INT)")
    capture = Capture(server, tmp_path, LogReaderSettings(piece_bytes=100_000))
    table = capture.table("big.t")
    spans = [Span(table.table_id)]
    capture.service.ensure_span(spans[0], TS_ZERO)
    capture.service.settled_ts()
    fill = "INSERT INTO t SELECT seq, REPEAT(CHAR(97 + seq % 26), seq % 180), 0 FROM seq_1_to_20000"
    # One transaction of several pieces that changes its own rows again, also across pieces.
    run(writer, "BEGIN", fill, "UPDATE t SET n = n + 1", "DELETE FROM t WHERE id % 3 = 0", "UPDATE t SET n = n + 1 WHERE id < 50", "COMMIT")
    assert capture.check(table, spans) == 13_334
    run(writer, "BEGIN", "UPDATE t SET note = 'gone'", "ROLLBACK", "UPDATE t SET id = id + 100000 WHERE id < 100")
    assert capture.check(table, spans) == 13_334
    with restarted(directory, server):
        writer = connect(server)
        run(writer, "USE big", "INSERT INTO t VALUES (-1, 'after the restart', 1)", "DELETE FROM t WHERE id BETWEEN 500 AND 900")
        assert capture.check(table, spans) == 13_068
        capture.close()


def test_a_lost_connection_a_purged_log_and_names_that_move(tmp_path: Path) -> None:
    with mariadb(tmp_path / "server", BINLOG) as server:
        writer = connect(server)
        run(writer, "CREATE DATABASE life", "USE life", "CREATE TABLE t (k VARCHAR(20) CHARACTER SET latin1 PRIMARY KEY, v INT)")
        run(writer, "CREATE TABLE bare (a INT, b VARCHAR(5))", "CREATE TABLE odd (a INT NOT NULL, b INT NOT NULL, c TEXT, UNIQUE (b, a))")
        capture = Capture(server, tmp_path / "capture")
        tables = [capture.table(f"life.{name}") for name in ("t", "bare", "odd")]
        spans = {t.table_id: [Span(t.table_id)] for t in tables}
        for found in spans.values():
            capture.service.ensure_span(found[0], TS_ZERO)
        run(writer, "INSERT INTO t VALUES ('a', 1), ('Ä', 2), ('b', 3)", "INSERT INTO bare VALUES (1, NULL), (NULL, 'x'), (2, '')")
        run(
            writer, "INSERT INTO odd VALUES (1, 2, 'x'), (2, 1, NULL)", "UPDATE t SET k = 'A' WHERE k = 'a'", "DELETE FROM bare WHERE a = 1"
        )
        assert [capture.check(t, spans[t.table_id]) for t in tables] == [3, 2, 2]
        # The server ends our stream; it is opened again.
        with writer.cursor() as cursor:
            cursor.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND = 'Binlog Dump'")
            for (number,) in cursor.fetchall():
                cursor.execute(f"KILL {number}")
        run(writer, "FLUSH BINARY LOGS", "INSERT INTO t VALUES ('c', 4)", "UPDATE odd SET b = 7 WHERE a = 1")
        assert [capture.check(t, spans[t.table_id]) for t in tables] == [4, 2, 2]
        # A table that is renamed keeps its id; one that is truncated gets a new one, as does one that is created again.
        run(writer, "RENAME TABLE t TO u, odd TO t", "TRUNCATE TABLE bare", "INSERT INTO u VALUES ('d', 5)")
        settled = capture.service.settled_ts()
        capture.wait(spans[tables[0].table_id][0].span_id, settled)
        names = {t.full_name: t.table_id for t in capture.upstream.list_tables()}
        assert names["life.u"] == tables[0].table_id
        assert names["life.t"] == tables[2].table_id
        assert names["life.bare"] not in spans
        assert capture.check(capture.table("life.u"), spans[tables[0].table_id]) == 5
        capture.close()
        run(writer, "INSERT INTO u VALUES ('e', 6)", "FLUSH BINARY LOGS")
        # The server keeps a file for as long as its own recovery may need it.
        wait_until(lambda: purged(writer), "the server does not purge its log")
        again = Capture(server, tmp_path / "capture")
        again.service.ensure_span(spans[tables[0].table_id][0], TS_ZERO)
        wait_until(lambda: any("LOG_PURGED" in str(s.last_error) for s in again.service.status()), "the purged log is not noticed")
        again.close()
        check_that_another_table_is_noticed(server, writer)
        check_that_a_reset_is_noticed(server, writer)


def check_that_another_table_is_noticed(server: str, writer: Any) -> None:
    """Values that are not of a version's types are those of a table that has the name by now: whoever reads asks again."""
    run(writer, "CREATE TABLE life.named (a INT, c BIGINT UNSIGNED)")
    upstream = MySqlUpstream(server)
    before = next(t for t in upstream.list_tables() if t.full_name == "life.named")
    run(writer, "DROP TABLE life.named", "CREATE TABLE life.named (a INT, c FLOAT)", "INSERT INTO life.named VALUES (1, 0.1)")
    with pytest.raises(PenstockError) as wrong:
        list(upstream.read_now(Span(before.table_id)))
    assert wrong.value.code == "UPSTREAM_CHANGING"
    upstream.close()


def check_that_a_reset_is_noticed(server: str, writer: Any) -> None:
    """A log that was reset and has come far enough holds the GTIDs of any place before, for other transactions."""
    run(writer, "CREATE TABLE life.after_reset (id INT PRIMARY KEY AUTO_INCREMENT)")
    # First in a file that is gone afterwards, then in one that is there again: within the same second, which no clock tells.
    for rows in ("()", "(), ()"):
        upstream = MySqlUpstream(server)
        place = upstream.first_position()
        run(writer, "RESET MASTER")
        for _ in range(200):
            if upstream.reached(upstream.log_end(), place.text):
                break
            run(writer, f"INSERT INTO life.after_reset VALUES {rows}")
        assert upstream.reached(upstream.log_end(), place.text)
        hour_before = LogPosition(compose_ts(physical_ms(place.ts) - 3_600_000), place.text)
        for start in (hour_before, place):
            with pytest.raises(PenstockError) as wrong:
                next(iter(upstream.read_log(start, [], lambda _: True, threading.Event())))
            assert wrong.value.code == "LOG_PURGED"
        # Not so a place that is there, in the middle of the log or at its end.
        middle = upstream.first_position()
        run(writer, "INSERT INTO life.after_reset VALUES ()")
        for start in (middle, upstream.first_position()):
            assert next(iter(upstream.read_log(start, [], lambda _: True, threading.Event()))) is not None
        end = upstream.first_position()
        upstream.close()
    # A stream that is open tells nothing of a reset: what was read lies behind the end of the log then.
    with contextlib.closing(LogEnd(Server(parse_uri(server)))) as ends_at:
        assert ends_at(LogPlace.parse(end.text))
        assert not ends_at(LogPlace.parse("bin.000001:4@0-1-1"))
        with pytest.raises(PenstockError) as wrong:
            ends_at(LogPlace.parse("bin.000001:4@0-1-999999"))
        assert wrong.value.code == "UPSTREAM_UNREACHABLE"


@pytest.mark.mysql
def test_a_reset_of_mysql_is_noticed_while_its_log_is_read(tmp_path: Path) -> None:
    with mysql(tmp_path / "server") as uri:
        writer = connect(uri)
        run(writer, "CREATE DATABASE life", "CREATE TABLE life.t (id INT PRIMARY KEY AUTO_INCREMENT, b LONGTEXT)")
        run(writer, *["INSERT INTO life.t (b) VALUES ('x')"] * 5)
        server = Server(parse_uri(uri))
        end = server.log_end()
        # A stream that has brought nothing yet is at the beginning of a file, as far as it tells.
        begun = LogPlace(end.file, 4, end.gtids)
        with contextlib.closing(LogEnd(server)) as ends_at:
            assert ends_at(end)
            assert ends_at(begun)
            run(writer, "RESET BINARY LOGS AND GTIDS", "INSERT INTO life.t (b) VALUES (REPEAT('x', 100000))")
            with pytest.raises(PenstockError) as wrong:
                ends_at(begun)
            assert wrong.value.code == "UPSTREAM_UNREACHABLE"
        # The file has come further than the place; no mark is put there, and after a while it is said.
        with contextlib.closing(LogEnd(server)) as ends_at:
            assert not any(ends_at(end) for _ in range(20))
            with pytest.raises(PenstockError, match="its log ends before"):
                ends_at(end)


@pytest.mark.mysql
def test_without_gtids_a_place_means_something_to_the_server_that_wrote_it_alone(tmp_path: Path) -> None:
    with mysql(tmp_path / "server", ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")) as uri:
        run(connect(uri), "CREATE DATABASE life", "CREATE TABLE life.t (id INT PRIMARY KEY AUTO_INCREMENT)")
        upstream = MySqlUpstream(uri)
        place = upstream.first_position()
        run(connect(uri), "INSERT INTO life.t VALUES ()")
        file_offset, _, own = place.text.partition("#")
        assert own
        for text in (place.text, file_offset):
            # The second is how earlier versions noted it.
            steps = upstream.read_log(LogPosition(place.ts, text), [], lambda _: True, threading.Event())
            moved = next(s.position for s in steps if s.position is not None and upstream.reached(s.position.text, upstream.log_end()))
            assert moved.text.endswith(f"#{own}")
            steps.close()
        other = LogPosition(place.ts, f"{file_offset}#{own[::-1]}")
        with pytest.raises(PenstockError, match=r"LOG_PURGED.*another server"):
            next(iter(upstream.read_log(other, [], lambda _: True, threading.Event())))
        upstream.close()


def purged(writer: Any) -> bool:
    with writer.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        newest = cursor.fetchone()[0]
        cursor.execute(f"PURGE BINARY LOGS TO '{newest}'")
        cursor.execute("SHOW BINARY LOGS")
        return bool(cursor.fetchone()[0] == newest)


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(PenstockError) as wrong:
        Capture("mysql://root@127.0.0.1:1/", tmp_path / "none")
    assert wrong.value.code == "UPSTREAM_UNREACHABLE"


def test_a_replica_that_takes_over_is_read_on_by_gtid(tmp_path: Path) -> None:
    replica_options = ("--log-bin=other", "--server-id=2", "--binlog-format=ROW", "--log-slave-updates=1")
    with mariadb(tmp_path / "first", BINLOG) as first, mariadb(tmp_path / "second", replica_options) as second:
        writer, standby = connect(first), connect(second)
        port = parse_uri(first).port
        change = f"CHANGE MASTER TO master_host='127.0.0.1', master_port={port}, master_user='root', master_use_gtid=slave_pos"
        # Its own first transaction is not of the primary's history.
        run(standby, "RESET MASTER", "DROP DATABASE replay", "RESET MASTER", change, "START SLAVE")
        run(writer, "CREATE DATABASE moved", "USE moved", "CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        run(writer, "INSERT INTO t VALUES (1, 1), (2, 2)")
        capture = Capture(first, tmp_path / "capture")
        table = capture.table("moved.t")
        spans = [Span(table.table_id)]
        capture.service.ensure_span(spans[0], TS_ZERO)
        # Capture begins at the end of the log, where that is when its reader looks: what is written from here on is behind it.
        capture.service.settled_ts()
        run(writer, "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3, 3)", "UPDATE t SET v = 9 WHERE id = 1")
        capture.service.settled_ts()
        capture.close()
        run(writer, "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (4, 4)")
        wait_until(lambda: caught_up(standby, "4"), "the replica does not follow")
        run(standby, "STOP SLAVE", "INSERT INTO moved.t VALUES (5, 5)")
        again = Capture(second, tmp_path / "capture")
        again.service.ensure_span(spans[0], TS_ZERO)
        settled = again.service.settled_ts()
        again.wait(spans[0].span_id, settled)
        handle = again.store.collect_changes(spans[0].span_id, 1, settled)
        seen: list[tuple[int, int]] = []
        while not isinstance(step := handle.next(), EndOfRange):
            for batch in (*step.tombstones, *step.data):
                seen += zip(batch.records.column("_op").to_pylist(), batch.records.column("c1").to_pylist(), strict=True)
        handle.close()
        assert sorted(seen) == [(0, 3), (0, 4), (0, 5), (1, 1), (2, 2), (3, 1)]
        again.close()


def caught_up(standby: Any, number: str) -> bool:
    with standby.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'moved'")
        if not cursor.fetchone()[0]:
            return False
        cursor.execute(f"SELECT COUNT(*) FROM moved.t WHERE id = {number}")
        return bool(cursor.fetchone()[0])
