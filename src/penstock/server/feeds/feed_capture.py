"""Captures the spans of a feed, and brings them to a known state where the upstream's stream does not give one.

Invariants: a span whose state is to be read by Spark tasks is captured and has its state committed before the feed's query starts; a span
that another feed brought there, or is bringing there, is not read again. A span whose log the upstream no longer has begins again at the
ts of a new snapshot; feeds that had got less far deliver the difference. Runs in the server, beside the driver.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence

from penstock.feed.bootstrap.bootstrap import Bootstrap, BootstrapProgress
from penstock.feed.window.assignment import Dispatcher
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.rows.bag_key import is_bag
from penstock.model.span import DDL_SPAN, Span
from penstock.model.timestamp import TS_ZERO
from penstock.puller.log_service import CaptureState, LogService, SpanStatus
from penstock.server.feeds.ports import KnownSpans
from penstock.server.feeds.span_reads import SpanReads
from penstock.source.contract import Upstream
from penstock.source.single_log import has_log
from penstock.store.event_store import ColumnarEventStore
from penstock.store.log.bootstrap_log import BootstrapLog

log = logging.getLogger(__name__)
_LOOK_S, _KNOWN_S_MAX = 0.02, 60.0


class FeedCapture:
    """The capture of one run of a feed. One thread calls ``begin`` and another one ``capture``; the rest may be called by any."""

    def __init__(
        self,
        start_ts: int,
        log_service: LogService,
        store: ColumnarEventStore,
        bootstrap: Bootstrap | None,
        *,
        by_job: bool,
        stream_gives_state: bool,
        reads: SpanReads | None = None,
        known: KnownSpans | None = None,
    ) -> None:
        """``bootstrap`` is None where the feed begins without a state; ``by_job`` says whether it is used for spans that are new.

        ``stream_gives_state`` says whether a span that is captured from ts 0 is given its state by the upstream's change stream;
        ``reads`` are those of all feeds of the server. ``known`` are the spans where they are not in the store.
        """
        self._start_ts = start_ts
        self._log_service = log_service
        self._store = store
        self._known = known or store
        self._bootstrap = bootstrap
        self._by_job = by_job
        self._stream_gives_state = stream_gives_state
        self._span_ids = {DDL_SPAN.span_id}
        self._reads = reads or SpanReads()
        self._reading, self._cancelled = threading.Event(), threading.Event()

    def begin(self, dispatchers: Sequence[Dispatcher], list_again: Callable[[], Sequence[Dispatcher]] | None = None) -> None:
        """Read the state of spans that need it; may take as long as reading all tables. From here on the store is this server's.

        ``list_again`` returns the dispatchers as they are now that the log is read.
        """
        self._log_service.begin()
        self._span_ids |= {d.span.span_id for d in dispatchers}
        if self._bootstrap is None:
            return
        purged = self._let_go_of_purged()
        if list_again is not None:
            dispatchers = list_again()
            self._span_ids |= {d.span.span_id for d in dispatchers}
        self._read_unknown(self._bootstrap, dispatchers, purged)

    def capture(self, dispatcher: Dispatcher) -> None:
        """Capture the span of a dispatcher, if need be after its state is read."""
        span = dispatcher.span
        self._span_ids.add(span.span_id)
        if self._bootstrap is not None and self._read_unknown(self._bootstrap, [dispatcher], frozenset()):
            return
        if dispatcher.begin_ts == TS_ZERO:
            self._log_service.ensure_span(span, self._start_ts)
        elif self._stream_gives_state:
            # A table that came later is captured whole: its state may be wanted.
            self._log_service.ensure_span(span, TS_ZERO)
        else:
            self._log_service.ensure_span(span, dispatcher.begin_ts)
            if not dispatcher.with_state:
                # The table was made by the DDL at this ts, so it is known to be empty there.
                self._store.commit_bulk(span.span_id, (), dispatcher.begin_ts)

    def _needs_state(self, dispatcher: Dispatcher) -> bool:
        begins_with_state = dispatcher.with_state or dispatcher.begin_ts == TS_ZERO
        if not begins_with_state or self._known.base_ts(dispatcher.span.span_id) is not None:
            return False
        # The stream of an upstream with ranges gives the state of a span that is new; one whose history was given up must be read again.
        return self._by_job or dispatcher.span.span_id in self._known.span_ids()

    def _read_unknown(self, bootstrap: Bootstrap, dispatchers: Sequence[Dispatcher], purged: frozenset[int]) -> bool:
        """Read the spans whose state is not known; return whether there were any. Another feed may be reading them already."""

        def unknown() -> list[Span]:
            return [d.span for d in dispatchers if d.span.span_id in purged or self._needs_state(d)]

        wanted = unknown()
        if not wanted:
            return False
        with self._reads.alone({span.span_id for span in wanted}, self._cancelled):
            left = unknown()
            if left:
                log.info("bootstrap begins", extra={"spans": len(left)})
                self._read(bootstrap, left, purged)
        return bool(left)

    def _read(self, bootstrap: Bootstrap, spans: Sequence[Span], purged: frozenset[int]) -> None:
        self._reading.set()
        try:
            bootstrap.run(spans, self._capture_from(purged))
        finally:
            self._reading.clear()

    def cancel(self) -> None:
        """Stop reading the state, now and later."""
        self._reads.cancel(self._cancelled)
        if self._bootstrap is not None:
            self._bootstrap.cancel()

    def progress(self) -> BootstrapProgress | None:
        """Return how far reading the state is, None where it is not under way."""
        return self._bootstrap.progress() if self._bootstrap is not None and self._reading.is_set() else None

    def purged(self) -> bool:
        """Return whether the upstream no longer has the log of a span."""
        return bool(self._purged())

    def _purged(self) -> list[SpanStatus]:
        failing = [s for s in self._log_service.status() if s.span_id in self._span_ids and s.state is CaptureState.RETRYING]
        return [s for s in failing if s.last_error is not None and s.last_error.code == "LOG_PURGED"]

    def _let_go_of_purged(self) -> frozenset[int]:
        """Stop capturing spans whose log is gone, forget what was read of their state, and go on at the end of the log."""
        purged = {span.span_id for span in self._purged()}
        if not purged:
            return frozenset()
        if DDL_SPAN.span_id not in purged and not self._is_log_lost():
            # Other feeds read on, DDLs included: only this one had got so little far.
            return self._let_go(purged)
        # All spans of the feed share the log; those that have not noticed yet will, or were a moment further.
        gone = self._let_go(self._span_ids)
        start_ts = self._log_service.begin_log_again()
        # Rows of the hole are read from the tables themselves.
        self._store.reset_span(DDL_SPAN.span_id, max(start_ts, self._store.resolved_ts(DDL_SPAN.span_id)))
        self._log_service.ensure_span(DDL_SPAN, start_ts)
        self._log_service.settled_ts()
        return gone

    def _let_go(self, span_ids: Collection[int]) -> frozenset[int]:
        for span_id in span_ids:
            log.warning("the upstream's log is gone, a new snapshot is taken", extra={"span_id": span_id, "code": "LOG_PURGED"})
            self._log_service.remove_span(span_id)
            BootstrapLog(self._store.objects, span_id).clear(keep_objects=False)
        return frozenset(span_ids)

    def _is_log_lost(self) -> bool:
        """Return whether DDLs are lost as well; they are not where others read the log on. It takes a moment until that is known."""
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + _KNOWN_S_MAX
        while clock.monotonic_s() < deadline_s and not self._cancelled.is_set():
            ddls = next((s for s in self._log_service.status() if s.span_id == DDL_SPAN.span_id), None)
            if ddls is None or any(s.span_id == DDL_SPAN.span_id for s in self._purged()):
                return True
            if ddls.state is CaptureState.PULLING and ddls.regions:
                return False
            clock.wait(self._cancelled, _LOOK_S)
        return True

    def _capture_from(self, purged: frozenset[int]) -> Callable[[Span, int], None]:
        def capture(span: Span, start_ts: int) -> None:
            if span.span_id in purged:
                self._store.reset_span(span.span_id, start_ts)
            self._log_service.ensure_span(span, start_ts)

        return capture


def purge_error() -> PenstockError:
    """Return why a run ends whose upstream lost the log; the next one takes a new snapshot."""
    return PenstockError("SNAPSHOT_DUE", "the upstream no longer has the log that the feed needs next")


def doubt_counted(upstream: Upstream, log_service: LogService) -> Callable[[Span], None]:
    """Return what doubts a table whose rows are counted and were not all seen at one moment.

    A row that changed meanwhile is in its snapshot and in its log, and nothing tells that it is the same one.
    """

    def doubt(span: Span) -> None:
        table = upstream.schema_history(span.table_id)[-1]
        if has_log(upstream) and is_bag(table):
            log_service.doubt_table(table.table_id, table.schema, table.table, "it has no key, and rows may have changed while it was read")

    return doubt
