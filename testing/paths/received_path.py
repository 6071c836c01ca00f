"""The whole path in one process with receivers that capture: each is a thread that thinks it is a Spark task.

A receiver can be cut off from the server: it goes on, unheard, as one does whose network is lost. When it counts as lost is decided by a
clock that a test moves. Runs in tests.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from penstock.feed.receivers.messages import ReceiverTask, Report
from penstock.feed.receivers.received_log import ReceivedLogService
from penstock.feed.receivers.receiver import Receiver
from penstock.feed.receivers.receivers import CapturePlace, Receivers
from penstock.feed.receivers.settings import ReceiverSettings
from penstock.feed.spark.jobs import Job
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.puller.log_service import LogService, LogServiceSettings
from penstock.source.contract import Upstream
from penstock.store.flight.address import FlightAddress
from penstock.store.flight.client import FlightStoreClient
from penstock.store.flight.server import FlightService
from testing.paths.whole_path import WholePath
from testing.twins.clock import SimulatedClock, SimulatedTimeOfDay

SETTINGS = ReceiverSettings(receivers=2, report_interval_s=0.02, backoff_s=0.1)


class ThreadedReceivers:
    """``Jobs`` whose tasks are receivers, each in the thread that runs its job."""

    def __init__(self, parallelism: int = 4) -> None:
        self.parallelism = parallelism
        self.cut_off: set[int] = set()
        """The slots of receivers that nobody hears."""
        self.heard: dict[int, list[Report]] = {}
        """What each slot reported."""
        self._cancelled: set[str] = set()

    def run(self, job: Job) -> list[bytes]:
        """Be a receiver until it ends."""
        told = decoded(job.tasks[0], ReceiverTask)
        with closing(FlightStoreClient(told.server.location, told.server.token)) as server:

            def call(body: bytes) -> bytes:
                if job.group in self._cancelled:
                    raise PenstockError("TICKET_INVALID", "the job was cancelled")
                if told.slot in self.cut_off:
                    raise PenstockError("STORE_UNREACHABLE", "cut off")
                answer = server.report(body)
                self.heard.setdefault(told.slot, []).append(decoded(body, Report))
                return answer

            Receiver(told, call, SETTINGS).run()
        return [b""]

    def cancel(self, group: str) -> None:
        """Let the receivers of a group end."""
        self._cancelled.add(group)

    def parts(self, slot: int) -> dict[int, int]:
        """Return the part of each span that a slot said last to hold."""
        reports = self.heard.get(slot, ())
        return {span.stats.span_id: part.part for part in (reports[-1].parts if reports else ()) for span in part.spans}

    def all_parts(self) -> dict[int, int]:
        """Return the part of each span that any slot said last to hold."""
        return {span_id: part for slot in list(self.heard) for span_id, part in self.parts(slot).items()}


class ReceivedPath(WholePath):
    """One feed whose rows receivers capture."""

    def __init__(self, root: Path, ddls: Sequence[str]) -> None:
        self.time = SimulatedClock()
        self.jobs = ThreadedReceivers()
        self._place = CapturePlace("", "path", (root / "parts").as_uri(), {})
        super().__init__(root, ddls)

    def open_flight(self) -> FlightService:
        """Serve the store's DDLs, and tell where the rest is."""
        place = CapturePlace(self.upstream.uri, "path", self._place.parts_uri, {})
        self.jobs = ThreadedReceivers()
        self.receivers = Receivers(place, self.store, SETTINGS, SimulatedTimeOfDay(self.time))
        return FlightService(self.store, places=self.receivers)

    def open_log(self, upstream: Upstream, settings: LogServiceSettings) -> LogService:
        """Start what captures DDLs, and let receivers come."""
        self.receivers.start(self.jobs, FlightAddress(self.flight.location, self.flight.token))
        # They end before what they report to.
        self._services.callback(self.receivers.close)
        return ReceivedLogService(self.receivers, upstream, self.store, settings).start()

    def lose(self, slot: int) -> None:
        """Cut a receiver off, and let time pass while the others are heard, until it counts as lost."""
        self.jobs.cut_off.add(slot)
        self.wait_until("it is lost", functools.partial(self._is_lost_later, slot))

    def _is_lost_later(self, slot: int) -> bool:
        others = [other for other in range(SETTINGS.receivers) if other not in self.jobs.cut_off]
        heard = {other: len(self.jobs.heard[other]) for other in others}
        self.time.advance(SETTINGS.lost_s * 2 / 3)
        for other, count in heard.items():
            self.wait_until("the others report", functools.partial(self._heard_since, other, count))
        held = {part.location for part in self.jobs.heard[slot][-1].parts}
        return not any(self._location(d.span.span_id) in held for d in self.live())

    def _heard_since(self, slot: int, count: int) -> bool:
        # One that was under way when time passed may have been answered before.
        return len(self.jobs.heard[slot]) > count + 1

    def _location(self, span_id: int) -> str:
        try:
            address = self.receivers.address_of(span_id)
        except PenstockError:
            return ""
        return address.location if address is not None else ""
