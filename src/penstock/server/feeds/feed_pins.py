"""Pins the history that the feeds of this server still need, whether they run, wait for a restart, are paused, or have failed.

Every few seconds each feed's checkpoint is pinned in the event store for all spans that the feed reads, so that nothing above it leaves
while the feed is away, up to ``gc-ttl``. The same holds for the upstream's own log, which a server that takes over reads again; a feed
that has no checkpoint yet holds back all of it.
Invariants: a pin follows the checkpoint and never leads it; a feed that is removed, or over for good, is let go; where the meta database
does not answer, pins stay as they are. One thread. Runs in the server.
"""

from __future__ import annotations

import logging
import threading

from penstock.meta.database import MetaDatabase
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.timestamp import TS_ZERO
from penstock.server.feeds.capture import dispatchers_of
from penstock.server.feeds.creation import FeedDocument
from penstock.server.source_address import same_source
from penstock.store.history import HistoryNeeds

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
_STOP_WAIT_S = 30.0
_LOG = -1
"""Stands for the upstream's log, which belongs to no span."""


class FeedPins:
    """Keeps the pins of the feeds of one source."""

    def __init__(self, meta: MetaDatabase, needs: HistoryNeeds, source: str, clock: Clock) -> None:
        self._meta = meta
        self._needs = needs
        self._source = source
        self._clock = clock
        self._pinned: set[str] = set()
        self._dispatchers: dict[str, tuple[tuple[str, tuple[int, ...] | None], list[int]]] = {}
        """The spans of a feed's dispatchers, and by what it is told that these are others now."""
        self._known = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="feed-pins", daemon=True)

    def start(self) -> None:
        """Pin what is needed now, then keep doing so."""
        self.refresh()
        self._thread.start()

    def stop(self) -> None:
        """End. May be called twice."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_WAIT_S)

    def refresh(self) -> None:
        """Move all pins to where the feeds are."""
        try:
            feeds = [(f, FeedDocument.of(f)) for f in self._meta.list_feeds() if not f.is_over]
            mine = [(f, d) for f, d in feeds if same_source(d.source, self._source)]
            # One question for all feeds; the dispatchers of a feed are read where they changed.
            marks = self._meta.dispatcher_marks()
            known = {f.name: (f.uuid, marks.get(f.name)) for f, _ in mine}
            self._dispatchers = {name: found for name, found in self._dispatchers.items() if found[0] == known.get(name)}
            for feed, document in mine:
                needed_ts = feed.checkpoint_ts or self._first_window_ts(feed.name)
                # A feed whose first window is not decided reads the log from wherever its snapshots began, after any failure.
                self._needs.pin(_LOG, _holder(feed.name), needed_ts or 1)
                if needed_ts and (not feed.checkpoint_ts or feed.name not in self._dispatchers):
                    span_ids = [d.span.span_id for d in dispatchers_of(self._meta, feed.name, document)]
                    self._dispatchers[feed.name] = (known[feed.name], span_ids)
                for span_id in self._dispatchers[feed.name][1] if needed_ts else ():
                    self._needs.pin(span_id, _holder(feed.name), needed_ts)
        except PenstockError as error:
            log.info("history pins not moved", extra={"code": error.code})
            return
        self._known = True
        names = {feed.name for feed, _ in mine}
        for gone in self._pinned - names:
            self._needs.unpin(_holder(gone))
        self._pinned = names

    def log_needed_from_ts(self) -> int:
        """Return the ts from which on the upstream must keep its log for the feeds; all of it while the feeds are not known."""
        return self._needs.pinned_from_ts() if self._known else TS_ZERO

    def _first_window_ts(self, name: str) -> int:
        """Return the ts of the state that a feed's first window delivers; 0 while that is not decided."""
        window = self._meta.pending_window(name)
        return window.to_ts if window is not None else 0

    def _keep(self) -> None:
        while not self._clock.wait(self._stop, INTERVAL_S):
            self.refresh()


def _holder(feed: str) -> str:
    return f"feed {feed}"
