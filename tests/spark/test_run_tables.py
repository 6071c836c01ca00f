"""``penstock run`` into MariaDB, PostgreSQL, Delta Lake and Iceberg at once, as users run it, and ``penstock verify`` of each of them.

One target goes away while the others go on, and comes back. Everything is read by drivers and libraries that share nothing with Penstock.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polars as pl
import psycopg
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from testing.servers.command_process import CommandProcess
from testing.servers.cut_proxy import cut_proxy
from testing.servers.loopback_server import mariadb, postgres
from testing.servers.waiting import wait_until
from tests.spark.test_run_command import BINLOG, RUN_S, execute, penstock

pytestmark = pytest.mark.integration
WAIT_S = 120.0
ORDERS = "SELECT id, name, price FROM shop.orders WHERE price >= 10"
BAG = "SELECT id, v FROM shop.bag"


class Targets:
    """The four, each with what reads it."""

    def __init__(self, tmp_path: Path, source: int, proxied: int, postgres_uri: str) -> None:
        self.uris = {
            "mysql": f"mysql://root@127.0.0.1:{source}/books?schema-name=copy_{{schema}}",
            "postgres": f"postgresql://penstock@127.0.0.1:{proxied}/postgres?table-name={{table}}_copy",
            "delta": f"delta+file://{tmp_path}/delta",
            "iceberg": f"iceberg+file://{tmp_path}/iceberg",
        }
        catalog = tmp_path / "iceberg" / ".penstock" / "catalog.db"

        def by_postgres(table: str) -> list[tuple[Any, ...]]:
            with psycopg.connect(postgres_uri) as connection:
                return connection.execute(f'SELECT * FROM shop."{table}_copy"').fetchall()

        def by_pyiceberg(table: str) -> list[tuple[Any, ...]]:
            opened = SqlCatalog("penstock", uri=f"sqlite:///{catalog}", warehouse=f"file://{tmp_path}/iceberg")
            try:
                return pl.DataFrame(opened.load_table(f"shop.{table}").scan().to_arrow()).rows()
            finally:
                opened.close()

        self.readers: dict[str, Callable[[str], list[tuple[Any, ...]]]] = {
            "mysql": lambda table: [tuple(row) for row in execute(source, f"SELECT * FROM copy_shop.{table}")],
            "postgres": by_postgres,
            "delta": lambda table: pl.read_delta(f"{tmp_path}/delta/shop/{table}").rows(),
            "iceberg": by_pyiceberg,
        }

    def differs(self, name: str, wanted: dict[str, list[tuple[Any, ...]]]) -> str:
        for table, rows in wanted.items():
            found = sorted(self.readers[name](table), key=repr)
            if found != rows:
                return f"{name}: {table} has {len(found)} rows of {len(rows)}"
        return ""


def wanted(port: int) -> dict[str, list[tuple[Any, ...]]]:
    return {
        "orders": sorted((tuple(row) for row in execute(port, ORDERS)), key=repr),
        "bag": sorted((tuple(row) for row in execute(port, BAG)), key=repr),
    }


def verified(source: int, sink: str) -> int:
    """Ask for a verification without a server; return the exit code."""
    command = [sys.executable, "-m", "penstock", "verify", "--source", f"mysql://root@127.0.0.1:{source}/", "--sink", sink]
    done = subprocess.run([*command, "--table", "shop.bag"], capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return done.returncode


@pytest.mark.timeout(600)
def test_four_targets_at_once_of_which_one_goes_away(tmp_path: Path) -> None:
    filters = tmp_path / "filters.toml"
    tmp_path.chmod(0o755)
    with mariadb(tmp_path / "mariadb", BINLOG) as uri, postgres(tmp_path / "postgres") as postgres_uri:
        port = urlsplit(uri).port or 0
        execute(
            port,
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, name VARCHAR(40), price DECIMAL(20,4) NOT NULL)",
            "CREATE TABLE shop.bag (id INT, v VARCHAR(20))",
            "INSERT INTO shop.orders SELECT seq, CONCAT('order ', seq), seq / 3 FROM shop.seq_1_to_2000",
            "INSERT INTO shop.bag VALUES (1, 'x'), (1, 'x'), (2, NULL)",
        )
        with cut_proxy("127.0.0.1", urlsplit(postgres_uri).port or 0) as proxy:
            targets = Targets(tmp_path, port, proxy.port, postgres_uri)
            options = ["--source", f"mysql://root@127.0.0.1:{port}/", "--table", "shop.orders", "--table", "shop.bag"]
            options += [word for sink in targets.uris.values() for word in ("--sink", sink)]
            filters.write_text('[[filter.rules]]\ntables = ["shop.orders"]\nwhere = "price >= 10"\n')
            options += [str(filters), "--data-dir", str(tmp_path / "data"), "--set", "flush-interval=1s"]
            options += ["--set", "server.spark.warm-up=false"]
            assert "caught up" in penstock("run", *options, "--until-caught-up")
            first = wanted(port)
            assert [targets.differs(name, first) for name in targets.uris] == [""] * 4
            with CommandProcess("run", *options) as running:
                running.wait_for("feed run", WAIT_S)
                proxy.go_down()
                execute(
                    port,
                    # In, out, and within what the filter lets through.
                    "UPDATE shop.orders SET price = price + 5 WHERE id <= 100",
                    "UPDATE shop.orders SET price = price - 50 WHERE id BETWEEN 150 AND 250",
                    "UPDATE shop.orders SET id = id + 10000 WHERE id BETWEEN 300 AND 320",
                    "DELETE FROM shop.orders WHERE id > 1900",
                    "DELETE FROM shop.bag WHERE id = 1 LIMIT 1",
                    "INSERT INTO shop.bag VALUES (7, 'new')",
                )
                second = wanted(port)
                for name in ("mysql", "delta", "iceberg"):
                    wait_until(lambda one=name: not targets.differs(one, second), f"{name} does not go on", WAIT_S)  # type: ignore[misc]
                assert targets.differs("postgres", second)
                refused = proxy.counts["refused"]
                wait_until(lambda: proxy.counts["refused"] > refused, "nobody asks for the target that is away", WAIT_S)
                execute(port, "INSERT INTO shop.bag VALUES (8, 'later')")
                proxy.come_up()
                third = wanted(port)
                for name in targets.uris:
                    wait_until(lambda one=name: not targets.differs(one, third), f"{name} does not follow", WAIT_S)  # type: ignore[misc]
            execute(port, "UPDATE copy_shop.bag SET v = 'other' WHERE id = 2")
            with psycopg.connect(postgres_uri) as connection:
                connection.execute("DELETE FROM shop.bag_copy WHERE id = 7")
            assert [verified(port, sink) for sink in targets.uris.values()] == [1, 1, 0, 0]
