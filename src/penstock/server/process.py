"""The composition root of a server process: every component is made here, once, and ended here in the reverse order.

One process holds the meta database's connections, the log service with its event store and Flight service, the Spark session with the
runs of feeds, the supervisor and the HTTP API. Runs in the server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from penstock.config.connections import Connections
from penstock.config.known_servers import TOKEN_FILE, KnownServer, announce, ensure_token, read_token
from penstock.config.server_tree import ServerConfig
from penstock.config.sink_policy import SinkPolicy
from penstock.config.tree import SinkConfig
from penstock.feed.bootstrap.bootstrap import BootstrapSettings, JobTasks
from penstock.feed.bootstrap.reread import FlightPlace, Reread
from penstock.feed.spark.jobs import SparkJobs
from penstock.feed.spark.load import spark_load
from penstock.feed.spark.quiet_accumulators import quiet_accumulators
from penstock.feed.spark.session import SparkSettings, close_session, jvm_exit_code, open_session
from penstock.feed.spark.warming import warm
from penstock.meta.api_tokens import ApiTokens
from penstock.meta.database import MetaDatabase
from penstock.meta.log_journal import LogJournal
from penstock.meta.records import FeedRecord
from penstock.meta.table_states import TableStates
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.errors import InvariantError, PenstockError
from penstock.puller.log_service import LogService
from penstock.server.data_directory import DataDirectory
from penstock.server.doubts.doubt_rules import FeedDoubtRules
from penstock.server.doubts.doubted_tables import FOUND, DoubtedTables
from penstock.server.feeds.creation import FeedCreator, FeedDocument
from penstock.server.feeds.feed_pins import FeedPins
from penstock.server.feeds.runs import SparkFeedRunFactory
from penstock.server.feeds.supervisor import Supervisor
from penstock.server.flight_opening import open_flight, reached_here_only
from penstock.server.health.feed_watch import FeedWatch
from penstock.server.health.looks import CaptureLook, SparkLook, meta_look
from penstock.server.health.report import ServerHealth
from penstock.server.http.api import build_api
from penstock.server.http.callers import Callers
from penstock.server.http.guard import ApiGuard
from penstock.server.http.listener import HttpListener
from penstock.server.metrics import DoubtMetrics, FeedCollector, HealthCollector, TableStateCollector, VerifyMetrics
from penstock.server.source_address import SourceFeeds, check_reachable, source_name
from penstock.server.verify.moving_verification import MovingVerifier
from penstock.server.verify.range_check import CheckSettings, RangeCheck
from penstock.server.verify.scheduled_verification import ScheduledVerification, VerifyWish, feed_wishes
from penstock.server.verify.verification import FeedVerifier
from penstock.sink.catalog import open_maintainer
from penstock.sink.contract import SinkMaintainer
from penstock.sink.metrics import SinkMetricsCollector
from penstock.source.catalog import open_upstream
from penstock.source.contract import Upstream
from penstock.source.single_log import has_log
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.address import FlightAddress, write_address
from penstock.target.storage import Guard

log = logging.getLogger(__name__)

_SPARK_LOOK_S = 0.5


class ServerProcess:
    """A whole server, from ``start`` to ``stop``. Both are called by one thread."""

    def __init__(self, config: ServerConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._parts = contextlib.ExitStack()
        self._listener: HttpListener | None = None
        self._flight_location = ""
        self._log_service: LogService | None = None
        self._spark_lost: int | None = None
        self._jvm_exit_code: Callable[[], int | None] = lambda: None
        self._abandoned = threading.Event()
        self._creator: FeedCreator | None = None
        self._supervisor: Supervisor | None = None

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Return the address of the API."""
        return self._listener.url if self._listener else ""

    @property
    def token(self) -> str:
        """Return the server's own token: whoever holds this process may call it."""
        return read_token(self._config.data_dir / TOKEN_FILE)

    @property
    def flight_location(self) -> str:
        """Return where executors read changes."""
        return self._flight_location

    def settled_ts(self) -> int:
        """Return a ts at or above every commit that the source acknowledged before the call."""
        if self._log_service is None:
            raise InvariantError("the server is not started")
        return self._log_service.settled_ts()

    def create_feed(self, tree: Mapping[str, Any]) -> None:
        """Create a feed for whoever configured this server: any target will do."""
        if self._creator is None or self._supervisor is None:
            raise InvariantError("the server is not started")
        self._creator.create(tree, configured=True)
        self._supervisor.wake()

    def check_spark(self) -> None:
        """Raise ``SPARK_LOST`` where Spark's JVM has ended: nothing works without it, and whoever runs this process starts it again."""
        if self._spark_lost is not None:
            raise PenstockError("SPARK_LOST", f"Spark's JVM ended with {self._spark_lost}")

    def start(self) -> None:
        """Start everything; on an error, end what was started and raise it."""
        try:
            self._start()
        except BaseException:
            self._parts.close()
            raise

    def abandon(self) -> None:
        """Let a start that is under way in another thread end as soon as it can, with ``CANCELLED``."""
        self._abandoned.set()

    def stop(self) -> None:
        """End everything, the newest part first. Feeds are released, so that another server takes them at once."""
        self._parts.close()

    def _go_on(self) -> None:
        if self._abandoned.is_set():
            raise PenstockError("CANCELLED", "the server was stopped while it started")

    def _open_spark(self) -> SparkSession:
        """Start Spark, before anything that uses gRPC: starting the JVM forks, and a fork beside gRPC's threads can break the child."""
        settings = self._config.spark
        quiet_accumulators()
        session = open_session(SparkSettings(settings.master, settings.driver_memory, settings.effective_conf, settings.archive))
        self._jvm_exit_code = lambda: jvm_exit_code(session)
        self._parts.callback(close_session, session)
        self._parts.callback(self._watch_spark(self._jvm_exit_code))
        return session

    def _watch_spark(self, exit_code: Callable[[], int | None]) -> Callable[[], None]:
        """Look all the time whether the JVM lives; return what ends that."""
        stop = threading.Event()

        def watch() -> None:
            while not self._clock.wait(stop, _SPARK_LOOK_S):
                self._spark_lost = exit_code()
                if self._spark_lost is not None:
                    log.error("spark is lost", extra={"exit_code": self._spark_lost})
                    return

        thread = threading.Thread(target=watch, name="spark-watch", daemon=True)
        thread.start()

        def end() -> None:
            stop.set()
            thread.join()

        return end

    def _start(self) -> None:
        config, clock, parts = self._config, self._clock, self._parts
        connections = Connections.read(config.connections, os.environ)
        directory = DataDirectory(config.data_dir)
        parts.callback(directory.close)
        meta = MetaDatabase(config.effective_meta_url, clock, config.meta)
        parts.callback(meta.close)
        check_reachable(config.source)
        self._go_on()
        session = self._open_spark()
        jobs = SparkJobs(session)
        self._go_on()
        # Mostly other processes' work, so the rest starts meanwhile.
        warming = threading.Thread(target=warm, args=(jobs,), name="warming", daemon=True)
        if config.spark.warm_up:
            warming.start()
        upstream = open_upstream(config.source)
        parts.callback(upstream.close)
        store = ColumnarEventStore(directory.store, config.store, clock)
        parts.callback(store.close)
        flight = open_flight(config, store, directory.store, clock)
        parts.callback(flight.close)
        self._flight_location = flight.location
        address = FlightAddress(flight.location, flight.token)
        parts.callback(write_address(directory.store, address).unlink, missing_ok=True)
        self._go_on()
        pins = FeedPins(meta, store.needs, config.source, clock)
        parts.callback(pins.stop)
        pins.start()
        log_service = self._open_log_service(upstream, store, pins)
        self._log_service = log_service
        factory = SparkFeedRunFactory(
            jobs,
            meta,
            config.effective_meta_url,
            upstream,
            config.source,
            log_service,
            store,
            address,
            _open_target,
            connections.resolve,
        )
        while warming.is_alive() and not self._abandoned.is_set():
            warming.join(_SPARK_LOOK_S)
        self._go_on()
        self._supervisor = supervisor = self._open_supervisor(directory, meta, factory, upstream)
        own_metrics = self._open_metrics(meta)
        doubted = self._settle_doubts(jobs, meta, upstream, store, log_service, flight, own_metrics)
        health = self._open_health(session, meta, log_service, directory, supervisor, own_metrics)
        self._creator = creator = self._open_creator(directory, meta, upstream, connections)
        scheduled = self._verify_on_schedule(meta, upstream, store, log_service, supervisor, doubted, own_metrics)
        moving = MovingVerifier(upstream, log_service.settled_ts, clock)
        verifier = FeedVerifier(meta, upstream, config.source, moving.verify, log_service.table_states, connections.resolve)
        callers = self._open_callers(directory)
        registries = [own_metrics, log_service.registry]
        app = build_api(meta, creator, verifier, supervisor, registries, clock, health, doubted, scheduled, callers)
        self._listen(app, callers, directory)
        supervisor.url = self.url
        supervisor.start()
        log.info("server started", extra={"owner": supervisor.owner, "url": self.url})

    def _open_creator(self, directory: DataDirectory, meta: MetaDatabase, upstream: Upstream, connections: Connections) -> FeedCreator:
        config = self._config

        def open_target(sink: SinkConfig, guard: Guard) -> SinkMaintainer:
            # Somebody waits for the answer.
            return _open_target(connections.resolve(sink), guard, config.api.target_timeout_s)

        policy = SinkPolicy(config.sink_allow, directory.path, connections.resolve)
        return FeedCreator(meta, upstream, config.source, open_target, policy)

    def _open_callers(self, directory: DataDirectory) -> Callers:
        tokens = ApiTokens(self._config.effective_meta_url, self._clock, self._config.meta)
        self._parts.callback(tokens.close)
        return Callers(read_token(ensure_token(directory.path)), tokens, self._clock)

    def _listen(self, app: FastAPI, callers: Callers, directory: DataDirectory) -> None:
        """Serve the API, guarded, and note where, so that the command line of this user finds it and its token."""
        config, parts = self._config, self._parts
        guarded = ApiGuard(app, config.api, callers, config.http_host, self._clock)
        certificate = config.api.tls_certificate
        self._listener = HttpListener(guarded, config.http_host, config.http_port, certificate, config.api.tls_key)
        parts.callback(self._listener.stop)
        self._listener.start()
        shown = str(certificate.absolute()) if certificate else None
        parts.callback(announce(KnownServer(self.url, str(ensure_token(directory.path)), shown)))

    def _open_supervisor(
        self, directory: DataDirectory, meta: MetaDatabase, factory: SparkFeedRunFactory, upstream: Upstream
    ) -> Supervisor:
        config = self._config
        owner = directory.owner(config.owner, f"{system_random().getrandbits(64):016x}")
        able, accepts = (lambda: self._jvm_exit_code() is None), SourceFeeds(config.source).accepts
        rng, together = system_random(), has_log(upstream)
        supervisor = Supervisor(owner, meta, factory, config.supervisor, self._clock, rng, able, accepts, together=together)
        self._parts.callback(supervisor.stop)
        supervisor.take_over_own_leases()
        return supervisor

    def _open_metrics(self, meta: MetaDatabase) -> CollectorRegistry:
        metrics = CollectorRegistry()
        metrics.register(FeedCollector(meta, self._clock))
        metrics.register(SinkMetricsCollector(meta.sink_reports))
        return metrics

    def _open_health(
        self,
        session: SparkSession,
        meta: MetaDatabase,
        log_service: LogService,
        directory: DataDirectory,
        supervisor: Supervisor,
        metrics: CollectorRegistry,
    ) -> ServerHealth:
        settings, clock = self._config.supervisor, self._clock
        spark = SparkLook(
            lambda: self._spark_lost, lambda: spark_load(session), settings.stall_s, clock, here_only=reached_here_only(self._config)
        )
        capture = CaptureLook(log_service.status, directory.path)
        accepts = SourceFeeds(self._config.source).accepts
        feeds = FeedWatch(supervisor.owner, meta, supervisor.status, spark.waits, accepts, settings, clock, _flush_interval_s)
        looks = {"meta": lambda: meta_look(meta), "upstream": capture.upstream, "store": capture.store, "spark": spark.look}

        def why_dead() -> str:
            if self._spark_lost is not None:
                return f"Spark's JVM ended with {self._spark_lost}"
            return "" if supervisor.alive else "the supervisor has ended"

        health = ServerHealth(looks, feeds, why_dead, clock)
        metrics.register(HealthCollector(health.components, health.problems))
        self._parts.callback(health.stop)
        health.start()
        return health

    def _open_log_service(self, upstream: Upstream, store: ColumnarEventStore, pins: FeedPins) -> LogService:
        config, clock, parts = self._config, self._clock, self._parts
        source = source_name(config.source)
        journal = LogJournal(config.effective_meta_url, source, clock=clock, meta=config.meta)
        parts.callback(journal.close)
        doubts = TableStates(config.effective_meta_url, source, clock, config.meta)
        parts.callback(doubts.close)
        registry, needed_from = CollectorRegistry(), pins.log_needed_from_ts
        service = LogService(
            upstream, store, config.log_service, clock, registry=registry, journal=journal, needed_from=needed_from, doubts=doubts
        )
        parts.callback(service.close)
        return service.start()

    def _settle_doubts(
        self,
        jobs: SparkJobs,
        meta: MetaDatabase,
        upstream: Upstream,
        store: ColumnarEventStore,
        log_service: LogService,
        flight: FlightPlace,
        metrics: CollectorRegistry,
    ) -> DoubtedTables | None:
        """Begin to settle doubted tables; None where the upstream's tables are never in doubt."""
        config = self._config
        if not has_log(upstream):
            return None
        settings = BootstrapSettings(config.reread.tasks, config.reread.rows_per_second)

        def job() -> Reread:
            return Reread(JobTasks(jobs), store, upstream, config.source, log_service, flight, settings, self._clock)

        metrics.register(TableStateCollector(log_service.table_states))
        rules = FeedDoubtRules(meta, config.source)
        doubted = DoubtedTables(log_service, job, rules, config.reread, self._clock, system_random(), DoubtMetrics(metrics))
        self._parts.callback(doubted.stop)
        doubted.start()
        return doubted

    def _verify_on_schedule(
        self,
        meta: MetaDatabase,
        upstream: Upstream,
        store: ColumnarEventStore,
        log_service: LogService,
        supervisor: Supervisor,
        doubted: DoubtedTables | None,
        metrics: CollectorRegistry,
    ) -> Callable[[str], dict[str, Any] | None]:
        """Begin to verify the feeds that wish it; return what shows the result. Nothing where tables are never in doubt."""
        if doubted is None:
            return lambda _: None

        def wishes() -> list[VerifyWish]:
            # Feeds that another server runs are captured there.
            return [w for w in feed_wishes(meta, self._config.source) if supervisor.status(w.feed) is not None]

        def repair(table_id: int, schema: str, table: str) -> None:
            doubted.resnapshot(table_id, schema, table, FOUND)

        check = RangeCheck(upstream, store, log_service.settled_ts, self._clock, CheckSettings())
        scheduled = ScheduledVerification(check, wishes, doubted.states, repair, self._clock, system_random(), VerifyMetrics(metrics))
        self._parts.callback(scheduled.stop)
        scheduled.start()
        return scheduled.view


def _flush_interval_s(feed: FeedRecord) -> float:
    return FeedDocument.of(feed).feed_config().settings.flush_interval_s


def _open_target(sink: SinkConfig, guard: Guard, answer_s_max: float | None = None) -> SinkMaintainer:
    return open_maintainer(sink.uri, sink.options, guard, answer_s_max)
