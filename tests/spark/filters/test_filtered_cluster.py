"""A filter in Spark SQL with executors in other processes, as a user configures it: created, altered, verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.cli.server_client import ServerClient
from penstock.model.errors import PenstockError
from penstock.readback.replay import replay_table
from penstock.server.verify.verification import open_reader
from penstock.source.dataserver.client import DataServerUpstream
from testing.servers.command_process import CommandProcess

pytestmark = pytest.mark.timeout(600)
START_S = 180.0
ROWS = 300


def write(upstream: DataServerUpstream, first: int, shift: int) -> dict[int, int]:
    """Write rows of both tables; return the values by id."""
    values = {row_id: row_id * 7 + shift for row_id in range(first, first + ROWS)}
    with upstream.txn() as txn:
        for name in ("t", "u"):
            table = upstream.table("d", name)
            columns = (pa.array(list(values), pa.int64()), pa.array(list(values.values()), pa.int64()))
            txn.put(table, pa.record_batch({c.field_name: v for c, v in zip(table.columns, columns, strict=True)}))
    return values


def shown(target: Path) -> dict[int, tuple[int, int]]:
    rows = replay_table(open_reader(target.as_uri(), {}), "d", "t")
    return {row["id"]: (row["v"], row["twice"]) for row in rows.to_dicts()}


def test_a_filtered_feed_on_a_local_cluster(upstream: DataServerUpstream, waiting: Any, tmp_path: Path) -> None:
    upstream.execute_ddl("CREATE DATABASE d")
    for name in ("t", "u"):
        upstream.execute_ddl(f"CREATE TABLE d.{name} (id BIGINT PRIMARY KEY, v BIGINT)")
    rows = write(upstream, 0, 0)
    target = tmp_path / "files"
    options = ["--source", upstream.uri, "--data-dir", str(tmp_path / "data"), "--http-port", "0", "--set", "spark.warm-up=false"]
    rule = {"tables": ["d.t"], "where": "v % 10 < 5", "select": "*, v * 2 AS twice"}
    feed = {"name": "f", "tables": ["d.*"], "sink": {"uri": target.as_uri()}, "flush-interval": "500ms"}
    with CommandProcess("server", *options, "--spark-master", "local-cluster[2,1,1024]") as server:
        url = server.wait_for("penstock server: ", START_S).split()[0]
        with ServerClient(url) as client:
            with pytest.raises(PenstockError, match=r"filter\.rules\[0\]: d\.t: where at character 5: rand\(\)") as refused:
                client.create_feed(feed | {"filter": {"rules": [rule | {"where": "v < rand()"}]}})
            assert refused.value.code == "CONFIG_INVALID"
            assert client.list_feeds() == []
            client.create_feed(feed | {"filter": {"rules": [rule]}})
            waiting.drained(client, "f", target, upstream.current_ts())
            rows |= write(upstream, ROWS // 2, 3)
            waiting.drained(client, "f", target, upstream.current_ts())
            assert shown(target) == {i: (v, 2 * v) for i, v in rows.items() if v % 10 < 5}
            verdict = client.verify_feed("f")
            verified = {table["name"]: table["unchecked"] for table in verdict["tables"]}
            assert verified == {"d.t": "its rows are filtered by Spark SQL (where, select)", "d.u": ""}
            with pytest.raises(PenstockError, match=r"d\.t would have other columns"):
                client.control("f", "alter", {"changes": {"filter": {"rules": [rule | {"select": "*"}]}}})
            client.control("f", "alter", {"changes": {"filter": {"rules": [rule | {"where": "v % 10 > 3"}]}}})
            rows |= write(upstream, ROWS, 1)
            joined = waiting.until("the table joined", lambda: not client.list_tables("f")[0]["progress"]["joining"])
            assert joined
            waiting.drained(client, "f", target, upstream.current_ts())
            assert shown(target) == {i: (v, 2 * v) for i, v in rows.items() if v % 10 > 3}
