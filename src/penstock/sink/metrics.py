"""The metrics of all sinks: reports of tasks added up per feed, and shown at ``/metrics``.

Every name has one prefix and the feed as a label. Counters and histograms of tasks are summed, of gauges the largest counts. Runs beside
the driver, where windows are committed, and in the server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.registry import Collector

from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.metrics.names import DDL_AFFECTED, SINK_METRICS, SINK_PREFIX
from penstock.sink.contract import Histogram, TaskReport

_KEY = re.compile(r"(\w+)(?:\{(\w+)=([^}]*)\})?\Z")


def add_to_text(known: str, reports: Sequence[TaskReport]) -> str:
    """Add reports to a feed's sum, which is kept as JSON, empty at first; return the new sum."""
    before = [decoded(known, TaskReport)] if known else []
    return msgspec.json.encode(add_reports([*before, *reports])).decode()


def ddl_report(dispatchers: int) -> TaskReport:
    """Return a report of dispatchers that drained for a DDL at the end of their window."""
    return TaskReport(counters={DDL_AFFECTED.key: dispatchers})


def add_reports(reports: Iterable[TaskReport]) -> TaskReport:
    """Return what several reports say together. Histograms whose bounds differ count from the last bounds on."""
    counters: dict[str, float] = {}
    peaks: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    for report in reports:
        for name, value in report.counters.items():
            counters[name] = counters.get(name, 0) + value
        for name, value in report.peaks.items():
            peaks[name] = max(peaks.get(name, 0), value)
        for name, found in report.histograms.items():
            known = histograms.get(name)
            if known is None or known.bounds != found.bounds:
                histograms[name] = found
            else:
                counts = tuple(a + b for a, b in zip(known.counts, found.counts, strict=True))
                histograms[name] = Histogram(known.bounds, counts, known.total + found.total)
    return TaskReport(counters, peaks, histograms)


def families(reports: Mapping[str, TaskReport]) -> list[Metric]:
    """Return the metrics of the feeds' reports, as a scrape wants them."""
    found: dict[str, Any] = {}
    for feed, report in sorted(reports.items()):
        for key, value in {**report.counters, **report.peaks}.items():
            name, labels, values = _split(key, feed)
            kind = GaugeMetricFamily if name in report.peaks else UnknownMetricFamily
            found.setdefault(name, kind(SINK_PREFIX + name, _text(name), labels=labels)).add_metric(values, value)
        for key, histogram in report.histograms.items():
            name, labels, values = _split(key, feed)
            family = found.setdefault(name, HistogramMetricFamily(SINK_PREFIX + name, _text(name), labels=labels))
            family.add_metric(values, _buckets(histogram), histogram.total)
    return list(found.values())


class SinkMetricsCollector(Collector):
    """Shows the sums that a function gives when somebody asks, by feed, as JSON."""

    def __init__(self, reports: Callable[[], Mapping[str, str]]) -> None:
        self._reports = reports

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering asks for no reports."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the current values."""
        try:
            texts = self._reports()
        except PenstockError:
            # Another collector says that the meta database does not answer.
            return []
        return families({feed: decoded(text, TaskReport) for feed, text in texts.items()})


def _split(key: str, feed: str) -> tuple[str, list[str], list[str]]:
    match = _KEY.match(key)
    if match is None:
        return key, ["feed"], [feed]
    name, label, value = match.groups()
    return (name, ["feed", label], [feed, value]) if label else (name, ["feed"], [feed])


def _text(name: str) -> str:
    """Return what a name means; a sum that an older version kept may have one that is not known any more."""
    return SINK_METRICS[name].text if name in SINK_METRICS else name


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    running, found = 0, []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=False):
        running += count
        found.append(("+Inf" if bound == float("inf") else str(bound), float(running)))
    return found
