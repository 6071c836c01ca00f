"""One server with a MariaDB and a PostgreSQL: a feed of each, and what the loss of one does to the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pymysql
import pytest

from penstock.cli.server_client import ServerClient
from penstock.config.api_settings import ApiSettings
from penstock.config.server_tree import ServerConfig, SourceConfig, SparkConfig, SupervisorSettings
from penstock.model.errors import PenstockError
from penstock.server.process import ServerProcess
from testing.servers.databases.postgres_lab import PostgresLab
from testing.servers.loopback_server import mariadb

pytestmark = pytest.mark.integration

BINLOG = ("--server-id=1", "--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-metadata=FULL")


@pytest.fixture
def shop(jvm, tmp_path_factory) -> Iterator[tuple[str, ExitStack]]:
    """Give a MariaDB with a table, and what stops it."""
    del jvm
    with ExitStack() as running:
        port = urlsplit(running.enter_context(mariadb(tmp_path_factory.mktemp("shop"), BINLOG))).port or 0
        with (
            closing(pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE TABLE shop.orders (id INT PRIMARY KEY, name TEXT)")
            cursor.execute("INSERT INTO shop.orders VALUES (1, 'one'), (2, 'two')")
        yield f"mysql://root@127.0.0.1:{port}/", running


@pytest.fixture
def crm(jvm, tmp_path_factory) -> Iterator[PostgresLab]:
    del jvm
    lab = PostgresLab(tmp_path_factory.mktemp("crm"))
    lab.sql("CREATE SCHEMA crm; CREATE TABLE crm.people (id int PRIMARY KEY, name text); INSERT INTO crm.people VALUES (1, 'ann')")
    yield lab
    lab.stop()


def test_sources_begin_end_and_fail_by_themselves(shop: tuple[str, ExitStack], crm: PostgresLab, waiting: Any, tmp_path: Path) -> None:
    uri, running = shop
    config = ServerConfig(
        data_dir=tmp_path / "data",
        http_port=0,
        api=ApiSettings(open_paths=("/health/ready",)),
        spark=SparkConfig(master="local[2]", warm_up=False),
        supervisor=SupervisorSettings(backoff_max_s=1.0),
        sources={"shop": SourceConfig(uri), "crm": SourceConfig(crm.uri)},
    )
    stores = {name: tmp_path / "data" / "sources" / name / "store" / "flight.json" for name in ("shop", "crm")}

    def feed(source: str, table: str) -> dict[str, Any]:
        sink = {"uri": (tmp_path / source).as_uri()}
        return {"name": source, "source": source, "tables": [table], "sink": sink, "flush-interval": "500ms"}

    with ServerProcess(config) as server, ServerClient(server.url) as client:
        assert not any(file.exists() for file in stores.values()), "no feed, no source"
        with pytest.raises(PenstockError, match="source: is required, because this server captures shop, crm"):
            client.create_feed({key: value for key, value in feed("shop", "shop.*").items() if key != "source"})
        for source, table, rows in (("shop", "shop.*", 2), ("crm", "crm.*", 1)):
            client.create_feed(feed(source, table))
            waiting.feed(client, source, lambda shown, rows=rows: shown["rows"] >= rows)
            verdict = client.verify_feed(source)
            assert (verdict["identical"], verdict["rows"]) == (True, rows), verdict
        assert all(file.exists() for file in stores.values())

        running.close()
        waiting.until("the loss is noticed", lambda: not health(server)["upstream:shop"]["ok"])
        crm.sql("INSERT INTO crm.people VALUES (2, 'bob')")
        waiting.feed(client, "crm", lambda shown: shown["rows"] >= 2)
        verdict = client.verify_feed("crm")
        assert (verdict["identical"], verdict["rows"]) == (True, 2), verdict
        assert health(server)["upstream:crm"]["ok"]

    # A server that starts while one source is away works for the other.
    with ServerProcess(config) as server, ServerClient(server.url) as client:
        crm.sql("INSERT INTO crm.people VALUES (3, 'cid')")
        waiting.feed(client, "crm", lambda shown: shown["rows"] >= 3)
        shown = waiting.feed(client, "shop", lambda shown: shown["state"] == "retrying")
        assert shown["error"]["code"] == "UPSTREAM_UNREACHABLE"
        waiting.until("health says so", lambda: not health(server)["upstream:shop"]["ok"])
        assert not stores["shop"].exists()
        client.remove_feed("crm")
        waiting.until("the slot is given back", lambda: crm.sql("SELECT slot_name FROM pg_replication_slots") == [])
        waiting.until("its source is ended", lambda: not stores["crm"].exists())


def health(server: ServerProcess) -> dict[str, Any]:
    """Return what the server says of its components, well or not."""
    components: dict[str, Any] = httpx.get(f"{server.url}/health/ready", trust_env=False, timeout=60).json()["components"]
    return components
