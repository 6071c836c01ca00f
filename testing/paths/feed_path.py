"""What the whole paths share: a feed in one process, from an upstream that is open to files, without Spark.

Meta database, log service, event store, Flight, planner and storage sink are the real ones. Closing the services and opening them again
is a process that ends and comes back. ``whole_path.py`` puts the data server before it, ``one_log_path.py`` a database. Runs in tests.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.feed.settings import FeedSettings
from penstock.feed.window.assignment import Dispatcher, FeedContext, assign_dispatchers
from penstock.feed.window.following import live_dispatchers, to_record
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.log_journal import LogJournal
from penstock.meta.records import FeedRecord
from penstock.meta.table_states import TableStates
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.table_pattern import TablePatterns
from penstock.puller.log_service import LogService, LogServiceSettings
from penstock.puller.span_pipeline import SpanPipelineSettings
from penstock.readback.reader import StorageReader
from penstock.server.verify.verification import open_reader
from penstock.source.contract import Upstream
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.server import FlightService
from penstock.store.objects.objects import ObjectSpace
from penstock.store.settings import StoreSettings
from testing.paths.local_feed import LocalFeed

WAIT_S = 60.0


class FeedPath:
    """One feed ``f``. A path sets it up with its first upstream, and opens the services as often as its process is to start."""

    def __init__(
        self, root: Path, upstream: Upstream, tables: Sequence[str], settings: FeedSettings, target: Path, target_uri: str
    ) -> None:
        self.root = root
        self.target = target
        self.target_uri = target_uri or target.as_uri()
        self.snapshot_ts = 0
        self.sink_options: dict[str, str] = {}
        self._tables = tuple(tables)
        self._settings = settings
        self._clock = SystemClock()
        self._parts = contextlib.ExitStack()
        self._services = contextlib.ExitStack()
        self.meta_url = sqlite_url(root / "meta.db")
        self.meta = MetaDatabase(self.meta_url)
        self._parts.callback(self.meta.close)
        self.target.mkdir()
        patterns = TablePatterns(self._tables)
        chosen = [t for t in upstream.list_tables() if patterns.match(t.schema, t.table)]
        self.dispatchers = assign_dispatchers(chosen, upstream, settings.spans_per_table)
        self.meta.create_feed(FeedRecord("f", "u", "{}"), [], [to_record(d) for d in self.dispatchers])
        self.epoch = self.meta.claim("f", "test", 3_600_000) or 0
        self.context: FeedContext
        self.disk = "store"
        """Where the event store's log lies, and its objects too unless they are shared; another name is another machine."""
        self.shared: Path | None = None
        """Where objects lie that all machines reach."""

    def open_services(self, upstream: Upstream, before_window: Callable[[], None]) -> None:
        """Open everything, as a process that starts; nothing is captured yet but DDLs."""
        settings_of_store = StoreSettings(flush_bytes=1 << 30, objects_interval_s=86_400)
        objects = ObjectSpace(self.shared.as_uri()) if self.shared is not None else None
        self.store = ColumnarEventStore(self.root / self.disk, settings_of_store, objects=objects, shared=objects is not None)
        self._services.callback(self.store.close)
        self.flight = flight = FlightService(self.store)
        self._services.callback(flight.close)
        journal = LogJournal(self.meta_url, "path")
        self._services.callback(journal.close)
        doubts = TableStates(self.meta_url, "path")
        self._services.callback(doubts.close)
        settings = LogServiceSettings(pipeline=SpanPipelineSettings(workers=2))
        needed = self._log_needed_from_ts
        self.log = LogService(upstream, self.store, settings, journal=journal, needed_from=needed, doubts=doubts).start()
        self._services.callback(self.log.close)
        self.context = FeedContext(
            feed="f",
            epoch=self.epoch,
            meta_url=self.meta_url,
            flight_location=flight.location,
            flight_token=flight.token,
            sink_uri=self.target_uri,
            sink_options=self.sink_options,
            dispatchers=self.dispatchers,
            settings=self._settings,
            snapshot_ts=self.snapshot_ts,
            partitions=2,
            tables=self._tables,
            source="path",
        )
        self.feed = LocalFeed(self.context, before_window=before_window)

    def _log_needed_from_ts(self) -> int:
        """Return from where on the feed may read the log again: a table that joins later begins behind its checkpoint."""
        return self.meta.get_feed("f").checkpoint_ts or 0

    def lose_disk(self) -> None:
        """Let the process be killed, and its machine be lost: nothing more is shared, and the next one has another disk."""
        if self.store._sharing is not None:
            self.store._sharing.lost = PenstockError("FENCED", "the machine is gone")
        self.close_services()
        shutil.rmtree(self.root / self.disk)
        self.disk += "-next"

    def close_services(self) -> None:
        """Close what a process has open."""
        self._services.close()

    def close(self) -> None:
        """Stop everything."""
        self._services.close()
        self._parts.close()

    def live(self) -> tuple[Dispatcher, ...]:
        """Return the feed's dispatchers now."""
        return live_dispatchers(self.context, self.meta)

    def reader(self) -> StorageReader:
        """Open the target for reading."""
        return open_reader(self.target_uri, self.sink_options)

    def wait_until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        never, deadline_s = threading.Event(), self._clock.monotonic_s() + WAIT_S
        while not condition():
            if self._clock.monotonic_s() > deadline_s:
                raise TimeoutError(f"{what}: {self.log.status()}")
            self._clock.wait(never, 0.01)
