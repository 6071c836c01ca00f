"""The metrics of the receivers of one source, as their reports say: the server shows them with its own.

Counters of a part begin again where it is opened by another receiver, as those of a process that was started again do. The names are
in ``model/metrics/names.py``. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from penstock.feed.receivers.board import ReceiverView
from penstock.model.clock import Clock
from penstock.model.metrics import names
from penstock.model.metrics.families import family, single
from penstock.model.timestamp import lag_seconds


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
        yield single(names.RECEIVERS, len(seen))
        yield single(names.RECEIVERS_WANTED, self._wanted)
        yield single(names.RECEIVERS_LOST, self._lost())
        parts = family(names.RECEIVER_PARTS)
        spans = family(names.RECEIVER_SPANS)
        failing = family(names.RECEIVER_FAILING)
        lag = family(names.RECEIVER_LAG_SECONDS)
        rows = family(names.RECEIVER_MEMORY_ROWS)
        entries = family(names.PART_ENTRIES)
        nbytes = family(names.PART_BYTES)
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
