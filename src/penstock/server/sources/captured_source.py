"""One captured source: everything that a server has for it and for no other.

Upstream, event store with its Flight service, pins, log service, the loops that settle doubts and verify on a schedule, runs of feeds, and
what is looked at and counted. Invariants: all of it is opened here, in one order, and ended in the reverse order; where a part cannot be
opened, those before it are ended again. Runs in the server.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from penstock.config.server_tree import ServerConfig
from penstock.config.store_objects import open_objects
from penstock.config.tree import SinkConfig
from penstock.feed.bootstrap.bootstrap import BootstrapSettings, JobTasks
from penstock.feed.bootstrap.reread import Reread
from penstock.feed.receivers.received_log import ReceivedLogService
from penstock.feed.receivers.receivers import CapturePlace, Receivers
from penstock.feed.receivers.settings import ReceiverSettings
from penstock.feed.spark.jobs import Jobs
from penstock.meta.database import MetaDatabase
from penstock.meta.log_journal import JournalSettings, LogJournal
from penstock.meta.table_states import TableStates
from penstock.model.clock import Clock, system_random
from penstock.puller.log_service import LogService
from penstock.server.doubts.doubt_rules import FeedDoubtRules
from penstock.server.doubts.doubted_tables import FOUND, DoubtedTables
from penstock.server.feeds.feed_pins import FeedPins
from penstock.server.feeds.runs import SparkFeedRunFactory
from penstock.server.flight_opening import open_flight
from penstock.server.health.looks import CaptureLook
from penstock.server.metrics import DoubtMetrics, StoreCollector, TableStateCollector, VerifyMetrics
from penstock.server.source_address import SourcePlace, check_reachable, source_name
from penstock.server.verify.moving_verification import MovingVerifier
from penstock.server.verify.range_check import CheckSettings, RangeCheck
from penstock.server.verify.scheduled_verification import ScheduledVerification, VerifyWish, feed_wishes
from penstock.server.verify.verification import FeedVerifier
from penstock.sink.contract import SinkMaintainer
from penstock.source.catalog import open_upstream
from penstock.source.contract import Upstream
from penstock.source.single_log import has_log
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.address import FlightAddress, write_address
from penstock.store.objects.owner_chain import OwnerChain
from penstock.target.kind import SinkRun
from penstock.target.storage import Guard


@dataclass(frozen=True)
class Surroundings:
    """What the sources of one server share.

    Attributes:
        open_target: opens the target of a feed.
        resolve: gives what a named connection stands for.
        runs_here: whether this server runs a feed now.
        owner: the name of this server.
        verifying: held by whoever verifies, because one verification at a time has room for its rows.
        go_on: raises where a start was abandoned.
    """

    config: ServerConfig
    meta: MetaDatabase
    jobs: Jobs
    clock: Clock
    open_target: Callable[[SinkConfig, Guard, SinkRun], SinkMaintainer]
    resolve: Callable[[SinkConfig], SinkConfig]
    runs_here: Callable[[str], bool]
    verifying: threading.Lock
    owner: str
    go_on: Callable[[], None] = lambda: None


def changes_kept_from_ts(store: ColumnarEventStore, span_ids: Collection[int]) -> int | None:
    """Return from which ts on a store has all changes of spans; None where it does not have one of them."""
    spans = [span for span in store.stats().spans if span.span_id in span_ids]
    return max(max(s.history_start_ts, s.base_ts or 0) for s in spans) if spans and len(spans) == len(set(span_ids)) else None


class CapturedSource:
    """The parts of one source, from the call to ``close``. Implements ``OpenSource``."""

    def __init__(self, place: SourcePlace, store_dir: Path, around: Surroundings) -> None:
        """Open everything; on an error, end what was opened and raise it."""
        self._place = place
        self.uri = place.uri
        self._around = around
        self._parts = contextlib.ExitStack()
        self._metrics = CollectorRegistry()
        try:
            self._open(store_dir)
        except BaseException:
            self._parts.close()
            raise

    def close(self) -> None:
        """End everything, the newest part first. What is at the upstream stays: a slot, a log. May be called twice."""
        self._parts.close()

    @property
    def stands_by(self) -> bool:
        """Return whether nothing is captured."""
        return self.log_service.stands_by

    def kept_from_ts(self, span_ids: Collection[int]) -> int | None:
        """Return from which ts on all changes of spans are kept here; None where receivers hold them, or a span is not captured."""
        return None if self._receivers is not None else changes_kept_from_ts(self.store, span_ids)

    def begin(self) -> None:
        """Take the event store and read the log where this is not so, because a feed of it shall begin here."""
        if has_log(self.upstream):
            self.log_service.begin()

    def stand_by(self) -> None:
        """Let the log go: no feed of it is here, and another server may read it."""
        if has_log(self.upstream):
            self.log_service.stand_by()

    def verification(self, feed: str) -> dict[str, Any] | None:
        """Return what verification on a schedule found of a feed, None where it is not verified so."""
        return self._scheduled.view(feed) if self._scheduled is not None else None

    @property
    def registries(self) -> list[CollectorRegistry]:
        """Return the metrics of this source."""
        return [self._metrics, self.log_service.registry]

    def _open(self, store_dir: Path) -> None:
        around, config, clock, parts = self._around, self._around.config, self._around.clock, self._parts
        check_reachable(self.uri)
        self.upstream: Upstream = open_upstream(self.uri)
        parts.callback(self.upstream.close)
        objects = open_objects(config.store, source_name(self.uri), around.resolve)
        name, meta = source_name(self.uri), around.meta
        chain = OwnerChain(functools.partial(meta.object_links, name), functools.partial(meta.note_object_link, name), system_random())
        self.store = ColumnarEventStore(store_dir, config.store, clock, objects, shared=objects is not None, chain=chain)
        parts.callback(self.store.close)
        self._metrics.register(StoreCollector(self.store.stats))
        self._receivers = self._open_receivers(store_dir) if self._place.capture.on_executors else None
        further = self._place.flight_port if self._place.name else None
        self._flight = open_flight(config, self.store, store_dir, clock, further, self._receivers)
        parts.callback(self._flight.close)
        self.address = FlightAddress(self._flight.location, self._flight.token)
        parts.callback(write_address(store_dir, self.address).unlink, missing_ok=True)
        around.go_on()
        pins = FeedPins(around.meta, self.store.needs, self.uri, clock)
        parts.callback(pins.stop)
        pins.start()
        self.log_service = self._open_log_service(pins)
        if self._receivers is not None:
            parts.callback(self._receivers.close)
            self._receivers.start(around.jobs, self.address)
            self._metrics.register(self._receivers.collector())
        self.look = CaptureLook(self.log_service.status, store_dir)
        moving = MovingVerifier(self.upstream, self.log_service.settled_ts, clock)
        self.verifier = FeedVerifier(
            around.meta,
            self.upstream,
            self.uri,
            moving.verify,
            self.log_service.table_states,
            around.resolve,
            around.verifying,
        )
        self.runs = SparkFeedRunFactory(
            around.jobs,
            around.meta,
            config.effective_meta_url,
            self.upstream,
            self.uri,
            self.log_service,
            self.store,
            self.address,
            around.open_target,
            around.resolve,
            self._receivers,
        )
        self.doubted = self._settle_doubts()
        self._scheduled = self._verify_on_schedule(self.doubted) if self.doubted is not None else None

    def _open_receivers(self, store_dir: Path) -> Receivers:
        """Return what captures the rows on executors; it begins later."""
        config, shared = self._around.config, bool(self._around.config.store.objects)
        uri = f"{self.store.objects.uri.rstrip('/')}/parts" if shared else (store_dir.resolve() / "parts").as_uri()
        place = CapturePlace(self.uri, source_name(self.uri), uri, dict(self.store.objects.options))
        receivers = self._place.capture.receivers
        settings = ReceiverSettings(receivers, config.receivers_total - receivers)
        opened = Receivers(place, self.store, settings, self._around.clock, config.log_service)
        self._parts.callback(opened.close)
        return opened

    def _open_log_service(self, pins: FeedPins) -> LogService:
        config, clock, parts = self._around.config, self._around.clock, self._parts
        if self._receivers is not None:
            received = ReceivedLogService(
                self._receivers, self.upstream, self.store, config.log_service, clock, registry=CollectorRegistry()
            )
            parts.callback(received.close)
            return received.start()
        name = source_name(self.uri)
        # Shorter than a feed's: whoever takes over its feeds finds the log free.
        lease = JournalSettings(lease_s=config.supervisor.lease_s / 2)
        journal = LogJournal(config.effective_meta_url, name, lease, clock, config.meta, self._around.owner)
        parts.callback(journal.close)
        doubts = TableStates(config.effective_meta_url, name, clock, config.meta)
        parts.callback(doubts.close)
        service = LogService(
            self.upstream,
            self.store,
            config.log_service,
            clock,
            registry=CollectorRegistry(),
            journal=journal,
            needed_from=pins.log_needed_from_ts,
            doubts=doubts,
            waits=has_log(self.upstream),
        )
        parts.callback(service.close)
        return service.start()

    def _settle_doubts(self) -> DoubtedTables | None:
        """Begin to settle doubted tables; None where the upstream's tables are never in doubt."""
        around, config, clock, upstream = self._around, self._around.config, self._around.clock, self.upstream
        if not has_log(upstream):
            return None
        settings = BootstrapSettings(config.reread.tasks, config.reread.rows_per_second)

        def job() -> Reread:
            return Reread(JobTasks(around.jobs), self.store, upstream, self.uri, self.log_service, self._flight, settings, clock)

        self._metrics.register(TableStateCollector(self.log_service.table_states, clock))
        rules = FeedDoubtRules(around.meta, self.uri)
        metrics, follows = DoubtMetrics(self._metrics), lambda: not self.stands_by
        doubted = DoubtedTables(self.log_service, job, rules, config.reread, clock, system_random(), metrics, follows)
        self._parts.callback(doubted.stop)
        doubted.start()
        return doubted

    def _verify_on_schedule(self, doubted: DoubtedTables) -> ScheduledVerification:
        """Begin to verify the feeds that wish it."""
        around, clock = self._around, self._around.clock

        def wishes() -> list[VerifyWish]:
            # Feeds that another server runs are captured there.
            return [w for w in feed_wishes(around.meta, self.uri) if around.runs_here(w.feed)]

        def repair(table_id: int, schema: str, table: str) -> None:
            doubted.resnapshot(table_id, schema, table, FOUND)

        check = RangeCheck(self.upstream, self.store, self.log_service.settled_ts, clock, CheckSettings())
        scheduled = ScheduledVerification(check, wishes, doubted.states, repair, clock, system_random(), VerifyMetrics(self._metrics))
        self._parts.callback(scheduled.stop)
        scheduled.start()
        return scheduled
