"""MySQL itself, from its own folder, starts on loopback and logs rows as capture wants them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pymysql
import pytest

from penstock.access.mysql_server import parse_uri
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.timestamp import compose_ts
from penstock.source.mysql.log_beginning import check_beginning
from penstock.source.mysql.server import Server
from penstock.source.mysql.wire.dump import DumpSettings
from penstock.source.single_log import LogPosition
from testing.servers.databases.mysql_server import mysql


@pytest.mark.mysql
@pytest.mark.integration
def test_mysql_answers_and_logs_rows(tmp_path: Path) -> None:
    with mysql(tmp_path / "mysql") as uri:
        parts = urlsplit(uri)
        connection = pymysql.connect(host=parts.hostname, port=parts.port or 0, user="root")
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@binlog_format, @@binlog_row_metadata, @@gtid_mode, VERSION()")
            row_format, metadata, gtid, version = cursor.fetchone() or ()
        assert (row_format, metadata, gtid) == ("ROW", "FULL", "ON")
        assert int(version.partition(".")[0]) >= 8


@pytest.mark.mysql
@pytest.mark.integration
def test_transactions_without_gtids_behind_a_place_are_noticed(tmp_path: Path) -> None:
    """Whoever asks MySQL for what follows some GTIDs is never sent what was written while ``gtid_mode`` was off."""
    off, on = ("ON_PERMISSIVE", "OFF_PERMISSIVE"), ("ON_PERMISSIVE", "ON")
    with mysql(tmp_path / "mysql") as uri:
        server = Server(parse_uri(uri))
        connection = pymysql.connect(host="127.0.0.1", port=urlsplit(uri).port or 0, user="root", autocommit=True)

        def begin() -> LogPosition:
            return LogPosition(compose_ts(server.now_ms()), str(server.log_end()))

        def check(start: LogPosition) -> None:
            check_beginning(server, start, 77_777, DumpSettings(), SystemClock())

        with connection, connection.cursor() as cursor:
            for text in ("CREATE DATABASE d", "CREATE TABLE d.t (a INT PRIMARY KEY)", "FLUSH BINARY LOGS"):
                cursor.execute(text)
            start = begin()
            for mode in (*off, *on):
                cursor.execute(f"SET GLOBAL gtid_mode = {mode}")
            cursor.execute("INSERT INTO d.t VALUES (1)")
            check(start)
            for mode in off:
                cursor.execute(f"SET GLOBAL gtid_mode = {mode}")
            cursor.execute("INSERT INTO d.t VALUES (2)")
            for mode in on:
                cursor.execute(f"SET GLOBAL gtid_mode = {mode}")
        with pytest.raises(PenstockError, match=r"LOG_PURGED.*without GTIDs"):
            check(start)
        check(begin())
