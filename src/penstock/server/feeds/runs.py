"""Makes runs of feeds out of their documents: captures their spans, claims their target, starts their windows.

Invariants: a span stays captured as long as any feed needs it; windows whose spans are not captured yet wait for them. Runs in the
server, which is Spark's driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from penstock.config.tree import FeedConfig, SinkConfig
from penstock.feed.bootstrap.bootstrap import Bootstrap, BootstrapSettings, JobTasks
from penstock.feed.receivers.receivers import Receivers
from penstock.feed.settings import FeedSettings
from penstock.feed.spark.jobs import Jobs
from penstock.feed.window.assignment import Dispatcher, FeedContext
from penstock.feed.window.coverage import publish_committed
from penstock.feed.window.fence import OwnerFence
from penstock.feed.window.following import live_dispatchers
from penstock.feed.window.run import GRACE_S, FeedWindows
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.span import DDL_SPAN
from penstock.model.timestamp import TS_ZERO
from penstock.puller.log_service import CaptureState, LogService
from penstock.server.feeds.alteration import Adoption
from penstock.server.feeds.capture import DispatcherCapture, needed_spans
from penstock.server.feeds.creation import FeedDocument, reads_state_by_job
from penstock.server.feeds.feed_capture import FeedCapture, doubt_counted, purge_error
from penstock.server.feeds.first_tables import begin_with_tables_of_now
from penstock.server.feeds.keeper import foreign_error
from penstock.server.feeds.ports import KnownSpans, RunStatus, SnapshotStatus
from penstock.server.feeds.span_reads import SpanReads
from penstock.server.source_address import same_source, source_name
from penstock.sink.catalog import open_maintainer
from penstock.sink.contract import SinkMaintainer
from penstock.source.contract import Capability, Upstream
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.address import FlightAddress
from penstock.target.kind import SinkRun
from penstock.target.storage import Guard, unfenced


class CapturedFeedRun:
    """Windows whose spans this server's log service captures. Implements ``FeedRun``.

    Beginning takes its time, because the state of its tables may have to be read first: it goes on in a thread of its own.
    """

    def __init__(
        self,
        run: FeedWindows,
        context: FeedContext,
        meta: MetaDatabase,
        capture: FeedCapture,
        log_service: LogService,
        known: KnownSpans,
        upstream: Upstream,
    ) -> None:
        self._run = run
        self._context = context
        self._meta = meta
        self._capture = capture
        self._watcher = DispatcherCapture(context, meta, log_service, capture.capture, changes=run.dispatcher_changes)
        self._log_service = log_service
        self._known = known
        self._upstream = upstream
        self._stop = threading.Event()
        self._error: PenstockError | None = None
        self._beginning = threading.Thread(target=self._begin, name=f"begin-{context.feed}", daemon=True)

    def start(self) -> None:
        """Begin: start the windows and capture the spans. That goes on after this returns."""
        self._beginning.start()

    def stop(self, *, at_once: bool = False) -> None:
        """Stop what is under way. The spans stay captured, for the next run."""
        self._stop.set()
        self._capture.cancel()
        if self._beginning.ident is not None:
            self._beginning.join()
        self._watcher.stop()
        self._run.stop(0.0 if at_once else GRACE_S)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the run has ended by itself; return whether it has."""
        if self._beginning.is_alive():
            self._beginning.join(timeout_s)
            return False
        if self._error is None and self._capture.purged() and self._context.settings.on_stale_read == "resnapshot":
            self._error = purge_error()
        return self._error is not None or self._run.wait(timeout_s)

    def error(self) -> PenstockError | None:
        """Return why the run ended by itself, or None."""
        error = self._error or self._run.error()
        settings = self._context.settings
        if error is not None and error.code == "STALE_READ" and settings.on_stale_read == "resnapshot" and settings.start_ts == TS_ZERO:
            # History went between plan and read; the next run plans for that.
            return PenstockError("SNAPSHOT_DUE", error.detail)
        return error

    def status(self) -> RunStatus:
        """Return whether the run goes on, up to where its spans are captured, which are not, and how far reading the state is."""
        dispatchers = self._watcher.dispatchers() or self._context.dispatchers
        progress = self._capture.progress()
        shown = None if progress is None else SnapshotStatus(progress.parts, progress.parts_done, progress.rows)
        beginning = self._beginning.is_alive()
        resolved_ts = self._resolved_ts([d.span.span_id for d in dispatchers])
        problems = (*self._watcher.problems(), *self._capture_problems(dispatchers))
        return RunStatus(beginning or self._run.active, resolved_ts, problems, shown, beginning and shown is None)

    def _begin(self) -> None:
        try:
            self._prepare()
        except PenstockError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - a run holds foreign code, which may raise anything; it must end this feed and no other.
            self._error = foreign_error(error)

    def _prepare(self) -> None:
        dispatchers = live_dispatchers(self._context, self._meta)
        self._capture.begin(
            dispatchers, lambda: begin_with_tables_of_now(self._context, self._meta, self._upstream, self._log_service.settled_ts)
        )
        if self._stop.is_set():
            return
        self._run.start()
        self._watcher.start()

    def _capture_problems(self, dispatchers: Sequence[Dispatcher]) -> tuple[str, ...]:
        names = {d.span.span_id: f"{d.schema}.{d.table}" for d in dispatchers} | {DDL_SPAN.span_id: "DDL"}
        return tuple(
            f"{names[span.span_id]}: {span.last_error} ({span.failures} failures)"
            for span in self._log_service.status()
            if span.span_id in names and span.state is CaptureState.RETRYING
        )

    def _resolved_ts(self, span_ids: Sequence[int]) -> int:
        try:
            return min((self._known.resolved_ts(span_id) for span_id in span_ids), default=0)
        except PenstockError:
            return 0


