"""What a server shows is what ``model/metrics/names.py`` declares, with these labels, and bounded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from pages import metrics as metrics_page
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from penstock.feed.receivers.metrics import ReceiverCollector
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.records import Counted, DispatcherRecord, FeedRecord, RetryRecord
from penstock.meta.table_states import TableCondition, TableState
from penstock.model.clock import SystemClock
from penstock.model.metrics.names import METRICS, TABLES_MAX, MetricKind
from penstock.puller.metrics import LogPullerMetrics, SpanPipelineMetrics
from penstock.server.health.feed_watch import FeedProblem
from penstock.server.health.watch import ComponentHealth
from penstock.server.metrics import (
    DoubtMetrics,
    FeedCollector,
    HealthCollector,
    StoreCollector,
    TableStateCollector,
    VerifyMetrics,
    render,
    shown_feeds,
)
from penstock.sink.metrics import families
from penstock.sink.storage.metrics import SinkCounters
from penstock.store.event_store import ColumnarEventStore
from testing.twins.clock import SimulatedClock

KINDS = {MetricKind.COUNTER: "counter", MetricKind.GAUGE: "gauge", MetricKind.HISTOGRAM: "histogram", MetricKind.SUM: "unknown"}
DECLARED = {metric.name: metric for metric in METRICS}


def test_metrics_say_when_the_meta_database_is_gone(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    (tmp_path / "sub").mkdir()
    meta = MetaDatabase(sqlite_url(tmp_path / "sub" / "meta.db"))
    registry.register(FeedCollector(meta, SystemClock()))
    assert b"penstock_meta_up 1.0" in render([registry])
    meta.close()
    for file in (tmp_path / "sub").iterdir():
        file.unlink()
    (tmp_path / "sub").rmdir()
    assert b"penstock_meta_up 0.0" in render([registry])


def check(shown: Iterable[Metric]) -> set[str]:
    """Fail where a family is not declared so; return those that have samples."""
    found = set()
    for one in shown:
        metric = DECLARED[one.name]
        assert (one.type, one.documentation) == (KINDS[metric.kind], metric.text), one.name
        for sample in one.samples:
            assert sample.name in (*metric.shown, f"{metric.name}_created"), one.name
            assert sample.labels.keys() - {"le"} == set(metric.labels), one.name
            found.add(one.name)
    return found


def collectors(folder: Path, store: ColumnarEventStore, clock: SimulatedClock) -> Iterable[Collector | CollectorRegistry]:
    meta = MetaDatabase(sqlite_url(folder / "meta.db"), clock)
    meta.create_feed(FeedRecord("orders", "u", "{}"), [], [DispatcherRecord("7-0", 7, "shop", "orders", "{}")])
    epoch = meta.claim("orders", "me", 60_000) or 0
    meta.begin_window("orders", epoch, 0, 10, "{}")
    meta.commit_window("orders", epoch, 0, 10, {"7-0": {}}, counts={"7-0": Counted(3, 30, 1)})
    meta.record_error("orders", epoch, "SINK_UNAVAILABLE", "503", RetryRecord(5, 6, 1))
    yield FeedCollector(meta, clock)
    problem = FeedProblem("plan", "there is work", "look", clock.now_ms())
    yield HealthCollector(lambda: {"store": ComponentHealth(ok=True)}, lambda: {"orders": problem}, clock)
    yield TableStateCollector(lambda: [TableState(7, "shop", "orders", TableCondition.DOUBTFUL)], clock)
    yield StoreCollector(store.stats)
    yield ReceiverCollector(1, list, lambda: 0, clock)
    registry = CollectorRegistry()
    DoubtMetrics(registry).rereads.labels("settled").inc()
    VerifyMetrics(registry).note("orders", "shop.orders", 0)
    SpanPipelineMetrics(registry)
    LogPullerMetrics(registry).errors.labels("UPSTREAM_UNREACHABLE").inc()
    yield registry
    meta.close()


def test_what_is_shown_is_what_is_declared(tmp_path: Path) -> None:
    counters = SinkCounters()
    counters.flushed("size", 0.1, 100)
    shown = check(families({"orders": counters.report()}))
    with ColumnarEventStore(tmp_path / "store") as store:
        for collector in collectors(tmp_path, store, SimulatedClock()):
            shown |= check(collector.collect())
    # What only a receiver, a DDL, a spill or a state tells has tests of its own.
    elsewhere = (
        "penstock_receiver_",
        "penstock_sink_ddl_",
        "penstock_sink_dead_letters",
        "penstock_log_puller_regions",
        "penstock_verified_ranges",
    )
    assert {name for name in DECLARED if not name.startswith(elsewhere)} - shown == set()


def test_names_and_texts_keep_their_form() -> None:
    assert len(DECLARED) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("penstock_")
        assert metric.text.endswith(".")
        assert len(metric.labels) <= 3


def test_the_page_of_metrics_is_current() -> None:
    assert metrics_page.PAGE.read_text(encoding="utf-8") == metrics_page.render()


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ({"a": TABLES_MAX, "b": TABLES_MAX + 1}, {"a"}),
        ({"a": 5, "b": 4, "c": 9}, {"a", "b"}),
        ({}, set()),
    ],
)
def test_the_tables_of_large_feeds_are_not_shown_one_by_one(counts: dict[str, int], shown: set[str]) -> None:
    assert shown_feeds(counts, total=TABLES_MAX if "c" not in counts else 10) == shown


def test_of_too_many_tables_in_doubt_the_quarantined_are_shown() -> None:
    clock = SimulatedClock()
    states = [TableState(n, "s", f"t{n}", TableCondition.DOUBTFUL, since_ms=n) for n in range(TABLES_MAX + 5)]
    states.append(TableState(9_999, "s", "lost", TableCondition.QUARANTINED, code="TYPE_UNSUPPORTED", since_ms=10**6))
    count, each, since = TableStateCollector(lambda: states, clock).collect()
    assert {s.labels["state"]: s.value for s in count.samples} == {"doubtful": TABLES_MAX + 5, "rereading": 0, "quarantined": 1}
    assert len(each.samples) == len(since.samples) == TABLES_MAX
    assert each.samples[0].labels == {"table": "s.lost", "state": "quarantined", "code": "TYPE_UNSUPPORTED"}


def test_tables_that_differ_are_shown_before_those_that_do_not() -> None:
    registry = CollectorRegistry()
    metrics = VerifyMetrics(registry)
    for table, wrong in (("a", 0), ("b", 0), ("c", 0), ("d", 4), ("b", 2), ("e", 1), ("b", 0), ("f", 0)):
        metrics.note("f", table, wrong, most=2)

    def shown() -> dict[str, float]:
        samples = [sample for metric in registry.collect() for sample in metric.samples]
        return {sample.labels["table"]: sample.value for sample in samples if sample.name == "penstock_table_differences"}

    assert shown() == {"d": 4, "b": 0}
    metrics.note("g", "x", 1, most=2, total=2)
    assert shown() == {"d": 4, "b": 0}
    metrics.forget("f")
    metrics.note("g", "x", 1, most=2, total=2)
    assert shown() == {"x": 1}
