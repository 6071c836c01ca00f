"""Makes what ``prometheus_client`` shows out of the names in ``names.py``, so that nobody states a text or a label a second time.

Invariant: the kind that a metric is declared with is the kind that it is shown with. Runs wherever metrics are shown.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from penstock.model.metrics.names import MetricKind, MetricName


def family(metric: MetricName) -> GaugeMetricFamily | CounterMetricFamily:
    """Return an empty family, to which samples are added with their labels."""
    made = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    return made(metric.name, metric.text, labels=metric.labels)


def single(metric: MetricName, value: float) -> GaugeMetricFamily | CounterMetricFamily:
    """Return the family of a metric without labels, with its value."""
    found = family(metric)
    found.add_metric((), value)
    return found


def counter(metric: MetricName, on: CollectorRegistry) -> Counter:
    """Return a counter that counts by itself."""
    return Counter(metric.name, metric.text, metric.labels, registry=on)


def gauge(metric: MetricName, on: CollectorRegistry) -> Gauge:
    """Return a gauge that keeps its value."""
    return Gauge(metric.name, metric.text, metric.labels, registry=on)
