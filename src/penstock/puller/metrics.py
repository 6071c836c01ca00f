"""The objects that count what the log puller does; their names are in ``model/metrics/names.py``.

They are built on a registry that the composition root passes, so two log services in one
process (as in tests) never share a counter. Runs in the log service.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.model.metrics import names
from penstock.model.metrics.families import counter, gauge, single
from penstock.model.metrics.names import MetricName
from penstock.puller.quota import ByteQuota

_QUOTA_BUCKETS_S = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0)


class Cell:
    """A number that one thread counts up and down without a lock; readers see some recent value."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class CellSum(Collector):
    """A counter or gauge that is the sum of cells, one for each thread that counts: no lock on the data path."""

    def __init__(self, metric: MetricName, on: CollectorRegistry) -> None:
        self._metric = metric
        self._cells: list[Cell] = []
        on.register(self)

    def cell(self) -> Cell:
        """Return a new cell, for one thread."""
        cell = Cell()
        self._cells.append(cell)
        return cell

    def collect(self) -> Iterable[Metric]:
        """Return the sum, as a scrape wants it."""
        yield single(self._metric, sum(cell.value for cell in self._cells))


class WaitTimes(Collector):
    """A histogram of waits. One lock and one search: the usual one costs as much as handing a batch over."""

    def __init__(self, metric: MetricName, on: CollectorRegistry) -> None:
        self._metric = metric
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
        bounds = [*(str(b) for b in _QUOTA_BUCKETS_S), "+Inf"]
        buckets = list(zip(bounds, totals, strict=True))
        yield HistogramMetricFamily(self._metric.name, self._metric.text, buckets=buckets, sum_value=sum_s)


class SpanPipelineMetrics:
    """The seven metrics of the span pipeline."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        on = self.registry
        self.inflight_bytes = gauge(names.INFLIGHT_BYTES, on)
        self.inflight_batches = gauge(names.INFLIGHT_BATCHES, on)
        """These two are read from the quota when they are asked for; see ``watch``."""
        self.pending_barriers = CellSum(names.PENDING_BARRIERS, on)
        self.active_subscriptions = gauge(names.ACTIVE_SUBSCRIPTIONS, on)
        self.quota_acquire = WaitTimes(names.QUOTA_SECONDS, on)
        self.barriers_dropped = counter(names.BARRIERS_DROPPED, on)
        self.compactions = counter(names.BARRIER_COMPACTIONS, on)

    def watch(self, quota: ByteQuota) -> None:
        """Show what a quota holds."""
        self.inflight_bytes.set_function(lambda: quota.held_bytes)
        self.inflight_batches.set_function(lambda: quota.holders)


class LogPullerMetrics:
    """The metrics of region workers, event processor and frontier."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        on = self.registry
        self.regions = gauge(names.REGIONS, on)
        self.resolved_lag = gauge(names.RESOLVED_LAG_SECONDS, on)
        self.lagging_regions = gauge(names.LAGGING_REGIONS, on)
        self.entries = CellSum(names.ENTRIES, on)
        self.received_bytes = CellSum(names.RECEIVED_BYTES, on)
        self.matcher_pending = CellSum(names.MATCHER_PENDING, on)
        self.matcher_bytes = CellSum(names.MATCHER_BYTES, on)
        self.delivered_bytes = gauge(names.DELIVERED_BYTES, on)
        self.errors = counter(names.PULLER_ERRORS, on)
        self.stale_messages = counter(names.STALE_MESSAGES, on)
        self.replayed_entries = counter(names.REPLAYED_ENTRIES, on)
        self.violations = counter(names.RESOLVED_VIOLATIONS, on)
