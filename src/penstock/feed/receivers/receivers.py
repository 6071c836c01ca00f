"""The receivers of one source as its server sees them: one that is asked for spans, for plans, and for where to read.

Puts board, planner and jobs together and answers for them. The server's own event store keeps the DDLs and the versions of tables; every
other span is in a part. Secrets and certificates are made anew with each start. Runs in the server.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from penstock.feed.receivers.board import PartBoard
from penstock.feed.receivers.messages import Orders, ReceiverTask, Report, part_uri, proof_of
from penstock.feed.receivers.metrics import ReceiverCollector
from penstock.feed.receivers.part_planner import PartPlanner
from penstock.feed.receivers.receiver_jobs import ReceiverJobs
from penstock.feed.receivers.settings import PARTS_PER_RECEIVER, ReceiverSettings
from penstock.feed.spark.jobs import Jobs
from penstock.model.clock import Clock, system_random
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.timestamp import TS_MAX
from penstock.puller.log_service import LogServiceSettings, SpanStatus
from penstock.store.contract import WindowPlan, WindowWish
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.address import FlightAddress
from penstock.store.flight.client import FlightStoreClient
from penstock.store.flight.credentials import join_token, make_tls
from penstock.store.flight.ticket import call_token
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.ownership import PREFIX
from penstock.store.objects.shared_records import SharedRecords
from penstock.store.settings import StoreSettings
from penstock.store.stats import SpanStats

_SERVICE = "receiver.penstock"
"""Where receivers run is not known when their certificate is made: callers know them by this name."""
_SECRET_BYTES = 32


@dataclass(frozen=True)
class CapturePlace:
    """What is captured where.

    Attributes:
        source: the URI of the source, which executors reach.
        name: what people see of it.
        parts_uri: below it each part has a folder; all executors reach it, and the server.
        storage_options: how; may hold secrets.
    """

    source: str
    name: str
    parts_uri: str
    storage_options: dict[str, str]

    def __repr__(self) -> str:
        return f"CapturePlace({self.name!r})"


class Receivers:
    """Has the spans of a source captured on executors. Implements ``Places`` and ``KnownSpans``. Thread safe."""

    def __init__(
        self,
        place: CapturePlace,
        store: ColumnarEventStore,
        settings: ReceiverSettings,
        clock: Clock,
        log_service: LogServiceSettings | None = None,
    ) -> None:
        """``store`` is the server's own."""
        self.settings = settings
        self._place = place
        self._store = store
        self._clock = clock
        self._log_service = log_service or LogServiceSettings()
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        made = make_tls([_SERVICE], clock)
        self._tls = replace(made, reader=msgspec.structs.replace(made.reader, name=_SERVICE))
        self._token = join_token(call_token(self._secret), self._tls.reader)
        self._board = PartBoard(settings, clock, store.needs.pinned_ts)
        self._planner = PartPlanner(self._board, store, self._client)
        self._clients: dict[int, FlightStoreClient] = {}
        self._lock = threading.Lock()
        self._found = False
        self._jobs: ReceiverJobs | None = None

    def start(self, jobs: Jobs, server: FlightAddress) -> None:
        """Let receivers come, which report to a server's Flight service; they do when there is a span to capture."""
        settings, name = self.settings, self._place.name

        def task(slot: int, run: int) -> bytes:
            return msgspec.json.encode(self.task(slot, run, server))

        self._jobs = ReceiverJobs(jobs, self._board, name, task, settings, self._clock, system_random())
        self._jobs.start()

    def close(self) -> None:
        """End the receivers. May be called twice."""
        if self._jobs is not None:
            self._jobs.close()
        self._planner.close()
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def task(self, slot: int, run: int, server: FlightAddress) -> ReceiverTask:
        """Return what the receiver of a slot is told."""
        place = self._place
        return ReceiverTask(
            slot=slot,
            run=run,
            source=place.source,
            parts_uri=place.parts_uri,
            storage_options=place.storage_options,
            server=server,
            secret=self._secret,
            tls=self._tls,
            store=replace(self._store.settings, objects=StoreSettings.objects),
            log_service=self._log_service,
        )

    # Spans, for the log service and for feeds.

    def find_parts(self) -> None:
        """Look which spans are in parts already, so that these are gone on with. Done once, by whoever has the source's objects."""
        with self._lock:
            if not self._found:
                self._board.place(self._homes())
                self._found = True

    def let_go(self) -> None:
        """Have all parts closed, because another server has taken the source's objects."""
        with self._lock:
            self._board.let_go()
            self._found = False

    def ensure(self, span: Span) -> None:
        """Have a span captured; idempotent."""
        self._board.ensure(span)

    def remove(self, span_id: int) -> None:
        """Have a span captured no more."""
        self._board.remove(span_id)

    def status(self) -> list[SpanStatus]:
        """Return where each span that is wanted stands."""
        return self._board.status()

    def span_ids(self) -> tuple[int, ...]:
        """Return the spans that are captured."""
        return self._board.span_ids()

    def base_ts(self, span_id: int) -> int | None:
        """Return from which ts on the state of a span is known; None where it is not yet."""
        return self._board.base_ts(span_id)

    def resolved_ts(self, span_id: int) -> int:
        """Return the resolved ts of a span, the DDLs' too."""
        return self._store.resolved_ts(span_id) if span_id == DDL_SPAN.span_id else self._board.resolved_ts(span_id)

    def collector(self) -> ReceiverCollector:
        """Return what shows the receivers as metrics."""
        return ReceiverCollector(self.settings.receivers, self._board.view, lambda: self._board.lost_total, self._clock)

    # Places, for the Flight service.

    def address_of(self, span_id: int) -> FlightAddress | None:
        """Return where a span is read, None for the server's own store."""
        return None if span_id == DDL_SPAN.span_id else FlightAddress(self._board.location(span_id), self._token)

    def plan_window(self, wish: WindowWish) -> WindowPlan:
        """Choose where a window over the spans of several parts ends."""
        return self._planner.plan_window(wish)

    def plan_resnapshot(
        self, span_ids: Sequence[int], table_ids: Sequence[int], from_ts: int, patterns: Sequence[str] = (), end_ts: int = TS_MAX
    ) -> WindowPlan:
        """Choose the ts of a state that all parts know."""
        return self._planner.plan_resnapshot(span_ids, table_ids, from_ts, patterns, end_ts)

    def span_stats(self) -> list[SpanStats]:
        """Return what is stored of the DDLs here and of all other spans in parts."""
        return [*(s for s in self._store.stats().spans if s.span_id == DDL_SPAN.span_id), *self._board.stats()]

    def report(self, body: bytes) -> bytes:
        """Take the report of a receiver; return its orders."""
        report = decoded(body, Report)
        if not hmac.compare_digest(report.proof.encode(), proof_of(self._secret).encode()):
            raise PenstockError("TICKET_INVALID", "the report is not one of a receiver of this server")
        taken = any(part.is_taken_away for part in report.parts)
        # Where the source is another server's by now, its parts are too: they are not taken back, which would go on for ever.
        orders: Orders = self._board.receive(report, reopen=taken and self._is_owner())
        return msgspec.json.encode(orders)

    # Inside.

    def _is_owner(self) -> bool:
        """Return whether the source's objects are this server's, as far as can be told now."""
        try:
            # Nothing of it lies in memory; whoever may not publish is refused.
            self._store.flush(DDL_SPAN.span_id)
        except PenstockError:
            return False
        return True

    def _client(self, number: int, location: str) -> FlightStoreClient:
        with self._lock:
            known = self._clients.get(number)
            if known is None or known.location != location:
                if known is not None:
                    known.close()
                known = self._clients[number] = FlightStoreClient(location, self._token)
            return known

    def _homes(self) -> dict[int, int]:
        found: dict[int, int] = {}
        number = 0
        while True:
            space = ObjectSpace(part_uri(self._place.parts_uri, number), options=self._place.storage_options)
            if space.list_names(PREFIX):
                marks = SharedRecords(space, 0).marks()
                found |= {mark.span_id: number for mark in marks.spans if mark.span_id != DDL_SPAN.span_id}
            elif number >= self.settings.receivers * PARTS_PER_RECEIVER:
                return found
            number += 1
