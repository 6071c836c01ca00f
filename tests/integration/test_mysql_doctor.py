"""The doctor against a real MariaDB: what is wrong is found, and the statement that it says mends it."""

from __future__ import annotations

from pathlib import Path

import pymysql
import pytest

from penstock.model.errors import PenstockError
from penstock.source.mysql.connection import parse_uri
from penstock.source.mysql.doctor import check
from penstock.testing.servers.loopback_server import mariadb

pytestmark = pytest.mark.integration


def test_what_is_wrong_is_found_and_the_statement_mends_it(tmp_path: Path) -> None:
    options = ("--log-bin=bin", "--server-id=1", "--binlog-format=MIXED", "--binlog-row-image=MINIMAL")
    with mariadb(tmp_path, options) as uri:
        address = parse_uri(uri)
        connection = pymysql.connect(host=address.host, port=address.port, user="root", autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute("CREATE USER cdc IDENTIFIED BY 'p%40ss'")
            cursor.execute("CREATE TABLE replay.good (id INT PRIMARY KEY)")
            cursor.execute("CREATE TABLE replay.bare (v INT)")
            cursor.execute("GRANT SELECT ON replay.* TO cdc")
        guest = f"mysql://cdc:p%2540ss@{address.host}:{address.port}/"
        found = {f.name: f for f in check(guest)}
        wrong = {name for name, finding in found.items() if not finding.ok}
        assert wrong == {
            "binlog_format",
            "binlog_row_image",
            "binlog_row_metadata",
            "privilege REPLICATION SLAVE",
            "privilege BINLOG MONITOR",
            "table replay.bare",
        }
        assert found["version"].ok
        assert found["privilege SELECT"].ok
        with connection.cursor() as cursor:
            for name in sorted(wrong):
                cursor.execute(found[name].statement)
        assert [f for f in check(guest) if not f.ok] == []
        assert [f.ok for f in check(guest, ["replay.good", "replay.none"])][-2:] == [True, False]
        with pytest.raises(PenstockError) as refused:
            check(f"mysql://cdc:wrong@{address.host}:{address.port}/")
        assert refused.value.code == "UPSTREAM_REFUSED"
        assert "wrong" not in str(refused.value)
