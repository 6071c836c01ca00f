"""Claims feeds, keeps their leases, takes over abandoned ones, hands over those that others should have, removes those that shall go.

Invariants: a feed runs here only while no other server has its lease; leases are renewed at a third of their length. A meta database that
does not answer takes no feed away: nobody else could have claimed it, and what a run writes is fenced by its epoch. When it answers again,
servers leave held feeds to their owners for a third of a lease. What one feed does never stops another. One thread scans; each feed has
its keeper's thread. Feeds that failed are left alone until they are resumed, except right after the start, because restarting a server is
a way to say that the cause is gone. A feed that is paused or cancelled is run by nobody, also after a restart or a takeover. Runs in the
server.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from penstock.config.server_tree import SupervisorSettings
from penstock.meta.database import MetaDatabase
from penstock.meta.lives import resting
from penstock.meta.records import FeedRecord, ReachedState, RequestedState, ServerRecord
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.server.feeds.keeper import FeedKeeper
from penstock.server.feeds.ports import FeedRunFactory, RunStatus
from penstock.server.feeds.presence import Presence
from penstock.server.feeds.sharing import LEFT, Share, is_meant_for_another, share_of
from penstock.server.feeds.turns import StartTurns

log = logging.getLogger(__name__)

_STOP_WAIT_S = 60.0
_AT_REST = frozenset({RequestedState.PAUSED, RequestedState.CANCELLED})
"""What is asked of feeds that no server runs."""
_MISTRUST_LEASES = 10
"""For how many leases nothing is handed over to servers that left a feed alone."""


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
        source_of: Callable[[FeedRecord], str | None] = lambda _: "",
        *,
        together: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``able`` says whether feeds can be run here now, a server that cannot claims none.

        ``source_of`` gives the source of a feed, None where it can never run here; ``together`` says of a source that one server shall
        have all its feeds, because they share a log.
        """
        self.owner = owner
        self.url = ""
        self._meta = meta
        self._factory = factory
        self._settings = settings
        self._clock = clock
        self._jitter = jitter
        self._able = able
        self._source_of = source_of
        self._together = together
        self._lease_ms = round(settings.lease_s * 1000)
        self._turns = StartTurns(settings.starts_at_once)
        self._keepers: dict[str, FeedKeeper] = {}
        self._renewed_s: dict[str, float] = {}
        self.meta_failure: PenstockError | None = None
        """Why the last scan could not renew, announce or look; None where it could."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._draining = threading.Event()
        self._first_scan = True
        self._presence = Presence(owner, meta, clock, settings.lease_s)
        self._answered_s: float | None = None
        self._trusted_s = float("-inf")
        self._moved_s = float("-inf")
        self._alone_until_s = float("-inf")
        self._now_ms = 0
        self._leases: dict[str, tuple[tuple[int, str, int], float]] = {}
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    def take_over_own_leases(self) -> None:
        """Release what an earlier process of this data directory held. Only before ``start``."""
        self._meta.take_over(self.owner)

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
        if self._presence.is_told:
            try:
                self._meta.withdraw(self.owner)
            except PenstockError as error:
                log.warning("server not withdrawn", extra={"code": error.code})

    def wake(self) -> None:
        """Look at the feeds now rather than at the next scan."""
        self._wake.set()

    def retry_now(self, name: str) -> None:
        """Try a feed that waits for its next attempt at once, if it is here."""
        with self._lock:
            keeper = self._keepers.get(name)
        if keeper is not None:
            keeper.retry_now()
        self.wake()

    def drain(self, draining: bool) -> None:
        """Hand all feeds over and take none, or take feeds again."""
        if draining:
            self._draining.set()
        else:
            self._draining.clear()
        self._presence.changed()
        self.wake()

    @property
    def draining(self) -> bool:
        """Return whether this server gives its feeds up."""
        return self._draining.is_set()

    @property
    def servers(self) -> list[ServerRecord]:
        """Return the servers that share the meta database, as they were at the last look."""
        return self._presence.servers

    @property
    def alive(self) -> bool:
        """Return whether the supervisor's thread works."""
        return self._thread.is_alive()

    def keeps(self, name: str) -> bool:
        """Return whether a feed is here, running or between two runs."""
        with self._lock:
            return name in self._keepers

    def status(self, name: str) -> RunStatus | None:
        """Return the status of a feed's run, or None where it does not run here."""
        with self._lock:
            keeper = self._keepers.get(name)
        return keeper.status() if keeper is not None else None

    def scan(self) -> None:
        """Look at every feed once: renew, reap, claim, hand over, remove. Called by the thread, or by a test that did not start it."""
        self._reap()
        try:
            self._renew_leases()
            self._announce()
            feeds = self._meta.list_feeds()
            groups: dict[str, list[FeedRecord]] = {}
            for feed in feeds:
                source = self._source_of(feed)
                if source is not None:
                    groups.setdefault(source, []).append(feed)
            self._now_ms = self._meta.now_ms()
            if any(self._is_loose(feed) for group in groups.values() for feed in group):
                # The share depends on who is there now.
                self._presence.changed()
                self._announce()
        except PenstockError as error:
            if self._answered_s is not None or self._first_scan:
                log.warning(
                    "meta database does not answer; feeds stay where they are", extra={"code": error.code, "feeds": len(self._owned())}
                )
            self._answered_s, self.meta_failure = None, error
            return
        self.meta_failure = None
        self._note_answer()
        for source, group in groups.items():
            together = self._together(source)
            share, kept = self._share(group, together), len(self._keepers)
            for feed in group:
                if self._stop.is_set():
                    return
                self._look_at(feed, share, together)
                if len(self._keepers) != kept:
                    # A share is counted over all feeds, so only where it is another one.
                    share, kept = self._share(group, together), len(self._keepers)
            self._hand_over(group, self._share(group, together), together)
        mine = [feed.name for group in groups.values() for feed in group]
        self._leases = {name: self._leases[name] for name in mine if name in self._leases}
        self._first_scan = False

    def _supervise(self) -> None:
        interval_s = min(self._settings.scan_interval_s, self._settings.lease_s / 3)
        while not self._stop.is_set():
            self._wake.clear()
            self.scan()
            self._clock.wait(self._wake, interval_s)

    def _note_answer(self) -> None:
        """Note that the meta database answers; after a gap owners of held feeds are given time to renew."""
        now_s = self._clock.monotonic_s()
        gap = self._answered_s is None or now_s - self._answered_s > self._settings.lease_s / 3 + self._settings.scan_interval_s
        if gap and not self._first_scan:
            log.info("meta database answers again")
            self._trusted_s = now_s + self._settings.lease_s / 3
            for keeper in self._owned():
                if keeper.waits_for_meta:
                    keeper.retry_now()
        self._answered_s = now_s

    def _announce(self) -> None:
        self._presence.announce_if_due(self.url, lambda: not self.draining and self._able())

    def _share(self, feeds: list[FeedRecord], together: bool) -> Share:
        """Return this server's share in the feeds of one source."""
        with self._lock:
            kept = {feed.name for feed in feeds if feed.name in self._keepers}
        return share_of(self.owner, self.draining, self._presence.servers, feeds, kept, together)

    def _look_at(self, feed: FeedRecord, share: Share, together: bool) -> None:
        with self._lock:
            keeper = self._keepers.get(feed.name)
        asked = feed.requested_state
        if keeper is not None:
            self._leases.pop(feed.name, None)
            if asked is not RequestedState.RUNNING:
                # What a paused or cancelled feed delivers now would not be committed.
                keeper.stop(at_once=asked is not RequestedState.REMOVED)
            elif feed.config_version != keeper.feed.config_version:
                # Who changed the configuration took the lease, so that nothing more happens under the one before.
                keeper.fence()
            return
        if asked in _AT_REST and feed.reached_state is resting(asked):
            return
        if asked is RequestedState.RUNNING and not self._wants(feed, share, together):
            return
        try:
            epoch = self._meta.claim(feed.name, self.owner, self._lease_ms)
            if epoch is not None:
                self._take(feed, epoch)
        except PenstockError as error:
            log.warning("feed not claimed", extra={"feed": feed.name, "code": error.code})

    def _is_loose(self, feed: FeedRecord) -> bool:
        """Return whether nobody has a feed that shall run, or who has it may be gone."""
        if feed.name in self._keepers or feed.requested_state in _AT_REST or feed.reached_state in LEFT:
            return False
        return not feed.owner or self._same_for_s(feed) > self._settings.lease_s / 2

    def _wants(self, feed: FeedRecord, share: Share, together: bool) -> bool:
        """Return whether this server tries to claim a feed that it does not run; whether a lease has run out tells the database's clock."""
        same_s, lease_s, held = self._same_for_s(feed), self._settings.lease_s, bool(feed.owner) and feed.owner != self.owner
        if len(self._keepers) >= self._settings.feeds_max or self.draining or not self._able():
            return False
        if held and (feed.lease_until_ms > self._now_ms or self._clock.monotonic_s() < self._trusted_s):
            return False
        if feed.reached_state in LEFT:
            return self._first_scan and feed.reached_state is ReachedState.FAILED
        # A feed that those who should have it leave alone is taken by anybody: they may have no such source.
        left_alone = same_s >= (lease_s if together else lease_s / 3) + (lease_s if held else 0)
        wanted = feed.wanted_owner == self.owner or (
            share.wants_more and not is_meant_for_another(feed, self.owner, self._presence.servers)
        )
        if left_alone and not wanted:
            self._alone_until_s = self._clock.monotonic_s() + _MISTRUST_LEASES * lease_s
        return wanted or left_alone

    def _same_for_s(self, feed: FeedRecord) -> float:
        """Return for how long this server has seen a feed under the same lease, or under none."""
        now_s, lease = self._clock.monotonic_s(), (feed.epoch, feed.owner, feed.lease_until_ms)
        before, since_s = self._leases.get(feed.name, (lease, now_s))
        self._leases[feed.name] = (lease, since_s if before == lease else now_s)
        return now_s - self._leases[feed.name][1]

    def _take(self, feed: FeedRecord, epoch: int) -> None:
        if feed.requested_state is RequestedState.REMOVED:
            self._remove(feed)
            return
        if feed.requested_state in _AT_REST:
            # Whoever had it is gone, so it rests already: that has to be said, and no more.
            self._meta.lives.rest(feed.name, epoch)
            self._give_back(self._meta.get_feed(feed.name), epoch)
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
            self._turns,
            self._able,
        )
        with self._lock:
            self._keepers[feed.name] = keeper
            self._renewed_s[feed.name] = self._clock.monotonic_s()
        keeper.start()

    def _hand_over(self, feeds: list[FeedRecord], share: Share, together: bool) -> None:
        """Stop a feed of a source that another server should have; it is released when it has stopped, and the other one takes it."""
        now_s = self._clock.monotonic_s()
        for feed in feeds if now_s >= self._alone_until_s else ():
            keeper = self._keepers.get(feed.name)
            if keeper is not None and not keeper.stopping and is_meant_for_another(feed, self.owner, self._presence.servers):
                log.info("feed is moved", extra={"feed": feed.name, "to": feed.wanted_owner})
                keeper.stop()
        rested = now_s - self._moved_s >= self._settings.rebalance_interval_s > 0
        whole = self.draining or (together and share.gives_away)
        # Who left feeds alone would leave those alone as well that are handed over.
        if not whole and not (rested and share.gives_away and now_s >= self._alone_until_s):
            return
        chosen = {feed.name: feed.wanted_owner == self.owner for feed in feeds}
        running = [k for k in self._owned() if k.feed.name in chosen and not k.ended and not k.stopping]
        if len(running) < share.mine and not whole:
            return
        for keeper in running if whole else [k for k in running if not chosen[k.feed.name]][-1:]:
            log.info("feed is handed over", extra={"feed": keeper.feed.name, "feeds": share.mine, "fair": share.fair})
            keeper.stop()
            self._moved_s = now_s

    def companions(self, feed: FeedRecord) -> list[str]:
        """Return the feeds that one server has together with this one, itself among them."""
        source = self._source_of(feed)
        if source is None or not self._together(source):
            return [feed.name]
        return [other.name for other in self._meta.list_feeds() if self._source_of(other) == source]

    def _renew_leases(self) -> None:
        """Renew what is due; raise where the meta database does not answer, which takes nothing away."""
        now_s, third_s = self._clock.monotonic_s(), self._settings.lease_s / 3
        alive = {keeper.feed.name: keeper for keeper in self._owned() if not keeper.ended and not keeper.fenced}
        if not any(now_s - self._renewed_s[name] >= third_s for name in alive):
            return
        # All of them with the first that is due: one transaction, and from then on they are due together.
        lost = self._meta.renew(self.owner, {name: keeper.epoch for name, keeper in alive.items()}, self._lease_ms)
        self._renewed_s |= dict.fromkeys(alive.keys() - lost, now_s)
        for name in sorted(lost):
            log.warning("lease not renewed", extra={"feed": name, "code": "FENCED"})
            alive[name].fence()

    def _reap(self) -> None:
        for keeper in self._owned():
            if keeper.ended:
                self._let_go(keeper)

    def _let_go(self, keeper: FeedKeeper) -> None:
        """Give up a feed whose keeper has ended: remove it where that was asked, release it otherwise."""
        name = keeper.feed.name
        with self._lock:
            self._keepers.pop(name, None)
            self._renewed_s.pop(name, None)
        if keeper.fenced:
            return
        try:
            feed = self._meta.get_feed(name)
            if feed.requested_state is RequestedState.REMOVED:
                self._remove(keeper.feed)
            else:
                self._give_back(feed, keeper.epoch)
        except PenstockError as error:
            log.warning("lease not released", extra={"feed": name, "code": error.code})

    def _give_back(self, feed: FeedRecord, epoch: int) -> None:
        """Release the lease of a feed, and what was kept for it where it is over."""
        if feed.is_over:
            self._forget(feed)
        self._meta.release(feed.name, self.owner, epoch)

    def _remove(self, feed: FeedRecord) -> None:
        self._meta.remove_feed(feed.name)
        log.info("feed removed", extra={"feed": feed.name})
        self._forget(feed)

    def _forget(self, feed: FeedRecord) -> None:
        try:
            self._factory.forget(feed)
        except PenstockError as error:
            log.warning("leftovers of a feed that is over", extra={"feed": feed.name, "code": error.code})

    def _owned(self) -> list[FeedKeeper]:
        with self._lock:
            return list(self._keepers.values())
