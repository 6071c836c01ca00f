"""A server without Spark and without an API: real meta database, sources, event stores, supervisor and runs; tasks run in this process.

Several of them in one process share a meta database as servers on several machines do. ``crash`` ends one as the loss of its power would:
nothing is released, shared or told. Runs in tests.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.config.server_tree import ServerConfig, SourceConfig, SupervisorSettings
from penstock.config.tree import SinkConfig
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.model.clock import SystemClock, system_random
from penstock.server.data_directory import DataDirectory
from penstock.server.feeds.creation import FeedCreator
from penstock.server.feeds.supervisor import Supervisor
from penstock.server.source_address import SourcePlace
from penstock.server.sources.captured_source import CapturedSource, Surroundings
from penstock.server.sources.sources import SourcedRuns, Sources, captured_elsewhere, needed_sources, places_of
from penstock.server.verify.verification import Verdict
from penstock.sink.catalog import open_maintainer
from penstock.sink.contract import SinkMaintainer
from penstock.store.settings import StoreSettings
from penstock.target.kind import NO_RUN, SinkRun
from penstock.target.storage import Guard
from testing.twins.local_jobs import LocalJobs

SETTINGS = SupervisorSettings(lease_s=3.0, scan_interval_s=0.2, backoff_s=0.1, backoff_max_s=0.5)


class SparklessServer:
    """One server, from the call to ``stop`` or ``crash``."""

    def __init__(self, folder: Path, name: str, sources: Mapping[str, str], meta_url: str = "", objects: str = "") -> None:
        """Start. ``sources`` are those with a name; the meta database is in the folder unless given; ``objects`` is shared storage."""
        clock = SystemClock()
        config = ServerConfig(
            data_dir=folder,
            meta_url=meta_url or sqlite_url(folder / "meta.db"),
            owner=name,
            store=StoreSettings(objects=objects, objects_interval_s=1.0),
            supervisor=SETTINGS,
            sources={key: SourceConfig(uri) for key, uri in sources.items()},
        )
        self._parts = contextlib.ExitStack()
        self._opened: list[CapturedSource] = []
        self._directory = directory = DataDirectory(folder)
        self._parts.callback(directory.close)
        self.meta = MetaDatabase(config.effective_meta_url, clock, config.meta)
        self._parts.callback(self.meta.close)
        owner = directory.owner(name, f"{system_random().getrandbits(64):016x}")
        around = Surroundings(
            config, self.meta, LocalJobs(), clock, _open_target, lambda sink: sink, lambda _: True, threading.Lock(), owner
        )

        def open_source(place: SourcePlace) -> CapturedSource:
            self._opened.append(CapturedSource(place, directory.store_of(place.name), around))
            return self._opened[-1]

        places = places_of(config)
        self.sources = Sources(places, open_source, clock, random.Random(0))
        self._parts.callback(self.sources.close)
        together = {place.uri for place in places}
        self.supervisor = Supervisor(
            owner,
            self.meta,
            SourcedRuns(self.sources),
            SETTINGS,
            clock,
            random.Random(0),
            source_of=self.sources.uri_of,
            together=together.__contains__,
        )
        self.supervisor.url = f"https://{name}"
        self._parts.callback(self.supervisor.stop)
        self.creator = FeedCreator(self.meta, self.sources, _open_target)
        keeps, meta = self.supervisor.keeps, self.meta
        self.sources.follow(
            lambda: needed_sources(self.sources, meta.list_feeds(), owner, keeps),
            lambda uri: captured_elsewhere(self.sources, meta.list_feeds(), self.supervisor.servers, owner, uri),
        )
        self.supervisor.take_over_own_leases()
        self.sources.start()
        self.supervisor.start()

    def __enter__(self) -> SparklessServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def create_feed(self, tree: Mapping[str, Any]) -> None:
        """Create a feed."""
        self.creator.create(tree)
        self.supervisor.wake()

    def runs(self, feed: str) -> bool:
        """Return whether the feed is here."""
        return self.supervisor.keeps(feed)

    def reads(self, feed: str) -> bool:
        """Return whether the feed is here, and its log is read."""
        place = self.sources.place_of(self.meta.get_feed(feed))
        source = self.sources.opened(place.uri) if place is not None else None
        return self.runs(feed) and source is not None and not source.stands_by

    def settled_ts(self, feed: str) -> int:
        """Return a ts at or above every commit that was acknowledged before the call."""
        with self.sources.holding(self.meta.get_feed(feed)):
            return self._opened[-1].log_service.settled_ts()

    def verify(self, feed: str) -> Verdict:
        """Compare the target of a feed that runs here with its source."""
        with self.sources.holding(self.meta.get_feed(feed)) as source:
            return source.verifier.verify(feed)

    def stop(self) -> None:
        """End in order. May be called twice, and after a crash."""
        self._parts.close()

    def crash(self) -> None:
        """End without a word: no lease is released, nothing is shared that was not, and nobody is told."""
        self.supervisor._stop.set()
        self.supervisor.wake()
        self.supervisor._thread.join()
        for keeper in self.supervisor._owned():
            keeper.fence()
        for keeper in self.supervisor._owned():
            keeper.join(60)
        for source in self._opened:
            sharing = source.store._sharing
            if sharing is not None:
                sharing._stop.set()
                source.store._sharing = None
        self.supervisor._keepers.clear()
        self.supervisor._presence.changed()
        self._parts.close()


def _open_target(sink: SinkConfig, guard: Guard, run: SinkRun = NO_RUN) -> SinkMaintainer:
    return open_maintainer(sink.uri, sink.options, guard, run=run)
