"""A doubt settled as a user sees it: ``penstock run`` with executors of another process, and ``penstock feed table resnapshot``."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pymysql
import pytest
from click.testing import CliRunner

from penstock.cli.feeds.feed import feed
from penstock.cli.feeds.verify import verify
from penstock.cli.server_client import ServerClient
from penstock.model.errors import PenstockError
from testing.servers.command_process import CommandProcess
from testing.servers.loopback_server import mariadb

BINLOG = ("--server-id=1", "--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-metadata=FULL")
ROWS = 3_000


def execute(port: int, *statements: str) -> None:
    connection = pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.integration
def test_rows_that_changed_unlogged_reach_the_files(tmp_path: Path, waiting) -> None:
    with mariadb(tmp_path / "mariadb", BINLOG) as uri:
        port = urlsplit(uri).port or 0
        execute(
            port,
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(40))",
            "CREATE TABLE shop.other (id INT PRIMARY KEY)",
            f"INSERT INTO shop.orders SELECT seq, CONCAT('order ', seq) FROM shop.seq_1_to_{ROWS}",
        )
        options = ["--source", f"mysql://root@127.0.0.1:{port}/", "--table", "shop.*", "--sink", (tmp_path / "files").as_uri()]
        options += ["--data-dir", str(tmp_path / "data"), "--spark-master", "local-cluster[1,2,1024]"]
        options += ["--set", "flush-interval=1s", "--set", "server.spark.warm-up=false"]
        with CommandProcess("run", *options) as running:
            waiting.until("the feed", lambda: re.search(r"\((http://[^)]+)\)", running.output), explain=lambda: running.output)
            found = re.search(r"\((http://[^)]+)\)", running.output)
            assert found
            with ServerClient(found[1]) as client:

                def shown() -> dict:
                    return client.show_feed("run")

                waiting.until("the first files", lambda: shown()["rows"] >= ROWS, explain=lambda: running.output)
                execute(
                    port,
                    "SET sql_log_bin = 0",
                    "UPDATE shop.orders SET name = 'unlogged' WHERE id <= 10",
                    "DELETE FROM shop.orders WHERE id BETWEEN 100 AND 104",
                    "INSERT INTO shop.orders VALUES (100000, 'unlogged')",
                    "SET sql_log_bin = 1",
                    "INSERT INTO shop.other VALUES (1)",
                )
                verdict = client.verify_feed("run")
                assert {t["name"]: t["identical"] for t in verdict["tables"]} == {"shop.orders": False, "shop.other": True}, verdict
                asked = CliRunner().invoke(feed, ["table", "resnapshot", "run", "shop.orders", "--server", found[1]])
                assert asked.exit_code == 0, asked.output

                def delivered(above_ts: int) -> int:
                    now = shown()
                    orders = next(t for t in now["tables"] if t["name"] == "shop.orders")
                    settled_ts = int(orders.get("settled_ts", 0))
                    return settled_ts if orders["state"] == "ok" and above_ts < settled_ts <= now["checkpoint_ts"] else 0

                first_ts = waiting.until("the corrections", lambda: delivered(0), explain=lambda: f"{shown()} {running.output}")
                verdict = client.verify_feed("run")
                assert verdict["identical"], verdict
                assert verdict["rows"] == ROWS - 5 + 1 + 1

                execute(port, "SET sql_log_bin = 0", "DELETE FROM shop.orders WHERE id > 2000")
                mended = CliRunner().invoke(verify, ["run", "--repair", "--server", found[1]])
                assert isinstance(mended.exception, PenstockError), mended.output
                assert mended.exception.code == "VERIFY_MISMATCH"
                waiting.until("the corrections", lambda: delivered(first_ts), explain=lambda: f"{shown()} {running.output}")
                verdict = client.verify_feed("run")
                assert (verdict["identical"], verdict["rows"]) == (True, 2000 - 5 + 1)
            waiting.until("the line", lambda: "shop.orders: ok again" in running.output, explain=lambda: running.output)
            assert "shop.orders: doubtful" in running.output or "shop.orders: rereading" in running.output
