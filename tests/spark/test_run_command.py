"""``penstock run`` as users run it: from a MariaDB to files, Kafka and a console at once, stopped and run again, compared row by row."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import pymysql
import pytest

from testing.servers.kafka.broker import kafka_broker
from testing.servers.kafka.consumer import canal_changes, read_topics, rebuilt
from testing.servers.loopback_server import mariadb

RUN_S = 200
BINLOG = ("--server-id=1", "--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-image=FULL", "--binlog-row-metadata=FULL")


def penstock(*arguments: str) -> str:
    command = [sys.executable, "-m", "penstock", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def execute(port: int, *statements: str) -> Sequence[Sequence[Any]]:
    connection = pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall()


def replayed(target: Path, file: Path, query: str) -> list[tuple[Any, ...]]:
    penstock("replay", target.as_uri(), f"duckdb:///{file}")
    with duckdb.connect(str(file), read_only=True) as database:
        return database.execute(query).fetchall()


def consumed(brokers: str) -> list[tuple[Any, ...]]:
    """Return the rows that a plain reader of Kafka makes of the messages; a change that comes twice is an error."""
    rows = rebuilt(sorted(canal_changes(read_topics(brokers, ["lake.shop.orders"])), key=lambda change: change[0]), "id")
    return sorted((int(row["id"]), row["name"], Decimal(row["price"]), *([row["note"]] if "note" in row else [])) for row in rows.values())


def command_of_the_readme(source: str, tables: str, sink: str) -> list[str]:
    """The words behind ``penstock run`` in the README, with another database, tables and target."""
    (line,) = re.findall(r"^penstock run (--.*)$", (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8"), re.MULTILINE)
    words = shlex.split(line)
    assert words[::2] == ["--source", "--table", "--sink"]
    return ["--source", source, "--table", tables, "--sink", sink]


@pytest.mark.integration
def test_from_a_database_to_three_targets_and_on_after_a_stop(tmp_path: Path) -> None:
    target, file = tmp_path / "files", tmp_path / "replayed.db"
    with mariadb(tmp_path / "mariadb", BINLOG) as uri, kafka_broker() as broker:
        port = urlsplit(uri).port or 0
        execute(
            port,
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(40), price DECIMAL(20,4) NOT NULL)",
            "CREATE TABLE shop.other (id INT PRIMARY KEY)",
            "INSERT INTO shop.orders SELECT seq, CONCAT('order ', seq), seq / 3 FROM shop.seq_1_to_5000",
        )
        options = command_of_the_readme(f"mysql://root@127.0.0.1:{port}/", "shop.orders", target.as_uri())
        options += ["--sink", f"kafka://{broker.address}/lake", "--sink", "console:?rows=2"]
        options += ["--data-dir", str(tmp_path / "data"), "--until-caught-up"]
        options += ["--set", "flush-interval=1s", "--set", "server.spark.warm-up=false"]
        shown = penstock("run", *options)
        assert "caught up" in shown
        assert "… the last 2 of 5,000 rows" in shown
        assert shown.count(" + shop.orders id=") == 2
        query = "SELECT id, name, price FROM shop.orders ORDER BY id"
        first = execute(port, query)
        assert len(first) == 5000
        assert replayed(target, file, query) == consumed(broker.address) == list(first)
        execute(
            port,
            "UPDATE shop.orders SET price = price * 2, name = NULL WHERE id <= 1000",
            "DELETE FROM shop.orders WHERE id > 4000",
            "INSERT INTO shop.other VALUES (1)",
            "ALTER TABLE shop.orders ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'none'",
            "INSERT INTO shop.orders VALUES (9001, 'after', 0.5, 'new')",
        )
        shown = penstock("run", *options)
        assert "caught up" in shown
        assert '+ shop.orders id=9001 name="after" price="0.5000" note="new"' in shown
        query = "SELECT id, name, price, note FROM shop.orders ORDER BY id"
        second = execute(port, query)
        # Rows from before a column have what the DDL gave them, which the topic of DDLs tells and not that of rows.
        changed = [row for row in consumed(broker.address) if len(row) == 4]
        assert [row[:3] for row in consumed(broker.address)] == [row[:3] for row in second]
        assert set(changed) <= set(second)
    assert len(second) == 4001
    assert second[0][:3] == (1, None, Decimal("0.6666"))
    assert replayed(target, file, query) == list(second)
    assert not (target / "shop" / "other").exists()
