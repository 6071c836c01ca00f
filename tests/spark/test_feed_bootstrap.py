"""A feed that begins with a bootstrap by Spark tasks, and a second one that finds its tables in the store, through a whole server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.cli.server_client import ServerClient
from penstock.config.server_tree import ServerConfig, SparkConfig
from penstock.feed.formats.table_reader import register_penstock
from penstock.model.span import Span
from penstock.server.process import ServerProcess
from penstock.source.dataserver.client import DataServerUpstream
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from penstock.source.dataserver.service.service import StoreService
from penstock.source.dataserver.workload import Workload, WorkloadSettings

BEFORE, MEANWHILE, RATE = 6_000, 4_000, 2_000


@pytest.fixture
def calls(jvm, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what the data server of this process is asked for."""
    del jvm
    counted: Counter[str] = Counter()
    for name in ("CdcRegister", "CdcPullSnapshot", "EventFeed"):
        asked = getattr(StoreService, name)

        def count(service: StoreService, *arguments: object, name: str = name, asked=asked) -> object:
            counted[name] += 1
            return asked(service, *arguments)

        monkeypatch.setattr(StoreService, name, count)
    return counted


@pytest.fixture
def source(calls: Counter[str]) -> Iterator[DataServerUpstream]:
    del calls
    with DataServer(DataServerSettings(stores=2)) as server, DataServerUpstream(server.uri) as upstream:
        yield upstream


def test_a_bootstrap_by_tasks_and_a_second_feed_from_the_store(
    calls: Counter[str], source: DataServerUpstream, waiting, tmp_path: Path
) -> None:
    targets = {name: tmp_path / name for name in ("first", "second")}
    config = ServerConfig(source=source.uri, data_dir=tmp_path / "data", http_port=0, spark=SparkConfig(master="local[2]", warm_up=False))
    before = Workload(source, WorkloadSettings(rate=0, rows=BEFORE, seed=1))
    before.setup()
    before.start()
    before.join(60)

    def feed(name: str) -> dict[str, object]:
        chosen = {"name": name, "tables": ["shop.*"], "sink": {"uri": targets[name].as_uri()}, "flush-interval": "500ms"}
        return chosen | {"bootstrap": "job", "bootstrap-tasks": 2}

    with ServerProcess(config) as server, ServerClient(server.url) as client:
        client.create_feed(feed("first"))
        workload = Workload(source, WorkloadSettings(rate=RATE, rows=MEANWHILE, seed=2))
        workload.start()
        workload.join(200)
        waiting.drained(client, "first", targets["first"], source.current_ts())
        verdict = client.verify_feed("first")
        assert verdict["identical"], verdict
        assert verdict["rows"] > 0
        assert calls["CdcPullSnapshot"] >= 4
        asked = Counter(calls)

        client.create_feed(feed("second"))
        shown = waiting.drained(client, "second", targets["second"], source.current_ts())
        assert shown["snapshot"] is None
        verdict = client.verify_feed("second")
        assert verdict["identical"], verdict
        assert calls == asked, "the second feed asked the upstream for rows"
        # Any session of the process knows the format, and finds the running server by its directory.
        register_penstock(SparkSession.getActiveSession())
        orders = SparkSession.getActiveSession().read.format("penstock").option("data-dir", str(tmp_path / "data"))
        held = sum(b.header.rows for b in source.read_table(Span(source.table("shop", "orders").table_id), source.current_ts()))
        assert orders.option("table", "shop.orders").load().count() == held > 0
    bulk = list((tmp_path / "data" / "store" / "objects").glob("spans/*/bulk/*.arrow"))
    assert bulk, "no bulk objects were committed"
    assert not list((tmp_path / "data" / "store" / "objects").glob("spans/*/bootstrap/*/*.json"))
