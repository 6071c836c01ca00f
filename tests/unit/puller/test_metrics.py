"""What a scrape shows: every metric by its name, with the values of a small run."""

from __future__ import annotations

import pyarrow as pa
from prometheus_client import CollectorRegistry, generate_latest

from penstock.model.clock import SystemClock
from penstock.model.metrics import names
from penstock.model.metrics.names import MetricKind, MetricName
from penstock.puller.metrics import CellSum, LogPullerMetrics, SpanPipelineMetrics, WaitTimes
from penstock.puller.ranged.log_puller import LogPuller
from penstock.puller.ranged.repeats import DeliveredLog
from penstock.puller.span_pipeline import SpanPipeline, SpanPipelineSettings
from penstock.source.raw import RAW_SCHEMA, RawBatch
from testing.twins.change_stream import ScriptedUpstream

SEVEN = {
    "inflight_bytes",
    "inflight_batches",
    "pending_resolved_barriers",
    "active_subscriptions",
    "quota_acquire_duration_seconds_count",
    "resolved_barrier_dropped_total",
    "resolved_barrier_compaction_total",
}
OTHERS = {
    "regions",
    "resolved_lag_seconds",
    "lagging_regions",
    "entries_total",
    "received_bytes_total",
    "matcher_pending",
    "matcher_bytes",
    "delivered_bytes",
    "errors_total",
    "stale_messages_total",
    "replayed_entries_total",
    "resolved_violations_total",
}


def test_a_scrape_shows_every_metric() -> None:
    registry = CollectorRegistry()
    pipeline = SpanPipeline(SpanPipelineSettings(workers=1), SystemClock(), SpanPipelineMetrics(registry))
    puller = LogPuller(ScriptedUpstream(), pipeline, metrics=LogPullerMetrics(registry))
    puller.metrics.errors.labels("NOT_LEADER").inc()
    puller._tick()
    text = generate_latest(registry).decode()
    pipeline.close()
    puller.close()
    shown = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert {"penstock_log_puller_span_pipeline_" + name for name in SEVEN} <= shown
    assert {"penstock_log_puller_" + name for name in OTHERS} <= shown
    assert 'penstock_log_puller_errors_total{code="NOT_LEADER"} 1.0' in text


def test_in_flight_and_waits_are_those_of_the_quota() -> None:
    pipeline = SpanPipeline(SpanPipelineSettings(workers=1), SystemClock())
    finished = []
    registration = pipeline.register(1, lambda _, finish: not finished.append(finish), lambda _: None)
    batch = RawBatch(
        1,
        pa.RecordBatch.from_arrays(
            [pa.array([1] if f.name != "key" else [b"k"], f.type) if not f.nullable else pa.nulls(1, f.type) for f in RAW_SCHEMA],
            schema=RAW_SCHEMA,
        ),
    )
    pipeline.enqueue_data(registration, batch)
    pipeline.enqueue_resolved(registration, 5)
    sample = pipeline.metrics.registry.get_sample_value
    pipeline.register(2, lambda _b, _f: True, lambda _: None)  # the worker has seen what came before when this returns
    assert sample(names.INFLIGHT_BYTES.name) == batch.nbytes
    assert sample(names.INFLIGHT_BATCHES.name) == 1
    assert sample(names.PENDING_BARRIERS.name) == 1
    assert sample(names.ACTIVE_SUBSCRIPTIONS.name) == 2
    assert sample(names.QUOTA_SECONDS.shown[2]) == 1
    finished[0]()
    pipeline.register(3, lambda _b, _f: True, lambda _: None)
    assert [sample(n.name) for n in (names.INFLIGHT_BYTES, names.INFLIGHT_BATCHES, names.PENDING_BARRIERS)] == [0, 0, 0]
    pipeline.close()


def test_cells_of_several_threads_are_summed() -> None:
    registry = CollectorRegistry()
    counter = CellSum(MetricName("Tests", "things", MetricKind.COUNTER, "Things."), registry)
    first, second = counter.cell(), counter.cell()
    first.value += 2
    second.value += 3
    assert registry.get_sample_value("things_total") == 5


def test_waits_fall_into_their_buckets() -> None:
    registry = CollectorRegistry()
    waits = WaitTimes(MetricName("Tests", "waits_seconds", MetricKind.HISTOGRAM, "Waits."), registry)
    for seconds in (0.0, 0.00005, 0.02, 1000.0):
        waits.observe(seconds)
    assert registry.get_sample_value("waits_seconds_bucket", {"le": "0.0001"}) == 2
    assert registry.get_sample_value("waits_seconds_bucket", {"le": "0.05"}) == 3
    assert registry.get_sample_value("waits_seconds_bucket", {"le": "+Inf"}) == 4
    assert registry.get_sample_value("waits_seconds_count") == 4


def test_delivered_keys_are_metered_until_a_resolved_ts_covers_them() -> None:
    log = DeliveredLog()
    columns = [pa.array([10, 11], pa.uint64()), pa.array([1, 1], pa.uint64()), pa.array([1, 1], pa.uint8()), pa.array([b"a", b"bb"])]
    records = pa.RecordBatch.from_arrays([*columns, pa.nulls(2, pa.binary()), pa.nulls(2, pa.binary())], schema=RAW_SCHEMA)
    log.add(records, 11)
    assert log.nbytes >= 19
    log.prune(10)
    assert log.nbytes >= 19
    log.prune(11)
    assert log.nbytes == 0
