"""Claims feeds, keeps their leases, takes over abandoned ones, removes those that are asked to go.

Invariants: a feed runs here only while this server holds its lease; leases are renewed at a third of their length, and a feed whose
lease could not be renewed in time is stopped here. What one feed does never stops another. One thread scans; each feed has its keeper's
thread. Feeds that failed are left alone, except right after the start, because restarting a server is how an operator says that the
cause is gone. Runs in the server.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from penstock.config.server_tree import SupervisorSettings
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord, ReachedState, RequestedState
from penstock.model.clock import Clock
from penstock.model.errors import ErrorKind, PenstockError
from penstock.server.feeds.keeper import FeedKeeper
from penstock.server.feeds.ports import FeedRunFactory, RunStatus

log = logging.getLogger(__name__)

_STOP_WAIT_S = 60.0


class Supervisor:
    """Runs this server's share of the feeds."""

    def __init__(
        self,
        owner: str,
        meta: MetaDatabase,
        factory: FeedRunFactory,
        settings: SupervisorSettings,
        clock: Clock,
        jitter: random.Random,
        able: Callable[[], bool] = lambda: True,
    ) -> None:
        """``able`` says whether feeds can be run here now; a server that cannot claims none."""
        self.owner = owner
        self._meta = meta
        self._factory = factory
        self._settings = settings
        self._clock = clock
        self._jitter = jitter
        self._able = able
        self._lease_ms = round(settings.lease_s * 1000)
        self._keepers: dict[str, FeedKeeper] = {}
        self._lease_until_ms: dict[str, int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._first_scan = True
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    def take_over_own_leases(self) -> None:
        """Release what an earlier process held under this owner's name. Only before ``start``, and if that process is surely gone."""
        for feed in self._meta.list_feeds():
            if feed.owner == self.owner:
                self._meta.release(feed.name, self.owner, feed.epoch)

    def start(self) -> None:
        """Start scanning."""
        self._thread.start()

    def stop(self) -> None:
        """Stop all runs, release their leases so that another server takes over at once, and end."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_WAIT_S)
        keepers = self._owned()
        for keeper in keepers:
            keeper.stop()
        for keeper in keepers:
            if keeper.join(_STOP_WAIT_S):
                self._let_go(keeper)
            else:
                # Its lease runs out by itself; releasing it now would let two runs of one feed overlap.
                log.error("feed did not stop in time", extra={"feed": keeper.feed.name})

    def wake(self) -> None:
        """Look at the feeds now rather than at the next scan."""
        self._wake.set()

    def status(self, name: str) -> RunStatus | None:
        """Return the status of a feed's run, or None where it does not run here."""
        with self._lock:
            keeper = self._keepers.get(name)
        return keeper.status() if keeper is not None else None

    def scan(self) -> None:
        """Look at every feed once: renew, reap, claim, remove. Called by the supervisor's thread, or by a test that did not start it."""
        self._renew_leases()
        self._reap()
        try:
            feeds = self._meta.list_feeds()
        except PenstockError as error:
            log.warning("meta database does not answer", extra={"code": error.code})
            return
        for feed in feeds:
            if self._stop.is_set():
                return
            self._look_at(feed)
        self._first_scan = False

    def _supervise(self) -> None:
        interval_s = min(self._settings.scan_interval_s, self._settings.lease_s / 3)
        while not self._stop.is_set():
            self._wake.clear()
            self.scan()
            self._clock.wait(self._wake, interval_s)

    def _look_at(self, feed: FeedRecord) -> None:
        with self._lock:
            keeper = self._keepers.get(feed.name)
            full = len(self._keepers) >= self._settings.feeds_max
        if keeper is not None:
            if feed.requested_state is RequestedState.REMOVED:
                keeper.stop()
            return
        removed = feed.requested_state is RequestedState.REMOVED
        if feed.reached_state is ReachedState.FAILED and not removed and not self._first_scan:
            return
        if (full or not self._able()) and not removed:
            return
        try:
            now_ms = self._clock.now_ms()
            epoch = self._meta.claim(feed.name, self.owner, self._lease_ms, now_ms)
            if epoch is not None:
                self._take(feed, epoch, now_ms + self._lease_ms)
        except PenstockError as error:
            log.warning("feed not claimed", extra={"feed": feed.name, "code": error.code})

    def _take(self, feed: FeedRecord, epoch: int, lease_until_ms: int) -> None:
        if feed.requested_state is RequestedState.REMOVED:
            self._remove(feed)
            return
        log.info("feed claimed", extra={"feed": feed.name, "epoch": epoch, "owner": self.owner})
        keeper = FeedKeeper(
            self._meta.get_feed(feed.name),
            epoch,
            self._meta,
            self._factory,
            self._settings,
            self._clock,
            random.Random(self._jitter.random()),
        )
        with self._lock:
            self._keepers[feed.name] = keeper
            self._lease_until_ms[feed.name] = lease_until_ms
        keeper.start()

    def _renew_leases(self) -> None:
        for keeper in self._owned():
            name, now_ms = keeper.feed.name, self._clock.now_ms()
            until_ms = self._lease_until_ms[name]
            if keeper.ended or keeper.fenced or until_ms - now_ms > self._lease_ms * 2 // 3:
                continue
            try:
                self._meta.renew(name, self.owner, keeper.epoch, self._lease_ms, now_ms)
                self._lease_until_ms[name] = now_ms + self._lease_ms
            except PenstockError as error:
                log.warning("lease not renewed", extra={"feed": name, "code": error.code})
                if error.kind is ErrorKind.FENCED or now_ms >= until_ms:
                    keeper.fence()

    def _reap(self) -> None:
        for keeper in self._owned():
            if keeper.ended:
                self._let_go(keeper)

    def _let_go(self, keeper: FeedKeeper) -> None:
        """Give up a feed whose keeper has ended: remove it where that was asked, release it otherwise."""
        name = keeper.feed.name
        with self._lock:
            self._keepers.pop(name, None)
            self._lease_until_ms.pop(name, None)
        if keeper.fenced:
            return
        try:
            if self._meta.get_feed(name).requested_state is RequestedState.REMOVED:
                self._remove(keeper.feed)
            else:
                self._meta.release(name, self.owner, keeper.epoch)
        except PenstockError as error:
            log.warning("lease not released", extra={"feed": name, "code": error.code})

    def _remove(self, feed: FeedRecord) -> None:
        self._meta.remove_feed(feed.name)
        log.info("feed removed", extra={"feed": feed.name})
        try:
            self._factory.forget(feed)
        except PenstockError as error:
            log.warning("leftovers of a removed feed", extra={"feed": feed.name, "code": error.code})

    def _owned(self) -> list[FeedKeeper]:
        with self._lock:
            return list(self._keepers.values())
