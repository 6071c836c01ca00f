"""A server whose feeds share Spark's cores, and one target that hangs: the others are delivered while it does, and it is caught up with."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.server_client import ServerClient
from penstock.config.server_tree import ServerConfig, SparkConfig
from penstock.server.process import ServerProcess
from penstock.source.dataserver.workload import Workload, WorkloadSettings
from testing.servers.buckets.moody_bucket import Mood, moody_bucket

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


def test_a_target_that_hangs_keeps_no_executor_from_others(jvm, upstream, waiting, tmp_path: Path) -> None:
    del jvm
    workload = Workload(upstream, WorkloadSettings(rows=5_000, ddls=False))
    workload.setup()
    with moody_bucket() as bucket:
        sink = bucket.uri("feed")
        config = ServerConfig(
            source=upstream.uri,
            data_dir=tmp_path / "data",
            http_port=0,
            spark=SparkConfig(master="local[2]", warm_up=False),
            connections={"bucket": {"uri": sink, "request-timeout": "5s"}},
        )
        with ServerProcess(config) as server, ServerClient(server.url) as client:
            client.create_feed({"name": "bad", "tables": ["shop.*"], "sink": "connection://bucket", "flush-interval": "1s"})
            client.create_feed({"name": "other", "tables": ["shop.*"], "sink": (tmp_path / "other").as_uri(), "flush-interval": "1s"})
            for name in ("bad", "other"):
                waiting.feed(client, name, lambda shown: shown["windows"] > 0)
            bucket.mood = Mood.HANGS
            workload.start()
            workload.join(120)
            waiting.until("the feed is tried again", lambda: client.show_feed("bad")["state"] == "retrying", look_s=0.2)
            shown = client.show_feed("bad")
            assert shown["error"]["code"] == "SINK_UNAVAILABLE"
            hung_ts = shown["checkpoint_ts"]
            for _ in range(3):
                # It hangs all the time, and what is written now is delivered elsewhere.
                waiting.drained(client, "other", tmp_path / "other", upstream.current_ts())
            assert client.verify_feed("other")["identical"]
            assert client.show_feed("bad")["checkpoint_ts"] == hung_ts
            bucket.mood = Mood.WELL
            now_ts = upstream.current_ts()
            waiting.feed(client, "bad", lambda found: found["checkpoint_ts"] >= now_ts)
            assert client.verify_feed("bad")["identical"]
