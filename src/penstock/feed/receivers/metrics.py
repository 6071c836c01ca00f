"""The metrics of the receivers of one source, as their reports say: the server shows them with its own.

Counters of a part begin again where it is opened by another receiver, as those of a process that was started again do. Every name is a
constant here. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.feed.receivers.board import ReceiverView
from penstock.model.clock import Clock
from penstock.model.timestamp import lag_seconds

RECEIVERS = "penstock_receivers"
RECEIVERS_WANTED = "penstock_receivers_wanted"
RECEIVERS_LOST = "penstock_receivers_lost"
RECEIVER_PARTS = "penstock_receiver_parts"
RECEIVER_SPANS = "penstock_receiver_spans"
RECEIVER_FAILING = "penstock_receiver_failing_spans"
RECEIVER_LAG_SECONDS = "penstock_receiver_resolved_lag_seconds"
RECEIVER_MEMORY_ROWS = "penstock_receiver_memory_rows"
PART_ENTRIES = "penstock_receiver_part_entries"
PART_BYTES = "penstock_receiver_part_received_bytes"
_LABELS = ("slot", "host")


class ReceiverCollector(Collector):
    """Turns the last reports of receivers into metrics."""

    def __init__(self, wanted: int, view: Callable[[], Sequence[ReceiverView]], lost: Callable[[], int], clock: Clock) -> None:
        """``wanted`` receivers should be there; ``view`` gives those that are, ``lost`` how many went."""
        self._wanted = wanted
        self._view = view
        self._lost = lost
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering asks nobody."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return everything, as a scrape wants it."""
        seen = self._view()
        yield GaugeMetricFamily(RECEIVERS, "Receivers that are there.", value=len(seen))
        yield GaugeMetricFamily(RECEIVERS_WANTED, "Receivers that should be there.", value=self._wanted)
        yield CounterMetricFamily(RECEIVERS_LOST, "Receivers that were lost: silent, or their task ended.", value=self._lost())
        parts = GaugeMetricFamily(RECEIVER_PARTS, "Parts that a receiver has open.", labels=_LABELS)
        spans = GaugeMetricFamily(RECEIVER_SPANS, "Spans that a receiver captures.", labels=_LABELS)
        failing = GaugeMetricFamily(RECEIVER_FAILING, "Spans whose capture is tried again.", labels=_LABELS)
        lag = GaugeMetricFamily(RECEIVER_LAG_SECONDS, "How far its slowest span is behind the clock.", labels=_LABELS)
        rows = GaugeMetricFamily(RECEIVER_MEMORY_ROWS, "Rows that lie in its memory, not in objects.", labels=_LABELS)
        entries = CounterMetricFamily(PART_ENTRIES, "Entries received for a part.", labels=["part"])
        nbytes = CounterMetricFamily(PART_BYTES, "Bytes received for a part.", labels=["part"])
        for receiver in seen:
            labels = [str(receiver.slot), receiver.host]
            captured = [span for part in receiver.parts for span in part.spans]
            parts.add_metric(labels, len(receiver.parts))
            spans.add_metric(labels, len(captured))
            failing.add_metric(labels, sum(span.retrying for span in captured))
            resolved_ts = min((span.stats.resolved_ts for span in captured), default=0)
            if resolved_ts:
                lag.add_metric(labels, lag_seconds(resolved_ts, self._clock))
            rows.add_metric(labels, sum(span.stats.memory_rows for span in captured))
            for part in receiver.parts:
                entries.add_metric([str(part.part)], part.entries)
                nbytes.add_metric([str(part.part)], part.nbytes)
        yield from (parts, spans, failing, lag, rows, entries, nbytes)
