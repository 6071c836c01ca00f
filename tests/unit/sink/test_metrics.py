"""Reports of tasks become the metrics of feeds."""

import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord
from penstock.model.errors import PenstockError
from penstock.model.metrics.names import SINK_METRICS
from penstock.sink.contract import TaskReport
from penstock.sink.metrics import SinkMetricsCollector, add_reports, add_to_text
from penstock.sink.storage.metrics import SinkCounters

SEED_NAMES = (
    "spool_bytes",
    "spool_items",
    "wake_calls_total",
    "wake_suppressed_total",
    "flush_count",
    "flush_duration_seconds",
    "flush_file_size_bytes",
    "ddl_drain_duration_seconds",
    "ddl_affected_dispatchers",
    "ddl_drain_wait_encode_seconds",
    "ddl_drain_wait_remote_seconds",
)


def counted(files: int, spool_bytes: int) -> TaskReport:
    counters = SinkCounters()
    for n in range(files):
        counters.flushed("size" if n % 2 else "close", 0.2 * n, 1000 * (n + 1))
    for name in SEED_NAMES[-4:]:
        if name != "ddl_affected_dispatchers":
            counters.observe(name, 0.3)
    counters.wake_calls, counters.spool_bytes_peak, counters.ddl_dispatchers = files * 3, spool_bytes, 1
    return counters.report()


def test_reports_add_up() -> None:
    total = add_reports([counted(4, 100), counted(3, 700), TaskReport()])
    assert total.counters["wake_calls_total"] == 21
    assert total.counters["flush_count{reason=size}"] == 3
    assert total.counters["flush_count{reason=close}"] == 4
    assert total.peaks["spool_bytes"] == 700
    sizes = total.histograms["flush_file_size_bytes"]
    assert (sum(sizes.counts), sizes.total) == (7, 1000 * (10 + 6))
    assert msgspec.json.decode(add_to_text(add_to_text("", [counted(4, 100)]), [counted(3, 700)]), type=TaskReport) == total


def test_all_names_of_the_design_are_shown_with_their_feed(tmp_path: Path) -> None:
    with MetaDatabase(f"sqlite:///{tmp_path}/meta.db") as meta:
        meta.create_feed(FeedRecord("orders", "u", "{}"), [])
        epoch = meta.claim("orders", "me", 60_000)
        assert epoch is not None
        for _ in range(2):
            meta.add_sink_report("orders", epoch, lambda known: add_to_text(known, [counted(4, 100)]))
        registry = CollectorRegistry()
        registry.register(SinkMetricsCollector(meta.sink_reports))
        text = generate_latest(registry).decode()
        with pytest.raises(PenstockError, match="FENCED"):
            meta.add_sink_report("orders", epoch - 1, lambda known: known)
        meta.remove_feed("orders")
        assert meta.sink_reports() == {}
    for name in SEED_NAMES:
        assert SINK_METRICS[name].name == f"penstock_sink_{name}"
        assert re.search(rf'^penstock_sink_{name}(_count)?\{{.*feed="orders".*\}} ', text, re.MULTILINE), name
    assert 'penstock_sink_flush_count{feed="orders",reason="size"} 4.0' in text
    assert 'penstock_sink_flush_file_size_bytes_bucket{feed="orders",le="+Inf"} 8.0' in text
    assert 'penstock_sink_spool_bytes{feed="orders"} 100.0' in text
