"""One part as its receiver has it: an event store, a log service that fills it, and a Flight service that shows it.

Its objects lie where all executors and the server reach them, in a folder of the part; write-ahead log and memory are the receiver's own.
Whoever opens a part becomes the owner of its objects, goes on from what they hold and pulls the rest again: the store knows what it has.
Spans are captured whole, from ts 0: the stream of a source with ranges begins with the state. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from penstock.feed.receivers.messages import PartReport, ReceiverTask, SpanOrder, SpanReport, part_uri
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.metrics.names import ENTRIES, RECEIVED_BYTES
from penstock.model.span import DDL_SPAN
from penstock.model.timestamp import TS_ZERO
from penstock.puller.log_service import CaptureState, LogService
from penstock.source.contract import Upstream
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.server import FlightService
from penstock.store.objects.objects import ObjectSpace

_SERVER = "server"
"""Under which name the pins of the server's feeds are kept."""


class CapturedPart:
    """An open part. ``follow`` and ``close`` are called by one thread, ``report`` by another."""

    def __init__(self, number: int, told: ReceiverTask, host: str, upstream: Upstream, directory: Path, clock: Clock) -> None:
        """Open everything and become the owner; on an error, end what was opened and raise it."""
        self.number = number
        self._ordered: frozenset[int] = frozenset()
        self._parts = ExitStack()
        try:
            objects = ObjectSpace(part_uri(told.parts_uri, number), options=told.storage_options)
            self._store = ColumnarEventStore(directory, told.store, clock, objects, shared=True)
            self._parts.callback(self._store.close)
            flight = FlightService(self._store, host, secret=told.secret, clock=clock, tls=told.tls)
            self._parts.callback(flight.close)
            self._location = flight.location
            self._service = LogService(upstream, self._store, told.log_service, clock)
            self._parts.callback(self._service.close)
            self._service.start().begin()
        except BaseException:
            self._parts.close()
            raise

    def follow(self, orders: Sequence[SpanOrder]) -> None:
        """Capture these spans and no others; raises where one cannot be begun, after all were tried."""
        wanted = {order.span.span_id: order for order in orders}
        for gone in self._ordered - wanted.keys():
            self._service.remove_span(gone)
        failed: PenstockError | None = None
        begun = set(self._ordered & wanted.keys())
        for span_id, order in wanted.items():
            if span_id not in begun:
                try:
                    self._service.ensure_span(order.span, TS_ZERO)
                except PenstockError as error:
                    failed = error
                    continue
                begun.add(span_id)
            self._store.needs.pin(span_id, _SERVER, order.pinned_ts)
        self._ordered = frozenset(begun)
        if failed is not None:
            raise failed

    def report(self, error: str = "") -> PartReport:
        """Return what the server is to know."""
        stats = {s.span_id: s for s in self._store.stats().spans}
        spans = []
        for status in self._service.status():
            if status.span_id in stats and status.span_id != DDL_SPAN.span_id:
                retrying = status.state is CaptureState.RETRYING
                shown = str(status.last_error) if retrying else ""
                spans.append(SpanReport(stats[status.span_id], status.regions, status.regions_waiting, status.failures, retrying, shown))
        entries, nbytes = (int(self._service.registry.get_sample_value(one.shown[0]) or 0) for one in (ENTRIES, RECEIVED_BYTES))
        return PartReport(self.number, self._location, tuple(spans), error, self._store.is_taken_away(), entries, nbytes)

    def close(self) -> None:
        """Stop capturing, write what is in memory to objects for whoever comes next, and end. May be called twice."""
        self._parts.close()
