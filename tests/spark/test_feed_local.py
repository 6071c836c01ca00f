"""The whole path on Spark in this process: data server, log service, event store, Flight, Spark tasks, storage sink."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from penstock.cli.server_client import ServerClient
from penstock.config.api_settings import ApiSettings
from penstock.config.server_tree import ServerConfig, SparkConfig
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.model.batch import Op
from penstock.server.process import ServerProcess
from penstock.server.verify.verification import open_reader, verify_target
from penstock.source.dataserver.workload import Workload, WorkloadSettings
from testing.checks.target_audit import DeliveredChanges, checkpoint_of, data_files, numbering_problems

ROWS, RATE, DDLS, TABLES = 20_000, 5_000, 5, 4


def flushed_files(url: str, feed: str) -> int:
    text = httpx.get(f"{url}/metrics", trust_env=False, timeout=120).text
    counts = re.findall(rf'^penstock_sink_flush_count{{feed="{feed}",reason="\w+"}} (\S+)$', text, re.MULTILINE)
    return round(sum(map(float, counts)))


@pytest.mark.parametrize("spans_per_table", [1, 2])
def test_every_change_arrives_once(jvm, upstream, waiting, tmp_path: Path, spans_per_table: int) -> None:
    del jvm
    target = tmp_path / "files"
    spark, api = SparkConfig(master="local[2]", warm_up=False), ApiSettings(open_paths=("/metrics",))
    config = ServerConfig(source=upstream.uri, data_dir=tmp_path / "data", http_port=0, spark=spark, api=api)
    workload = Workload(upstream, WorkloadSettings(rate=RATE, rows=ROWS, seed=spans_per_table))
    workload.setup()
    with ServerProcess(config) as server, ServerClient(server.url) as client:
        expiry = {"file-expiration-days": 1, "file-cleanup-cron-spec": "@every 1s"}
        feed = {"name": "f", "tables": ["shop.*"], "sink": {"uri": target.as_uri(), "file-size": "256KiB", **expiry}}
        created = client.create_feed(feed | {"flush-interval": "500ms", "spans-per-table": spans_per_table})
        assert created["dispatchers"] == TABLES * spans_per_table
        waiting.feed(client, "f", lambda shown: shown["windows"] > 0)
        expired = target / "shop" / "orders" / "1" / "2020-01-01" / "CDC00000000000000000001.csv"
        expired.parent.mkdir(parents=True)
        expired.write_text("")
        workload.start()
        try:
            # A verification while changes come and files are written.
            waiting.feed(client, "f", lambda shown: shown["rows"] > 0)
            running = client.verify_feed("f")
            assert running["identical"], running
            assert running["rows"] > 0
        finally:
            report = workload.join(200)
        assert (report.rows, report.ddls) == (ROWS, DDLS)
        waiting.until("the old file is gone", lambda: not expired.exists())
        shown = waiting.drained(client, "f", target, upstream.current_ts())
        verdict = client.verify_feed("f")
        assert verdict["identical"], verdict
        assert verdict["rows"] == report.inserts - report.deletes
        # What the tasks counted has come to the server.
        waiting.feed(client, "f", lambda now: flushed_files(server.url, "f") == now["files"])
    assert shown["rows"] == report.rows

    reader = open_reader(target.as_uri(), {})
    table_ids = sorted(t["table_id"] for t in created["tables"])
    again = verify_target(reader, upstream, table_ids)
    again.check()
    assert again.rows == report.inserts - report.deletes
    changes = DeliveredChanges(reader)
    assert changes.problems() == []
    assert changes.operations() == {Op.INSERT: report.inserts, Op.UPDATE: report.updates, Op.DELETE: report.deletes}
    assert numbering_problems(target) == []
    assert len(data_files(target)) == shown["files"]
    dispatchers = {name.rpartition("/")[2].count("_") for name in data_files(target)}
    assert dispatchers == ({0} if spans_per_table == 1 else {2})
    assert [len(reader.ddls("shop", table)) for table in ("assets", "order_items", "orders", "products")] == [1, 1, 2, 1]
    meta = MetaDatabase(sqlite_url(tmp_path / "data" / "meta.db"))
    try:
        assert checkpoint_of(target) == meta.progress("f").checkpoint_ts == reader.checkpoint_ts()
        assert meta.progress("f").checkpoint_ts >= report.last_commit_ts
    finally:
        meta.close()
