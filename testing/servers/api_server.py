"""A server without Spark and without an upstream: real meta database, supervisor, feed creation, API and listener, with scripted runs.

Runs in tests.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from penstock.config.server_tree import RereadSettings, SupervisorSettings
from penstock.config.tree import SinkConfig
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
from penstock.server.http.listener import HttpListener
from penstock.server.metrics import DoubtMetrics, FeedCollector, HealthCollector, TableStateCollector
from penstock.server.verify.moving_verification import verify_standing
from penstock.server.verify.verification import FeedVerifier
from penstock.sink.catalog import open_maintainer
from penstock.sink.contract import SinkMaintainer
from penstock.target.storage import Guard
from testing.paths.feed_run import ScriptedFeedRunFactory
from testing.twins.change_stream import ScriptedUpstream, named_tables
from testing.twins.doubted_log import ScriptedDoubts

SOURCE_URI = "dataserver://127.0.0.1:1"


class ApiServer:
    """Listens on a free loopback port between ``__enter__`` and ``__exit__``."""

    def __init__(self, directory: Path, *tables: str) -> None:
        clock = SystemClock()
        self.meta = MetaDatabase(sqlite_url(directory / "meta.db"), clock)
        self.upstream = ScriptedUpstream(tables=named_tables(*tables))
        self.runs = ScriptedFeedRunFactory()
        settings = SupervisorSettings(scan_interval_s=0.05)
        self.supervisor = Supervisor("test", self.meta, self.runs, settings, clock, random.Random(0))
        registry = CollectorRegistry()
        registry.register(FeedCollector(self.meta, clock))
        creator = FeedCreator(self.meta, self.upstream, SOURCE_URI, _open_target)
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
        registry.register(TableStateCollector(self.doubted.states))
        feeds = FeedWatch("test", self.meta, self.supervisor.status, lambda: "", lambda _: True, settings, clock)
        self.health = ServerHealth(
            {"meta": lambda: meta_look(self.meta)}, feeds, lambda: "" if self.supervisor.alive else "it ended", clock
        )
        registry.register(HealthCollector(self.health.components, self.health.problems))
        self.app = build_api(self.meta, creator, verifier, self.supervisor, [registry], clock, self.health, self.doubted)
        self._listener = HttpListener(self.app, "127.0.0.1", 0)

    @property
    def url(self) -> str:
        """Return the address of the API."""
        return self._listener.url

    def __enter__(self) -> ApiServer:
        self.supervisor.start()
        self.health.start()
        self._listener.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.stop()
        self.supervisor.stop()
        self.health.stop()
        self.doubts.close()
        self.meta.close()


def _open_target(sink: SinkConfig, guard: Guard) -> SinkMaintainer:
    parts = urlsplit(sink.uri)
    # A bucket is kept in memory, so that tests can use URIs that hold credentials.
    uri = sink.uri if parts.scheme == "file" else f"memory://{parts.netloc}{parts.path}"
    return open_maintainer(uri, sink.options, guard)