class SparkFeedRunFactory:
    """Makes runs in one Spark session. Implements ``FeedRunFactory``."""

    def __init__(
        self,
        jobs: Jobs,
        meta: MetaDatabase,
        meta_url: str,
        upstream: Upstream,
        source: str,
        log_service: LogService,
        store: ColumnarEventStore,
        address: FlightAddress,
        open_target: Callable[[SinkConfig, Guard, SinkRun], SinkMaintainer],
        resolve: Callable[[SinkConfig], SinkConfig] = lambda sink: sink,
        receivers: Receivers | None = None,
    ) -> None:
        """``resolve`` gives what a named connection stands for: tasks write to that. ``receivers`` capture the rows, if any."""
        self._jobs = jobs
        self._meta = meta
        self._meta_url = meta_url
        self._upstream = upstream
        self._source = source
        self._log_service = log_service
        self._store = store
        self._address = address
        self._open_target = open_target
        self._resolve = resolve
        self._receivers = receivers
        self._reads = SpanReads()

    def prepare(self, feed: FeedRecord, epoch: int) -> FeedRecord:
        """Let the configuration hold that a feed was altered to, and capture no more what no feed has any more."""
        prepared = Adoption(self._meta, self._upstream, self._maintainer, self._close_target, self._resolve).adopt(feed, epoch)
        if prepared is not feed:
            self._let_go()
        return prepared

    def _close_target(self, feed: FeedRecord, epoch: int) -> str:
        """Publish what a feed committed to a target that it leaves; return why that cannot be, which keeps it from nothing."""
        document = FeedDocument.of(feed)
        context = self._context(feed, document, document.feed_config(), epoch)
        try:
            publish_committed(context, self._meta, self._maintainer(feed, document.feed_config(), epoch))
        except PenstockError as error:
            if error.kind is ErrorKind.FENCED:
                raise
            return f", which could not be published ({error.code})"
        return ""

    def _maintainer(self, feed: FeedRecord, config: FeedConfig, epoch: int) -> SinkMaintainer:
        fence = OwnerFence(feed.name, epoch, self._meta.check_owner, fresh_s=0.0)
        return self._open_target(self._resolve(config.target), fence, SinkRun(feed.name, epoch))

    def create(self, feed: FeedRecord, epoch: int) -> CapturedFeedRun:
        """Return a run of a feed under an epoch, its target claimed."""
        document = FeedDocument.of(feed)
        config = document.feed_config()
        # The creation claimed it as well; a server that died between the two left that to its successor.
        maintainer, context = self._maintainer(feed, config, epoch), self._context(feed, document, config, epoch)
        if self._meta.checkpoint_ts(feed.name) > max(document.target_from_ts, config.settings.start_ts):
            # It has delivered there: where the mark is gone, so is what was delivered, and an empty target is not taken for it.
            open_maintainer(context.sink_uri, context.sink_options, unfenced, run=context.sink_run).published_ts()
        maintainer.claim(document.claimant(feed))
        if self._meta.get_feed(feed.name).error_code.startswith("SINK_"):
            # As long as the target takes nothing, no executor is to wait for it in the place of other feeds.
            maintainer.probe()
        run = FeedWindows(self._jobs, context)
        bootstrap = self._bootstrap(config.settings) if config.settings.start_ts == TS_ZERO else None
        capture = FeedCapture(
            config.settings.start_ts,
            self._log_service,
            self._store,
            bootstrap,
            # Receivers capture spans whole: the state is there without a job.
            by_job=reads_state_by_job(self._upstream, config.settings) and self._receivers is None,
            stream_gives_state=Capability.RANGES in self._upstream.capabilities,
            reads=self._reads,
            known=self._receivers,
        )
        known = self._receivers or self._store
        return CapturedFeedRun(run, context, self._meta, capture, self._log_service, known, self._upstream)

    def _context(self, feed: FeedRecord, document: FeedDocument, config: FeedConfig, epoch: int) -> FeedContext:
        target = self._resolve(config.target)
        taken = self._receivers.settings.cores if self._receivers is not None else 0
        return FeedContext(
            feed=feed.name,
            epoch=epoch,
            meta_url=self._meta_url,
            flight_location=self._address.location,
            flight_token=self._address.token,
            sink_uri=target.uri,
            sink_options=dict(target.options),
            dispatchers=document.dispatchers,
            settings=config.settings,
            snapshot_ts=document.snapshot_ts,
            partitions=config.settings.partitions or max(1, self._jobs.parallelism - taken),
            tables=tuple(config.tables),
            source=source_name(self._source),
            objects_options=self._store.objects.options,
            skip_until_ts=document.skip_until_ts,
            resnapshot_from_ts=document.resnapshot_from_ts,
            rewound_from_ts=document.rewound_from_ts,
            target_from_ts=document.target_from_ts,
            claimant=document.claimant(feed),
            altered=document.altered,
        )

    def _bootstrap(self, settings: FeedSettings) -> Bootstrap:
        chosen = BootstrapSettings(settings.bootstrap_tasks, settings.bootstrap_rows_per_second)
        tasks, doubt = JobTasks(self._jobs), doubt_counted(self._upstream, self._log_service)
        return Bootstrap(tasks, self._store, self._upstream, self._source, self._log_service.settled_ts, chosen, doubt=doubt)

    def forget(self, feed: FeedRecord) -> None:
        """Stop capturing the spans that no other feed needs; with the last feed, give back what was made at the upstream."""
        self._let_go(feed.name)
        if not any(same_source(FeedDocument.of(f).source, self._source) for f in self._meta.list_feeds() if not f.is_over):
            self._log_service.release_upstream()

    def _let_go(self, without: str = "") -> None:
        """Stop capturing the spans that no feed needs, one left out."""
        needed = needed_spans(self._meta, without, self._source)
        # Of tables that came later nothing is on record any more, so all that is captured is looked at.
        for span in self._log_service.status():
            if span.span_id not in needed and span.span_id != DDL_SPAN.span_id:
                self._log_service.remove_span(span.span_id)
        # Of the feeds that are left, another server may capture some.
        left = {span.span.table_id for span in self._log_service.status()} | set(needed.values())
        for state in self._log_service.table_states():
            # Nobody is left who could ask whether it was settled.
            if state.table_id and state.table_id not in left:
                self._log_service.forget_table(state.table_id)
