"""Makes Spark runs of feeds out of their documents: captures their spans, claims their target, starts their query.

Invariant: every span of a feed is captured before its query starts, and a span stays captured as long as any feed needs it. Runs in the
server, beside the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from penstock.config.tree import SinkConfig
from penstock.feed.assignment import Dispatcher, FeedContext
from penstock.feed.run import SparkFeedRun
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN
from penstock.model.timestamp import TS_ZERO
from penstock.puller.log_service import CaptureState, LogService
from penstock.server.capture import DispatcherCapture, needed_spans
from penstock.server.creation import FeedDocument, claimant
from penstock.server.ports import RunStatus
from penstock.sink.contract import SinkMaintainer
from penstock.store.contract import EventStore

log = logging.getLogger(__name__)


class LogServiceAddress(msgspec.Struct, frozen=True):
    """Where executors read changes. Holds a secret."""

    location: str
    token: str

    def __repr__(self) -> str:
        return f"LogServiceAddress({self.location!r})"


class CapturedFeedRun:
    """A Spark run whose spans this server's log service captures. Implements ``FeedRun``."""

    def __init__(
        self, run: SparkFeedRun, context: FeedContext, start_ts: int, meta: MetaDatabase, log_service: LogService, store: EventStore
    ) -> None:
        self._run = run
        self._start_ts = start_ts
        self._log_service = log_service
        self._store = store
        self._capture = DispatcherCapture(context, meta, log_service, self._capture_span)

    def start(self) -> None:
        """Capture the spans, and from then on those of tables that come, then start the query."""
        self._capture.start()
        self._run.start()

    def stop(self) -> None:
        """Stop the query. The spans stay captured, for the next run."""
        self._run.stop()
        self._capture.stop()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the query has ended by itself; return whether it has."""
        return self._run.wait(timeout_s)

    def error(self) -> PenstockError | None:
        """Return why the query ended by itself, or None."""
        return self._run.error()

    def status(self) -> RunStatus:
        """Return whether the query runs, up to where its spans are captured, and which are not."""
        span_ids = [d.span.span_id for d in self._capture.dispatchers()]
        return RunStatus(self._run.active, self._resolved_ts(span_ids), self._capture_problems())

    def _capture_span(self, dispatcher: Dispatcher) -> None:
        # A table that came later is captured whole: its state may be wanted, and an upstream with ranges gives it from the beginning.
        self._log_service.ensure_span(dispatcher.span, self._start_ts if dispatcher.begin_ts == TS_ZERO else TS_ZERO)

    def _capture_problems(self) -> tuple[str, ...]:
        names = {d.span.span_id: f"{d.schema}.{d.table}" for d in self._capture.dispatchers()} | {DDL_SPAN.span_id: "DDL"}
        return self._capture.problems() + tuple(
            f"{names[span.span_id]}: {span.last_error} ({span.failures} failures)"
            for span in self._log_service.status()
            if span.span_id in names and span.state is CaptureState.RETRYING
        )

    def _resolved_ts(self, span_ids: Sequence[int]) -> int:
        try:
            return min((self._store.resolved_ts(span_id) for span_id in span_ids), default=0)
        except PenstockError:
            return 0


class SparkFeedRunFactory:
    """Makes runs in one Spark session. Implements ``FeedRunFactory``."""

    def __init__(
        self,
        session: SparkSession,
        meta: MetaDatabase,
        meta_url: str,
        log_service: LogService,
        store: EventStore,
        address: LogServiceAddress,
        open_target: Callable[[SinkConfig], SinkMaintainer],
        work_dir: Path,
    ) -> None:
        self._session = session
        self._meta = meta
        self._meta_url = meta_url
        self._log_service = log_service
        self._store = store
        self._address = address
        self._open_target = open_target
        self._work_dir = work_dir

    def create(self, feed: FeedRecord, epoch: int) -> CapturedFeedRun:
        """Return a run of a feed under an epoch, its target claimed."""
        document = FeedDocument.of(feed)
        config = document.feed_config()
        # The creation claimed it as well; a server that died between the two left that to its successor.
        self._open_target(config.target).claim(claimant(feed.name, feed.uuid))
        context = FeedContext(
            feed=feed.name,
            epoch=epoch,
            meta_url=self._meta_url,
            flight_location=self._address.location,
            flight_token=self._address.token,
            sink_uri=config.target.uri,
            sink_options=dict(config.target.options),
            dispatchers=document.dispatchers,
            settings=config.settings,
            snapshot_ts=document.snapshot_ts,
            partitions=config.settings.partitions or self._session.sparkContext.defaultParallelism,
            tables=tuple(config.tables),
        )
        run = SparkFeedRun(self._session, context, self._work_dir)
        return CapturedFeedRun(run, context, config.settings.start_ts, self._meta, self._log_service, self._store)

    def forget(self, feed: FeedRecord) -> None:
        """Stop capturing the spans that no other feed needs."""
        needed = needed_spans(self._meta, feed.name)
        # Of tables that came later nothing is on record any more, so all that is captured is looked at.
        for span in self._log_service.status():
            if span.span_id not in needed and span.span_id != DDL_SPAN.span_id:
                self._log_service.remove_span(span.span_id)
