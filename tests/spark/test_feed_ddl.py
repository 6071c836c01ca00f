"""A running server follows DDLs: tables come and go while its feed delivers, and the log service captures what came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.cli.server_client import ServerClient
from penstock.config.server_tree import ServerConfig, SparkConfig
from penstock.server.process import ServerProcess
from testing.checks.target_audit import numbering_problems

TABLES = ("d.a", "d.b", "x.c")


def put(upstream: Any, name: str, ids: range) -> None:
    with upstream.txn() as txn:
        texts = pa.array([f"{name} {i}" for i in ids])
        txn.put(upstream.table(*name.split(".")), {"id": pa.array(list(ids), pa.int32()), "v": texts})


def test_tables_that_come_and_go_while_a_feed_runs(jvm, upstream, waiting, tmp_path: Path) -> None:
    del jvm
    for query in ("CREATE DATABASE d", "CREATE DATABASE x", *(f"CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in TABLES)):
        upstream.execute_ddl(query)
    for name in TABLES:
        put(upstream, name, range(10))
    config = ServerConfig(source=upstream.uri, data_dir=tmp_path / "data", http_port=0, spark=SparkConfig(master="local[2]", warm_up=False))
    with ServerProcess(config) as server, ServerClient(server.url) as client:
        client.create_feed({"name": "f", "tables": ["d*.*"], "sink": {"uri": (tmp_path / "files").as_uri()}, "flush-interval": "200ms"})
        waiting.feed(client, "f", lambda shown: shown["windows"] > 0)
        upstream.execute_ddl("CREATE TABLE d.fresh (id INT PRIMARY KEY, v VARCHAR(40))")
        put(upstream, "d.fresh", range(7))
        upstream.execute_ddl("TRUNCATE TABLE d.a")
        put(upstream, "d.a", range(3))
        upstream.execute_ddl("RENAME TABLE x.c TO d.came, d.b TO x.left")
        put(upstream, "d.came", range(5, 20))
        upstream.execute_ddl("ALTER TABLE d.fresh ADD COLUMN n INT DEFAULT 3")
        put(upstream, "d.fresh", range(7, 9))
        waiting.drained(client, "f", tmp_path / "files", upstream.current_ts())
        waiting.feed(client, "f", lambda shown: {t["name"] for t in shown["tables"]} == {"d.a", "d.fresh", "d.came"})
        rows = {"d.a": 3, "d.fresh": 9, "d.came": 20}

        def verified() -> Any:
            verdict = client.verify_feed("f")
            # A table that came with rows joins as soon as its state is known, a window later at most.
            joined = [t for t in verdict["tables"] if not t["unchecked"]]
            return verdict if len(joined) == len(verdict["tables"]) == len(rows) else None

        verdict = waiting.until("all tables have joined", verified)
        assert verdict["identical"], str(verdict)
        assert {t["name"]: t["rows"] for t in verdict["tables"]} == rows
        assert client.show_feed("f")["capture_problems"] == []
    assert numbering_problems(tmp_path / "files") == []
