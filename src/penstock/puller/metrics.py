"""The log puller's metrics: their names, and the objects that count.

Every name is a constant here. The objects are built on a registry that the composition root passes, so two log services in one
process (as in tests) never share a counter. Runs in the log service.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.puller.quota import ByteQuota

SPAN_PIPELINE_PREFIX = "penstock_log_puller_span_pipeline_"
INFLIGHT_BYTES = SPAN_PIPELINE_PREFIX + "inflight_bytes"
INFLIGHT_BATCHES = SPAN_PIPELINE_PREFIX + "inflight_batches"
PENDING_RESOLVED_BARRIERS = SPAN_PIPELINE_PREFIX + "pending_resolved_barriers"
ACTIVE_SUBSCRIPTIONS = SPAN_PIPELINE_PREFIX + "active_subscriptions"
QUOTA_ACQUIRE_DURATION_SECONDS = SPAN_PIPELINE_PREFIX + "quota_acquire_duration_seconds"
RESOLVED_BARRIER_DROPPED_TOTAL = SPAN_PIPELINE_PREFIX + "resolved_barrier_dropped_total"
RESOLVED_BARRIER_COMPACTION_TOTAL = SPAN_PIPELINE_PREFIX + "resolved_barrier_compaction_total"

LOG_PULLER_PREFIX = "penstock_log_puller_"
REGIONS = LOG_PULLER_PREFIX + "regions"
RESOLVED_LAG_SECONDS = LOG_PULLER_PREFIX + "resolved_lag_seconds"
LAGGING_REGIONS = LOG_PULLER_PREFIX + "lagging_regions"
ENTRIES_TOTAL = LOG_PULLER_PREFIX + "entries_total"
RECEIVED_BYTES_TOTAL = LOG_PULLER_PREFIX + "received_bytes_total"
MATCHER_PENDING = LOG_PULLER_PREFIX + "matcher_pending"
MATCHER_BYTES = LOG_PULLER_PREFIX + "matcher_bytes"
DELIVERED_BYTES = LOG_PULLER_PREFIX + "delivered_bytes"
ERRORS_TOTAL = LOG_PULLER_PREFIX + "errors_total"
STALE_MESSAGES_TOTAL = LOG_PULLER_PREFIX + "stale_messages_total"
REPLAYED_ENTRIES_TOTAL = LOG_PULLER_PREFIX + "replayed_entries_total"
RESOLVED_VIOLATIONS_TOTAL = LOG_PULLER_PREFIX + "resolved_violations_total"

_QUOTA_BUCKETS_S = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0)


class Cell:
    """A number that one thread counts up and down without a lock; readers see some recent value."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class CellSum(Collector):
    """A counter or gauge that is the sum of cells, one for each thread that counts: no lock on the data path."""

    def __init__(self, family: type[CounterMetricFamily] | type[GaugeMetricFamily], name: str, text: str, on: CollectorRegistry) -> None:
        self._family = family
        self._name = name
        self._text = text
        self._cells: list[Cell] = []
        on.register(self)

    def cell(self) -> Cell:
        """Return a new cell, for one thread."""
        cell = Cell()
        self._cells.append(cell)
        return cell

    def collect(self) -> Iterable[Metric]:
        """Return the sum, as a scrape wants it."""
        yield self._family(self._name, self._text, value=sum(cell.value for cell in self._cells))


class WaitTimes(Collector):
    """A histogram of waits. One lock and one search: the usual one costs as much as handing a batch over."""

    def __init__(self, name: str, text: str, on: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._counts = [0] * (len(_QUOTA_BUCKETS_S) + 1)
        self._sum_s = 0.0
        self._lock = threading.Lock()
        on.register(self)

    def observe(self, seconds: float) -> None:
        """Count one wait."""
        at = bisect.bisect_left(_QUOTA_BUCKETS_S, seconds)
        with self._lock:
            self._counts[at] += 1
            self._sum_s += seconds

    def collect(self) -> Iterable[Metric]:
        """Return the histogram, as a scrape wants it."""
        with self._lock:
            totals, sum_s = list(itertools.accumulate(self._counts)), self._sum_s
        names = [*(str(b) for b in _QUOTA_BUCKETS_S), "+Inf"]
        yield HistogramMetricFamily(self._name, self._text, buckets=list(zip(names, totals, strict=True)), sum_value=sum_s)


class SpanPipelineMetrics:
    """The seven metrics of the span pipeline."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        on = self.registry
        self.inflight_bytes = Gauge(INFLIGHT_BYTES, "Bytes held against the in-flight quota.", registry=on)
        self.inflight_batches = Gauge(INFLIGHT_BATCHES, "Data batches that wait for their persist callback.", registry=on)
        """These two are read from the quota when they are asked for; see ``watch``."""
        self.pending_barriers = CellSum(GaugeMetricFamily, PENDING_RESOLVED_BARRIERS, "Resolved ts that wait for earlier data.", on)
        self.active_subscriptions = Gauge(ACTIVE_SUBSCRIPTIONS, "Subscriptions that the workers track.", registry=on)
        self.quota_acquire = WaitTimes(QUOTA_ACQUIRE_DURATION_SECONDS, "Time that a batch waited for quota.", on)
        self.barriers_dropped = Counter(RESOLVED_BARRIER_DROPPED_TOTAL, "Redundant resolved ts that were dropped.", registry=on)
        self.compactions = Counter(RESOLVED_BARRIER_COMPACTION_TOTAL, "Times a queue of barriers was compacted.", registry=on)

    def watch(self, quota: ByteQuota) -> None:
        """Show what a quota holds."""
        self.inflight_bytes.set_function(lambda: quota.held_bytes)
        self.inflight_batches.set_function(lambda: quota.holders)


class LogPullerMetrics:
    """The metrics of region workers, event processor and frontier."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        on = self.registry
        self.regions = Gauge(
            REGIONS, "Regions that wait for a range, are pending, requested, initialized, or pulled.", ["state"], registry=on
        )
        self.resolved_lag = Gauge(RESOLVED_LAG_SECONDS, "How far the slowest span's resolved ts is behind the clock.", registry=on)
        self.lagging_regions = Gauge(LAGGING_REGIONS, "Regions whose resolved ts is further behind than the settings allow.", registry=on)
        self.entries = CellSum(CounterMetricFamily, ENTRIES_TOTAL, "Entries received.", on)
        self.received_bytes = CellSum(CounterMetricFamily, RECEIVED_BYTES_TOTAL, "Bytes of change-data messages received.", on)
        self.matcher_pending = CellSum(GaugeMetricFamily, MATCHER_PENDING, "Prewrites that wait for their commit or rollback.", on)
        self.matcher_bytes = CellSum(GaugeMetricFamily, MATCHER_BYTES, "Memory of what waits in the matchers.", on)
        self.delivered_bytes = Gauge(DELIVERED_BYTES, "Memory of delivered keys that no resolved ts covers yet.", registry=on)
        self.errors = Counter(ERRORS_TOTAL, "Region and stream errors, by code.", ["code"], registry=on)
        self.stale_messages = Counter(STALE_MESSAGES_TOTAL, "Messages for a feed that is no longer there.", registry=on)
        self.replayed_entries = Counter(REPLAYED_ENTRIES_TOTAL, "Entries that a re-registered region sent a second time.", registry=on)
        self.violations = Counter(RESOLVED_VIOLATIONS_TOTAL, "Rows at or below a resolved ts that was already emitted.", registry=on)
