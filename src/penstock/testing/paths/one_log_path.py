"""The whole path from a database with one log to files, in one process and without Spark.

Log service, event store, Flight, bootstrap, planner and storage sink are the real ones; parts of a bootstrap run in threads. Closing the
services and opening them again is a process that ends and comes back. Runs in tests.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.feed.bootstrap.bootstrap import Bootstrap, BootstrapSettings, TaskRunner
from penstock.feed.bootstrap.reread import Reread
from penstock.feed.bootstrap.reread_part import RereadPart
from penstock.feed.settings import FeedSettings
from penstock.feed.window.assignment import FeedContext, assign_dispatchers
from penstock.feed.window.following import live_dispatchers, to_record
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.log_journal import LogJournal
from penstock.meta.records import FeedRecord
from penstock.meta.table_states import TableStates
from penstock.model.clock import SystemClock
from penstock.model.table_pattern import TablePatterns
from penstock.puller.log_service import LogService, LogServiceSettings
from penstock.puller.span_pipeline import SpanPipelineSettings
from penstock.server.feed_capture import FeedCapture
from penstock.server.moving_verification import MovingVerifier
from penstock.server.verification import Verdict, open_reader
from penstock.source.catalog import open_upstream
from penstock.source.single_log import shares_one_log
from penstock.store.event_store import ColumnarEventStore, StoreSettings
from penstock.store.flight.server import FlightService
from penstock.testing.paths.local_feed import LocalFeed
from penstock.testing.twins.local_tasks import LocalTasks

WAIT_S = 40.0
PAGE_ROWS = 200


class OneLogPath:
    """One feed on one database."""

    def __init__(
        self, root: Path, uri: str, tables: Sequence[str], settings: FeedSettings | None = None, page_rows: int = PAGE_ROWS
    ) -> None:
        self.root = root
        self._uri = uri
        self._tables = tuple(tables)
        self._settings = settings or FeedSettings(bootstrap_tasks=2)
        self._page_rows = page_rows
        self._clock = SystemClock()
        self._parts = contextlib.ExitStack()
        self.meta_url = sqlite_url(root / "meta.db")
        self.meta = MetaDatabase(self.meta_url)
        self._parts.callback(self.meta.close)
        self.target = root / "files"
        self.target.mkdir()
        self._services = contextlib.ExitStack()
        upstream = open_upstream(uri)
        patterns = TablePatterns(self._tables)
        chosen = [t for t in upstream.list_tables() if patterns.match(t.schema, t.table)]
        self.dispatchers = assign_dispatchers(chosen, upstream, self._settings.spans_per_table)
        upstream.close()
        self.meta.create_feed(FeedRecord("f", "u", "{}"), [], [to_record(d) for d in self.dispatchers])
        self._epoch = self.meta.claim("f", "test", 3_600_000) or 0
        self.open()

    def open(self, before_part: Callable[..., None] = lambda _: None) -> None:
        """Open all services, as a process that starts; nothing is captured yet but DDLs."""
        self.upstream = open_upstream(self._uri)
        self._services.callback(self.upstream.close)
        self.store = ColumnarEventStore(self.root / "store", StoreSettings(flush_bytes=1 << 30))
        self._services.callback(self.store.close)
        self.flight = flight = FlightService(self.store)
        self._services.callback(flight.close)
        journal = LogJournal(self.meta_url, "one-log")
        self._services.callback(journal.close)
        doubts = TableStates(self.meta_url, "one-log")
        self._services.callback(doubts.close)
        settings = LogServiceSettings(pipeline=SpanPipelineSettings(workers=2))
        self.log = LogService(self.upstream, self.store, settings, journal=journal, doubts=doubts).start()
        self._services.callback(self.log.close)
        self.context = FeedContext(
            feed="f",
            epoch=self._epoch,
            meta_url=self.meta_url,
            flight_location=flight.location,
            flight_token=flight.token,
            sink_uri=self.target.as_uri(),
            sink_options={},
            dispatchers=self.dispatchers,
            settings=self._settings,
            snapshot_ts=0,
            partitions=2,
            tables=self._tables,
        )
        self.tasks: TaskRunner = LocalTasks(before_part)
        self.feed = LocalFeed(self.context, before_window=self._capture_all)
        self.capture = self._new_capture()

    def restart(self) -> None:
        """End as a process does, start again, and go on with the feed."""
        self.close_services()
        self.open()
        self.begin()

    def close_services(self) -> None:
        """Close all services, as a process that ends."""
        self._services.close()

    def close(self) -> None:
        """Stop everything."""
        self._services.close()
        self._parts.close()

    def begin(self) -> None:
        """Bring the spans to a known state, as a run of the feed does before its first window."""
        self.capture = self._new_capture()
        self.capture.begin(live_dispatchers(self.context, self.meta))
        self._capture_all()

    def drain(self) -> None:
        """Deliver everything that is committed now."""
        self.feed.drain(self.log.settled_ts(), WAIT_S)

    def reread(self, before_part: Callable[[RereadPart], None] = lambda _: None) -> Reread:
        """Return what reads one table again."""
        if not shares_one_log(self.upstream):
            raise AssertionError("the tables of the source are never in doubt")
        chosen = BootstrapSettings(self._settings.bootstrap_tasks, page_rows=self._page_rows)
        return Reread(LocalTasks(before_compare=before_part), self.store, self.upstream, self._uri, self.log, self.flight, chosen)

    def verify(self) -> Verdict:
        """Compare the target with the database."""
        reader = open_reader(self.target.as_uri(), {})
        table_ids = sorted({d.id.table_id for d in live_dispatchers(self.context, self.meta)})
        return MovingVerifier(self.upstream, self._settled_and_delivered, self._clock).verify(reader, table_ids)

    def wait_until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        never, deadline_s = threading.Event(), self._clock.monotonic_s() + WAIT_S
        while not condition():
            if self._clock.monotonic_s() > deadline_s:
                raise TimeoutError(f"{what}: {self.log.status()}")
            self._clock.wait(never, 0.02)

    def _new_capture(self) -> FeedCapture:
        chosen = BootstrapSettings(self._settings.bootstrap_tasks, self._settings.bootstrap_rows_per_second, self._page_rows)
        job = Bootstrap(self.tasks, self.store, self.upstream, self._uri, self.log.settled_ts, chosen)
        return FeedCapture(0, self.log, self.store, job, by_job=True, one_log=True)

    def _capture_all(self) -> None:
        for dispatcher in live_dispatchers(self.context, self.meta):
            self.capture.capture(dispatcher)

    def _settled_and_delivered(self) -> int:
        settled_ts = self.log.settled_ts()
        self.feed.drain(settled_ts, WAIT_S)
        return settled_ts
