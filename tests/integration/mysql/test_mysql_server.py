"""MySQL itself, from its own folder, starts on loopback and logs rows as capture wants them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pymysql
import pytest

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
