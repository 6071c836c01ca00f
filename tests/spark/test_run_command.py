"""``penstock run`` as a user runs it: from a real MariaDB to files, stopped and run again, the files replayed and compared row by row."""

from __future__ import annotations

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


@pytest.mark.integration
def test_from_a_database_to_files_and_on_after_a_stop(tmp_path: Path) -> None:
    target, file = tmp_path / "files", tmp_path / "replayed.db"
    with mariadb(tmp_path / "mariadb", BINLOG) as uri:
        port = urlsplit(uri).port or 0
        execute(
            port,
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(40), price DECIMAL(20,4) NOT NULL)",
            "CREATE TABLE shop.other (id INT PRIMARY KEY)",
            "INSERT INTO shop.orders SELECT seq, CONCAT('order ', seq), seq / 3 FROM shop.seq_1_to_5000",
        )
        options = ["--source", f"mysql://root@127.0.0.1:{port}/", "--table", "shop.orders", "--sink", target.as_uri()]
        options += ["--data-dir", str(tmp_path / "data"), "--until-caught-up"]
        options += ["--set", "flush-interval=1s", "--set", "server.spark.warm-up=false"]
        assert "caught up" in penstock("run", *options)
        query = "SELECT id, name, price FROM shop.orders ORDER BY id"
        first = execute(port, query)
        assert len(first) == 5000
        assert replayed(target, file, query) == list(first)
        execute(
            port,
            "UPDATE shop.orders SET price = price * 2, name = NULL WHERE id <= 1000",
            "DELETE FROM shop.orders WHERE id > 4000",
            "INSERT INTO shop.other VALUES (1)",
            "ALTER TABLE shop.orders ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'none'",
            "INSERT INTO shop.orders VALUES (9001, 'after', 0.5, 'new')",
        )
        assert "caught up" in penstock("run", *options)
        query = "SELECT id, name, price, note FROM shop.orders ORDER BY id"
        second = execute(port, query)
    assert len(second) == 4001
    assert second[0][:3] == (1, None, Decimal("0.6666"))
    assert replayed(target, file, query) == list(second)
    assert not (target / "shop" / "other").exists()
