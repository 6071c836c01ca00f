"""The whole path from a database with one log to files, in one process and without Spark.

Log service, event store, Flight, bootstrap, planner and storage sink are the real ones; parts of a bootstrap run in threads. Closing the
services and opening them again is a process that ends and comes back. Runs in tests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from penstock.feed.bootstrap.bootstrap import Bootstrap, BootstrapSettings, TaskRunner
from penstock.feed.bootstrap.reread import Reread
from penstock.feed.bootstrap.reread_part import RereadPart
from penstock.feed.settings import FeedSettings
from penstock.model.span import DDL_SPAN
from penstock.server.feeds.feed_capture import FeedCapture, doubt_counted
from penstock.server.feeds.first_tables import begin_with_tables_of_now
from penstock.server.verify.moving_verification import MovingVerifier
from penstock.server.verify.verification import Verdict
from penstock.source.catalog import open_upstream
from penstock.source.single_log import has_log
from testing.paths.feed_path import WAIT_S, FeedPath
from testing.twins.local_tasks import LocalTasks

PAGE_ROWS = 200


class OneLogPath(FeedPath):
    """One feed on one database."""

    def __init__(
        self,
        root: Path,
        uri: str,
        tables: Sequence[str],
        settings: FeedSettings | None = None,
        page_rows: int = PAGE_ROWS,
        shared: Path | None = None,
        target_uri: str = "",
        sink_options: Mapping[str, str] | None = None,
    ) -> None:
        self._uri = uri
        self._page_rows = page_rows
        with contextlib.closing(open_upstream(uri)) as upstream:
            super().__init__(root, upstream, tables, settings or FeedSettings(bootstrap_tasks=2), root / "files", target_uri)
        self.shared = shared
        self.sink_options = dict(sink_options or {})
        self.open()

    def open(self, before_part: Callable[..., None] = lambda _: None) -> None:
        """Open all services, as a process that starts; nothing is captured yet but DDLs."""
        self.upstream = open_upstream(self._uri)
        self._services.callback(self.upstream.close)
        self.open_services(self.upstream, self._capture_all)
        self.tasks: TaskRunner = LocalTasks(before_part)
        self.capture = self._new_capture()

    def restart(self) -> None:
        """End as a process does, start again, and go on with the feed."""
        self.close_services()
        self.open()
        self.begin()

    def begin(self) -> None:
        """Bring the spans to a known state, as a run of the feed does before its first window."""
        self.capture = self._new_capture()
        now = self.log.settled_ts
        self.capture.begin(self.live(), lambda: begin_with_tables_of_now(self.context, self.meta, self.upstream, now))
        self._capture_all()

    def begin_behind_loss(self, begin: Callable[[], None] | None = None) -> None:
        """Begin as runs do one after the other until the log goes on behind what was lost: a span that is just tried again says nothing."""
        before_ts = self.store.resolved_ts(DDL_SPAN.span_id)
        while self.store.resolved_ts(DDL_SPAN.span_id) <= before_ts:
            self.wait_until("the loss is noticed", self.capture.purged)
            (begin or self.begin)()

    def drain(self) -> None:
        """Deliver everything that is committed now."""
        self.feed.drain(self.log.settled_ts(), WAIT_S)

    def reread(self, before_part: Callable[[RereadPart], None] = lambda _: None) -> Reread:
        """Return what reads one table again."""
        if not has_log(self.upstream):
            raise AssertionError("the tables of the source are never in doubt")
        chosen = BootstrapSettings(self._settings.bootstrap_tasks, page_rows=self._page_rows)
        return Reread(LocalTasks(before_compare=before_part), self.store, self.upstream, self._uri, self.log, self.flight, chosen)

    def verify(self) -> Verdict:
        """Compare the target with the database."""
        table_ids = sorted({d.id.table_id for d in self.live()})
        return MovingVerifier(self.upstream, self._settled_and_delivered, self._clock).verify(self.reader(), table_ids)

    def _new_capture(self) -> FeedCapture:
        chosen = BootstrapSettings(self._settings.bootstrap_tasks, self._settings.bootstrap_rows_per_second, self._page_rows)
        doubt = doubt_counted(self.upstream, self.log)
        job = Bootstrap(self.tasks, self.store, self.upstream, self._uri, self.log.settled_ts, chosen, doubt=doubt)
        return FeedCapture(0, self.log, self.store, job, by_job=True, stream_gives_state=False)

    def _capture_all(self) -> None:
        for dispatcher in self.live():
            self.capture.capture(dispatcher)

    def _settled_and_delivered(self) -> int:
        settled_ts = self.log.settled_ts()
        self.feed.drain(settled_ts, WAIT_S)
        return settled_ts
