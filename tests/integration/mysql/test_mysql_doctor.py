"""The doctor against a real MariaDB: what is wrong is found, and the statement that it says mends it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pymysql
import pytest

from penstock.access.mysql_server import parse_uri
from penstock.model.errors import PenstockError
from penstock.source.mysql.doctor import check, check_server, survey
from penstock.source.mysql.upstream import MySqlUpstream
from testing.servers.loopback_server import mariadb

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
        wrong = {name: str(finding.level) for name, finding in found.items() if not finding.ok}
        assert wrong == {
            "binlog_format": "must",
            "binlog_row_image": "should",
            "binlog_row_metadata": "should",
            "privilege REPLICATION SLAVE": "must",
            "privilege BINLOG MONITOR": "must",
            "table replay.bare": "should",
        }
        assert found["version"].ok
        assert found["table replay.good"].ok
        assert "lost at a restart" in found["binlog_format"].wanted
        with connection.cursor() as cursor:
            for name in sorted(wrong):
                cursor.execute(found[name].statement)
        assert [f for f in check(guest) if not f.ok] == []
        listed = {f"{t.schema}.{t.table}": t for t in survey(guest, ["replay.*"])}
        assert {name: (t.key, t.captured, t.notes) for name, t in listed.items()} == {
            "replay.good": (("id",), True, ()),
            "replay.bare": (("id",), True, ()),
        }
        assert all(t.rows == 0 and t.nbytes for t in listed.values()), listed
        assert [f.ok for f in check(guest, ["replay.good", "replay.none"]) if "replay" in f.name] == [False, True]
        with pytest.raises(PenstockError) as refused:
            check(f"mysql://cdc:wrong@{address.host}:{address.port}/")
        assert refused.value.code == "UPSTREAM_REFUSED"
        assert "wrong" not in str(refused.value)
        with connection.cursor() as cursor:
            cursor.execute("CREATE ROLE capturer")
            cursor.execute("GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO capturer")
            cursor.execute("CREATE USER idle IDENTIFIED BY 'x'")
            cursor.execute("GRANT capturer TO idle")
            idle = f"mysql://idle:x@{address.host}:{address.port}/"
            # A role that is not active brings nothing, and nobody waits for a reader that is refused.
            assert [f.name for f in check_server(idle) if not f.ok] == ["privilege BINLOG MONITOR"]
            with contextlib.closing(MySqlUpstream(idle)) as upstream:
                upstream.adopt_schemas(())
                with pytest.raises(PenstockError, match=r"UPSTREAM_REFUSED.* 1227"):
                    upstream.list_tables()
            cursor.execute("SET DEFAULT ROLE capturer FOR idle")
            assert [f.name for f in check_server(idle) if not f.ok] == []
            assert [f.name for f in check(idle) if f.name.startswith("privilege REPL") and not f.ok] == []
        connection.close()


def test_what_the_user_cannot_see_is_said_and_names_are_quoted_as_they_are(tmp_path: Path) -> None:
    with mariadb(tmp_path, ("--log-bin=bin", "--server-id=1", "--binlog-format=ROW", "--binlog-ignore-db=unlogged")) as uri:
        address = parse_uri(uri)
        connection = pymysql.connect(host=address.host, port=address.port, user="root", autocommit=True)

        def run(*statements: str) -> None:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

        run(
            "CREATE USER `o'cdc`@`127.%` IDENTIFIED BY 'x'",
            "CREATE DATABASE Shop",
            "CREATE TABLE Shop.`Odd Name` (v INT)",
            "CREATE TABLE Shop.parent (id INT PRIMARY KEY)",
            "CREATE TABLE Shop.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES Shop.parent (id) ON DELETE CASCADE)",
            "CREATE TABLE Shop.mem (id INT PRIMARY KEY) ENGINE=MEMORY",
            "CREATE TABLE Shop.parts (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2",
            "CREATE TABLE Shop.hist (id INT PRIMARY KEY) WITH SYSTEM VERSIONING",
        )
        run("CREATE DATABASE unlogged", "CREATE TABLE unlogged.t (id INT PRIMARY KEY)", "SET GLOBAL gtid_slave_pos = '0-9-1'")
        (filtered,) = [f for f in check(uri, ["unlogged.*", "Shop.parent"]) if f.name.startswith("database")]
        assert (filtered.name, filtered.blocks) == ("database unlogged", True)
        (replica,) = [f for f in check(uri, ["Shop.parent"]) if f.name.startswith(("database", "log_slave"))]
        assert (replica.name, str(replica.level)) == ("log_slave_updates", "should")
        guest = f"mysql://o'cdc:x@{address.host}:{address.port}/"
        (blind,) = [f for f in check(guest, ["Shop.*"]) if f.name == "pattern Shop.*"]
        assert (blind.blocks, blind.statement) == (True, "GRANT SELECT ON `Shop`.* TO 'o''cdc'@'127.%';")
        assert any(f.blocks and f.name == "privilege SELECT" for f in check(guest)), "no grant at all is not all right"
        run("GRANT SELECT ON Shop.`Odd Name` TO `o'cdc`@`127.%`", "GRANT INSERT ON Shop.mem TO `o'cdc`@`127.%`")
        found = {f.name: f for f in check(guest, ["Shop.*"])}
        assert (found["pattern Shop.*"].blocks, str(found["pattern Shop.*"].level)) == (False, "should")
        assert "2 tables are visible" in found["pattern Shop.*"].found
        assert found["table Shop.mem"].found == "not readable"
        assert found["table Shop.mem"].statement == "GRANT SELECT ON `Shop`.`mem` TO 'o''cdc'@'127.%';"
        odd = found["table Shop.Odd Name"]
        assert odd.statement.startswith("ALTER TABLE `Shop`.`Odd Name` ADD COLUMN")
        run(found["table Shop.mem"].statement, odd.statement, found["pattern Shop.*"].statement)
        found = {f.name: f for f in check(guest, ["Shop.*"])}
        assert "pattern Shop.*" not in found
        assert {n: str(f.level) for n, f in found.items() if not f.ok and n.startswith("table")} == {
            "table Shop.child: foreign key": "note",
            "table Shop.mem: MEMORY": "note",
            "table Shop.parts: partitioned": "note",
            "table Shop.hist: system versioned": "note",
        }
        captured = {n.removeprefix("table Shop.") for n, f in found.items() if f.ok and n.startswith("table")}
        assert {"Odd Name", "child", "mem", "parent", "parts"} <= captured, "each table is listed with what happens to it"
