"""Keeps the spans of a feed's dispatchers captured while DDLs begin and end them.

Dispatchers change in the meta database, by the commit of a window in a process beside the driver; the log service lives here. The planner
cannot go on before the span of a new table is captured, so it waits, and this watcher looks for what it waits for. Invariants: every
span of a live dispatcher is captured, or its problem is shown; a span that no feed needs any more is let go. One thread per feed that
runs. Runs in the server.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.feed.window.assignment import Dispatcher, FeedContext
from penstock.feed.window.following import from_record, live_dispatchers
from penstock.meta.database import MetaDatabase
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError
from penstock.puller.log_service import LogService
from penstock.server.feeds.creation import FeedDocument
from penstock.server.source_address import same_source
from penstock.sink.contract import DispatcherId

log = logging.getLogger(__name__)

_LOOK_S = 0.25
_ASK_S = 10.0
"""How often the meta database is asked although the run changed nothing: each question counts all dispatchers of the feed."""
_STOP_WAIT_S = 30.0


class DispatcherCapture:
    """Captures what a feed's dispatchers need. ``start`` and ``stop`` are called by one thread, the rest by any."""

    def __init__(
        self,
        context: FeedContext,
        meta: MetaDatabase,
        log_service: LogService,
        capture: Callable[[Dispatcher], None],
        clock: Clock | None = None,
        changes: Callable[[], int] | None = None,
    ) -> None:
        """``capture`` begins to capture a dispatcher's span; it is called again for a dispatcher where it raised.

        ``changes`` counts how often the run changed the dispatchers; without it the meta database is asked at every look.
        """
        self._context = context
        self._meta = meta
        self._log_service = log_service
        self._capture = capture
        self._clock = clock or SystemClock()
        # A dispatcher changes its name or joins without being another one: its span is captured once.
        self._captured: dict[tuple[DispatcherId, int], Dispatcher] = {}
        self._problems: tuple[str, ...] = ()
        self._mark: tuple[int, ...] = ()
        self._changes = changes
        self._asked: tuple[int, float] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"capture-{context.feed}", daemon=True)

    def start(self) -> None:
        """Capture everything that the feed has now, or raise; then watch."""
        for dispatcher in live_dispatchers(self._context, self._meta):
            self._capture(dispatcher)
            self._captured[_key(dispatcher)] = dispatcher
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. The spans stay captured."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_WAIT_S)

    def dispatchers(self) -> tuple[Dispatcher, ...]:
        """Return the dispatchers whose spans are captured."""
        return tuple(self._captured.values())

    def problems(self) -> tuple[str, ...]:
        """Return what keeps spans of live dispatchers from being captured."""
        return self._problems

    def follow(self) -> None:
        """Look at the dispatchers once: capture new ones, let go of ended ones."""
        if not self._is_due():
            return
        try:
            mark = self._meta.dispatchers_mark(self._context.feed)
            if mark == self._mark and not self._problems:
                return
            live = live_dispatchers(self._context, self._meta)
        except PenstockError as error:
            self._problems = (f"dispatchers not read: {error.code}",)
            return
        problems = []
        self._captured |= {_key(d): d for d in live if _key(d) in self._captured}
        for dispatcher in [d for d in live if _key(d) not in self._captured]:
            try:
                self._capture(dispatcher)
            except PenstockError as error:
                problems.append(f"{dispatcher.schema}.{dispatcher.table}: {error}")
                continue
            self._captured[_key(dispatcher)] = dispatcher
            extra = {"feed": self._context.feed, "table_id": dispatcher.id.table_id, "begin_ts": dispatcher.begin_ts}
            log.info("dispatcher captured", extra=extra)
        self._problems = tuple(problems)
        self._let_go(live)
        self._mark = mark

    def _is_due(self) -> bool:
        if self._changes is None or self._problems:
            return True
        told, now_s = self._changes(), self._clock.monotonic_s()
        if self._asked is not None and told == self._asked[0] and now_s - self._asked[1] < _ASK_S:
            return False
        self._asked = (told, now_s)
        return True

    def _let_go(self, live: tuple[Dispatcher, ...]) -> None:
        alive = frozenset(live)
        ended = [d for d in self._captured.values() if d not in alive]
        kept = {d.span.span_id for d in live}
        gone = {d.span.span_id for d in ended} - kept
        if gone:
            gone -= needed_spans(self._meta, self._context.feed, self._context.source).keys()
        for span_id in gone:
            self._log_service.remove_span(span_id)
        for dispatcher in ended:
            del self._captured[_key(dispatcher)]

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                self.follow()
            except Exception as error:
                # A watcher that ended would leave the feed waiting for good, without a word.
                log.exception("capture watcher", extra={"feed": self._context.feed})
                self._problems = (f"capture watcher: {type(error).__name__}",)
            self._clock.wait(self._stop, _LOOK_S)


def _key(dispatcher: Dispatcher) -> tuple[DispatcherId, int]:
    return dispatcher.id, dispatcher.begin_ts


def needed_spans(meta: MetaDatabase, without: str, source: str) -> dict[int, int]:
    """Return the spans that the feeds of a source other than this one need, each with its table; other sources may have the same ids."""
    needed: dict[int, int] = {}
    for feed, document in [(f, FeedDocument.of(f)) for f in meta.list_feeds() if f.name != without and not f.is_over]:
        if not source or same_source(document.source, source):
            needed |= {d.span.span_id: d.id.table_id for d in dispatchers_of(meta, feed.name, document)}
    return needed


def dispatchers_of(meta: MetaDatabase, feed: str, document: FeedDocument) -> tuple[Dispatcher, ...]:
    """Return a feed's dispatchers now."""
    return document.dispatchers if (found := meta.dispatchers(feed)) is None else tuple(map(from_record, found))
