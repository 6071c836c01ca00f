"""The composition root of a server process: every component is made here, once, and ended here in the reverse order.

One process holds the meta database's connections, the captured sources, the Spark session, the supervisor and the HTTP API. Runs in the
server.
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
from penstock.feed.filters.views import Viewer
from penstock.feed.spark.jobs import SparkJobs
from penstock.feed.spark.load import spark_load
from penstock.feed.spark.quiet_accumulators import quiet_accumulators
from penstock.feed.spark.session import SparkSettings, close_session, jvm_exit_code, open_session
from penstock.feed.spark.warming import warm
from penstock.meta.api_tokens import ApiTokens
from penstock.meta.database import MetaDatabase
from penstock.meta.records import Actor, FeedRecord
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.errors import InvariantError, PenstockError
from penstock.server.data_directory import DataDirectory
from penstock.server.feeds.creation import FeedCreator, FeedDocument
from penstock.server.feeds.supervisor import Supervisor
from penstock.server.flight_opening import reached_here_only
from penstock.server.health.feed_watch import FeedWatch
from penstock.server.health.looks import SparkLook, meta_look
from penstock.server.health.report import ServerHealth
from penstock.server.http.api import build_api
from penstock.server.http.callers import Callers
from penstock.server.http.guard import ApiGuard
from penstock.server.http.listener import HttpListener
from penstock.server.metrics import FeedCollector, HealthCollector, SourceCollector
from penstock.server.rpc.listener import listen as listen_for_grpc
from penstock.server.source_address import SourcePlace, check_reachable
from penstock.server.sources.captured_source import CapturedSource, Surroundings
from penstock.server.sources.feed_answers import FeedAnswers
from penstock.server.sources.sources import SourcedRuns, Sources, captured_elsewhere, needed_sources, places_of
from penstock.sink.catalog import open_maintainer
from penstock.sink.contract import SinkMaintainer
from penstock.sink.metrics import SinkMetricsCollector
from penstock.target.kind import NO_RUN, SinkRun
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
        self._source: CapturedSource | None = None
        self._spark_lost: int | None = None
        self._jvm_exit_code: Callable[[], int | None] = lambda: None
        self._abandoned = threading.Event()
        self.step = ""
        """What a start that is under way does."""
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
        return self._source.address.location if self._source else ""

    def settled_ts(self) -> int:
        """Return a ts at or above every commit that the source acknowledged before the call."""
        if self._source is None:
            raise InvariantError("the server is not started")
        return self._source.log_service.settled_ts()

    def create_feed(self, tree: Mapping[str, Any]) -> None:
        """Create a feed for whoever configured this server: any target will do."""
        if self._creator is None or self._supervisor is None:
            raise InvariantError("the server is not started")
        self._creator.create_all(tree, Actor("configuration"), configured=True)
        self._supervisor.wake()

    def check_spark(self) -> None:
        """Raise ``SPARK_LOST`` where Spark's JVM has ended: nothing works without it, and whoever runs this process starts it again."""
        if self._spark_lost is not None:
            raise PenstockError("SPARK_LOST", f"Spark's JVM ended with {self._spark_lost}")

    def start(self) -> None:
        """Start everything; on an error, end what was started and raise it."""
        try:
            self._start()
        except BaseException as error:
            self._parts.close()
            lost = self._jvm_exit_code()
            if isinstance(error, Exception) and lost is not None:
                raise PenstockError("SPARK_LOST", f"Spark's JVM ended with {lost} while the server started") from error
            raise

    def abandon(self) -> None:
        """Let a start that is under way in another thread end as soon as it can, with ``CANCELLED``."""
        self._abandoned.set()

    def stop(self) -> None:
        """End everything, the newest part first. Feeds are released, so that another server takes them at once."""
        self._parts.close()

    def _go_on(self, step: str = "") -> None:
        self.step = step or self.step
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
        connections, places = Connections.read(config.connections, os.environ), places_of(config)
        directory = DataDirectory(config.data_dir, tentative=True)
        parts.callback(directory.close)
        meta = MetaDatabase(config.effective_meta_url, clock, config.meta)
        parts.callback(meta.close)
        if config.source:
            check_reachable(config.source)
        self._go_on("starting Spark")
        session = self._open_spark()
        jobs = SparkJobs(session, config.spark.tables)
        self._go_on("opening the event store and the source's log")
        # Mostly other processes' work, so the rest starts meanwhile.
        warming = threading.Thread(target=warm, args=(jobs,), name="warming", daemon=True)
        if config.spark.warm_up:
            warming.start()
        owner = directory.owner(config.owner, f"{system_random().getrandbits(64):016x}")
        around = Surroundings(
            config, meta, jobs, clock, _open_target, connections.resolve, self._runs_here, threading.Lock(), owner, self._go_on
        )
        sources = Sources(places, lambda place: self._open_source(place, directory, around), clock, system_random())
        parts.callback(sources.close)
        if config.source:
            # It must be there at the start; sources with a name begin with their feeds.
            sources.begin(config.source)
        self._go_on("warming Spark up")
        while warming.is_alive() and not self._abandoned.is_set():
            warming.join(_SPARK_LOOK_S)
        self._go_on("opening the API")
        self._supervisor = supervisor = self._open_supervisor(owner, meta, sources)
        own_metrics = self._open_metrics(meta, sources)
        health = self._open_health(session, meta, sources, supervisor, own_metrics)
        self._creator = creator = self._open_creator(directory, meta, sources, connections, jobs.queries)
        answers = FeedAnswers(sources, meta, config, clock)
        parts.callback(answers.close)
        callers = self._open_callers(directory)
        shown = (answers.doubted, answers.verification, callers, config.store.gc_ttl_seconds, lambda: jobs.parallelism)
        app = build_api(meta, creator, answers, supervisor, [own_metrics], clock, health, *shown)
        self._listen(app, callers, directory)
        listen_for_grpc(config, creator, meta, supervisor, callers, clock, parts)
        keeps = supervisor.keeps
        sources.follow(
            lambda: needed_sources(sources, meta.list_feeds(), owner, keeps),
            lambda uri: captured_elsewhere(sources, meta.list_feeds(), supervisor.servers, owner, uri),
        )
        sources.start()
        supervisor.url = self.url
        supervisor.start()
        directory.keep()
        log.info("server started", extra={"owner": supervisor.owner, "url": self.url})

    def _open_source(self, place: SourcePlace, directory: DataDirectory, around: Surroundings) -> CapturedSource:
        source = CapturedSource(place, directory.store_of(place.name), around)
        if not place.name:
            self._source = source
        return source

    def _runs_here(self, feed: str) -> bool:
        return self._supervisor is not None and self._supervisor.status(feed) is not None

    def _open_creator(
        self, directory: DataDirectory, meta: MetaDatabase, sources: Sources, connections: Connections, viewer: Viewer
    ) -> FeedCreator:
        config = self._config

        def open_target(sink: SinkConfig, guard: Guard) -> SinkMaintainer:
            # Somebody waits for the answer.
            return _open_target(connections.resolve(sink), guard, NO_RUN, config.api.target_timeout_s)

        policy = SinkPolicy(config.sink_allow, directory.path, connections.resolve)
        return FeedCreator(meta, sources, open_target, policy, viewer)

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

    def _open_supervisor(self, owner: str, meta: MetaDatabase, sources: Sources) -> Supervisor:
        config = self._config
        # Shared objects have one owner, as a log has one reader.
        together = {place.uri for place in sources.places if place.has_one_log or config.store.objects}
        supervisor = Supervisor(
            owner,
            meta,
            SourcedRuns(sources),
            config.supervisor,
            self._clock,
            system_random(),
            lambda: self._jvm_exit_code() is None,
            sources.uri_of,
            together=together.__contains__,
        )
        self._parts.callback(supervisor.stop)
        supervisor.take_over_own_leases()
        return supervisor

    def _open_metrics(self, meta: MetaDatabase, sources: Sources) -> CollectorRegistry:
        metrics = CollectorRegistry()
        metrics.register(SourceCollector(sources.registries))
        metrics.register(FeedCollector(meta, self._clock, self._config.store.gc_ttl_seconds))
        metrics.register(SinkMetricsCollector(meta.sink_reports))
        return metrics

    def _open_health(
        self,
        session: SparkSession,
        meta: MetaDatabase,
        sources: Sources,
        supervisor: Supervisor,
        metrics: CollectorRegistry,
    ) -> ServerHealth:
        settings, clock = self._config.supervisor, self._clock
        spark = SparkLook(
            lambda: self._spark_lost, lambda: spark_load(session), settings.stall_s, clock, here_only=reached_here_only(self._config)
        )
        feeds = FeedWatch(supervisor.owner, meta, supervisor.status, spark.waits, sources.has, settings, clock, _flush_interval_s)
        looks = {"meta": lambda: meta_look(meta, lambda: supervisor.meta_failure), **sources.looks(), "spark": spark.look}

        def why_dead() -> str:
            if self._spark_lost is not None:
                return f"Spark's JVM ended with {self._spark_lost}"
            return "" if supervisor.alive else "the supervisor has ended"

        health = ServerHealth(looks, feeds, why_dead, clock)
        metrics.register(HealthCollector(health.components, health.problems, clock))
        self._parts.callback(health.stop)
        health.start()
        return health


def _flush_interval_s(feed: FeedRecord) -> float:
    return FeedDocument.of(feed).feed_config().settings.flush_interval_s


def _open_target(sink: SinkConfig, guard: Guard, run: SinkRun, answer_s_max: float | None = None) -> SinkMaintainer:
    return open_maintainer(sink.uri, sink.options, guard, answer_s_max, run)
