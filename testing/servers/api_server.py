"""A server without Spark and without an upstream: real meta database, supervisor, feed creation, API and listener, with scripted runs.

Runs in tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from penstock.config.api_settings import ApiSettings
from penstock.config.connections import Connections
from penstock.config.known_servers import KnownServer, announce, ensure_token, read_token
from penstock.config.server_tree import RereadSettings, SupervisorSettings
from penstock.config.sink_policy import SinkPolicy
from penstock.config.tree import SinkConfig
from penstock.meta.api_tokens import ApiTokens
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.model.clock import SystemClock
from penstock.server.doubts.doubt_rules import FeedDoubtRules
from penstock.server.doubts.doubted_tables import DoubtedTables
from penstock.server.feeds.creation import FeedCreator
from penstock.server.feeds.supervisor import Supervisor
from penstock.server.health.feed_watch import FeedWatch
from penstock.server.health.looks import meta_look
from penstock.server.health.report import ServerHealth
from penstock.server.http.api import build_api
from penstock.server.http.callers import Callers
from penstock.server.http.guard import ApiGuard
from penstock.server.http.listener import HttpListener
from penstock.server.metrics import DoubtMetrics, FeedCollector, HealthCollector, TableStateCollector
from penstock.server.source_address import SourcePlace
from penstock.server.verify.moving_verification import verify_standing
from penstock.server.verify.verification import FeedVerifier
from penstock.sink.catalog import kind_of, open_maintainer
from penstock.sink.contract import SinkMaintainer
from penstock.target.storage import Guard
from testing.paths.feed_run import ScriptedFeedRunFactory
from testing.twins.captured_sources import ScriptedSources
from testing.twins.change_stream import ScriptedUpstream, named_tables
from testing.twins.doubted_log import ScriptedDoubts

OpenTarget = Callable[[SinkConfig, Guard], SinkMaintainer]
SOURCE_URI = "dataserver://127.0.0.1:1"
UNHURRIED = ApiSettings(requests_per_second=1_000_000)
"""A test that polls must not meet the limit of a server whose callers are people."""


class ApiServer:
    """Listens on a free loopback port between ``__enter__`` and ``__exit__``."""

    def __init__(
        self,
        directory: Path,
        *tables: str,
        api: ApiSettings = UNHURRIED,
        sink_allow: Sequence[str] = (),
        connections: Mapping[str, Any] | None = None,
        open_target: OpenTarget | None = None,
    ) -> None:
        clock = SystemClock()
        known = Connections.read(connections or {}, {})
        self.directory = directory
        self.meta = MetaDatabase(sqlite_url(directory / "meta.db"), clock)
        self.upstream = ScriptedUpstream(tables=named_tables(*tables))
        self.runs = ScriptedFeedRunFactory()
        settings = SupervisorSettings(scan_interval_s=0.05)
        self.supervisor = Supervisor("test", self.meta, self.runs, settings, clock, random.Random(0))
        registry = CollectorRegistry()
        registry.register(FeedCollector(self.meta, clock))
        self.opened: list[str] = []

        def open_known(sink: SinkConfig, guard: Guard) -> SinkMaintainer:
            target = known.resolve(sink)
            self.opened.append(target.uri)
            return (open_target or _open_target)(target, guard)

        policy = SinkPolicy(sink_allow, directory / "data", known.resolve)
        sources = ScriptedSources([SourcePlace("", SOURCE_URI)], clock, self.upstream).sources
        self.creator = creator = FeedCreator(self.meta, sources, open_known, policy)
        self.doubts = ScriptedDoubts(directory, clock)
        verifier = FeedVerifier(
            self.meta,
            self.upstream,
            SOURCE_URI,
            lambda reader, ids, tell: verify_standing(reader, self.upstream, ids, tell),
            self.doubts.table_states,
        )
        rules = FeedDoubtRules(self.meta, SOURCE_URI)
        # Its thread is not started: a test calls ``scan``.
        self.doubted = DoubtedTables(
            self.doubts, self.doubts.job, rules, RereadSettings(delay_s=0.0), clock, random.Random(0), DoubtMetrics(registry)
        )
        registry.register(TableStateCollector(self.doubted.states, clock))
        feeds = FeedWatch("test", self.meta, self.supervisor.status, lambda: "", lambda _: True, settings, clock)
        looks = {"meta": lambda: meta_look(self.meta, lambda: self.supervisor.meta_failure)}
        self.health = ServerHealth(looks, feeds, lambda: "" if self.supervisor.alive else "it ended", clock)
        registry.register(HealthCollector(self.health.components, self.health.problems, clock))
        self._token_file = ensure_token(directory)
        self._tokens = ApiTokens(sqlite_url(directory / "meta.db"), clock)
        self.callers = callers = Callers(self.token, self._tokens, clock)
        self.app = app = build_api(
            self.meta, creator, verifier, self.supervisor, [registry], clock, self.health, lambda _: self.doubted, callers=callers
        )
        self._certificate = api.tls_certificate
        self._listener = HttpListener(ApiGuard(app, api, callers, "127.0.0.1", clock), "127.0.0.1", 0, api.tls_certificate, api.tls_key)
        self._withdraw: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        """Return the address of the API."""
        return self._listener.url

    @property
    def token(self) -> str:
        """Return the server's own token, which the command line finds by itself."""
        return read_token(self._token_file)

    @property
    def headers(self) -> dict[str, str]:
        """Return what a call of a test's own carries."""
        return {"Authorization": f"Bearer {self.token}"}

    def __enter__(self) -> ApiServer:
        self.supervisor.start()
        self.health.start()
        self._listener.start()
        self._withdraw = announce(KnownServer(self.url, str(self._token_file), str(self._certificate) if self._certificate else None))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._withdraw()
        self._listener.stop()
        self.supervisor.stop()
        self.health.stop()
        self.doubts.close()
        self._tokens.close()
        self.meta.close()


def _open_target(sink: SinkConfig, guard: Guard) -> SinkMaintainer:
    parts = urlsplit(sink.uri)
    # A bucket is kept in memory, so that tests can use URIs that hold credentials.
    bucket = parts.scheme != "file" and kind_of(sink.uri).name == "storage"
    uri = f"memory://{parts.netloc}{parts.path}" if bucket else sink.uri
    return open_maintainer(uri, sink.options, guard)
