"""The sources of a server: which there are, which one a feed means, and when each begins and ends.

The source without a name is opened with the server and ends with it; its log is read while a feed of it is here. A source with a name
begins with its first feed here, and ends when its last one is gone or has moved to another server; one that cannot be opened is a problem
of its own feeds, and of no other's. What it has at the upstream stays when it ends: only the removal of a last feed gives that back.
Invariants: a source is opened once at a time; it is never ended while somebody uses it, or while this server has a feed of it or nobody
has; a log that another server reads is not read here to create or remove a feed; after a failure it is left alone for a moment, however
many feeds ask for it. Runs in the server: keepers of feeds begin sources, a thread of this room ends them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from penstock.config.server_tree import ServerConfig
from penstock.meta.records import FeedRecord, ServerRecord
from penstock.model.backoff import Backoff
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.server.doubts.doubted_tables import DoubtedTables
from penstock.server.feeds.keeper import foreign_error
from penstock.server.feeds.ports import FeedRun, FeedRunFactory
from penstock.server.health.looks import CaptureLook, closed_look
from penstock.server.health.watch import ComponentHealth, Look
from penstock.server.source_address import SourceFeeds, SourcePlace, same_source
from penstock.server.verify.verification import Verifies
from penstock.settings.loader import did_you_mean
from penstock.settings.masking import mask_text, mask_uri
from penstock.source.contract import Upstream

log = logging.getLogger(__name__)

LOOK_S = 2.0
_BACKOFF = Backoff(0.5, 5.0)
"""Each feed has its own, longer pauses; this one is for many that ask at once."""
_STOP_WAIT_S = 30.0


class OpenSource(Protocol):
    """What a source has while it is open: ``server.sources.captured_source.CapturedSource``."""

    @property
    def upstream(self) -> Upstream:
        """Return what is captured."""

    @property
    def runs(self) -> FeedRunFactory:
        """Return what makes runs of its feeds."""

    @property
    def verifier(self) -> Verifies:
        """Return what verifies its feeds."""

    @property
    def doubted(self) -> DoubtedTables | None:
        """Return its doubted tables; None where they are never in doubt."""

    @property
    def look(self) -> CaptureLook:
        """Return what judges its upstream and its store."""

    @property
    def registries(self) -> Sequence[CollectorRegistry]:
        """Return its metrics."""

    @property
    def stands_by(self) -> bool:
        """Return whether nothing is captured here, because that waits for a first feed, or another server has taken it."""

    def kept_from_ts(self, span_ids: Collection[int]) -> int | None:
        """Return from which ts on all changes of spans are kept here; None where that is not known."""

    def begin(self) -> None:
        """Capture, where it stands by. Idempotent."""

    def stand_by(self) -> None:
        """Capture nothing of a log until a feed begins. Idempotent."""

    def verification(self, feed: str) -> dict[str, Any] | None:
        """Return what verification on a schedule found of a feed."""

    def close(self) -> None:
        """End everything; what is at the upstream stays."""


class _Slot:
    """One source: open or not, and how the last attempt to open it went. Its lock is held while it is opened or ended."""

    def __init__(self, place: SourcePlace) -> None:
        self.place = place
        self.lock = threading.Lock()
        self.source: OpenSource | None = None
        self.users = 0
        self.is_idle = False
        """Whether nobody needed it at the last look."""
        self.failures = 0
        self.failure: PenstockError | None = None
        self.not_before_s = 0.0


class Sources:
    """The sources of one server, by URI. Thread safe."""

    def __init__(
        self, places: Sequence[SourcePlace], open_source: Callable[[SourcePlace], OpenSource], clock: Clock, jitter: random.Random
    ) -> None:
        """``places`` are in the order in which they are named to a user."""
        self.places = tuple(places)
        self._open_source = open_source
        self._clock = clock
        self._jitter = jitter
        self._feeds = SourceFeeds(places)
        self._slots = {place.uri: _Slot(place) for place in places}
        self._begun: list[str] = []
        self._stop = threading.Event()
        self._needed: Callable[[], Collection[str]] = self._slots.keys
        self._elsewhere: Callable[[str], str] = lambda _: ""
        self._thread = threading.Thread(target=self._watch, name="sources", daemon=True)

    def follow(self, needed: Callable[[], Collection[str]], elsewhere: Callable[[str], str]) -> None:
        """Take note of what the feeds say: ``needed`` gives the URIs of needed sources, ``elsewhere`` who else has feeds of one."""
        self._needed = needed
        self._elsewhere = elsewhere

    def start(self) -> None:
        """Begin to end sources that are not needed."""
        self._thread.start()

    def close(self) -> None:
        """End all sources, the newest first; none begins after that."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_WAIT_S)
        for uri in reversed(self._begun.copy()):
            slot = self._slots[uri]
            with slot.lock:
                self._end(slot)

    def choose(self, given: str | None) -> str:
        """Return the URI of the source that a feed names, by name or URI, or of the one for feeds that name none."""
        for place in self.places:
            if given == place.name or (given is None and not place.name):
                return place.uri
            if given is not None and given.rstrip("/") == place.uri.rstrip("/"):
                return place.uri
        known = ", ".join(place.shown for place in self.places)
        if given is None:
            raise PenstockError("CONFIG_INVALID", f"source: is required, because this server captures {known}", "Name one of them.")
        shown = mask_uri(given) if "://" in given else f"{given!r}{did_you_mean(given, [p.name for p in self.places if p.name])}"
        raise PenstockError(
            "CONFIG_INVALID", f"source: this server captures {known}, not {shown}", "Name one of them, or ask the server that captures it."
        )

    def place_of(self, feed: FeedRecord) -> SourcePlace | None:
        """Return the source of a feed, None where this server has it not."""
        return self._feeds.place_of(feed)

    def uri_of(self, feed: FeedRecord) -> str | None:
        """Return the URI of a feed's source as this server has it, None where it has it not."""
        place = self.place_of(feed)
        return place.uri if place is not None else None

    def has(self, feed: FeedRecord) -> bool:
        """Return whether this server has the source of a feed."""
        return self.place_of(feed) is not None

    def registries(self) -> dict[str, Sequence[CollectorRegistry]]:
        """Return the metrics of each source that is open, by name."""
        opened = {slot.place.name: slot.source for slot in self._slots.values()}
        return {name: source.registries for name, source in opened.items() if source is not None}

    def looks(self) -> dict[str, Look]:
        """Return how the upstream and the store of each source are looked at: ``upstream``, ``upstream:NAME``."""
        found: dict[str, Look] = {}
        for slot in self._slots.values():
            suffix = f":{slot.place.name}" if slot.place.name else ""
            found[f"upstream{suffix}"] = functools.partial(_look, slot, CaptureLook.upstream)
            found[f"store{suffix}"] = functools.partial(_look, slot, CaptureLook.store)
        return found

    def opened(self, uri: str) -> OpenSource | None:
        """Return a source that is open, else None."""
        return self._slots[uri].source

    def failure(self, uri: str) -> PenstockError | None:
        """Return why a source could not be opened the last time, None where it could or nobody tried."""
        return self._slots[uri].failure

    def begin(self, uri: str) -> OpenSource:
        """Return a source, opened if it is not; raise where it cannot be, or could not a moment ago."""
        slot = self._slots[uri]
        with slot.lock:
            return self._begin(slot)

    @contextlib.contextmanager
    def using(self, uri: str) -> Iterator[OpenSource]:
        """Give a source, opened if it is not, that does not end meanwhile; raise where another server reads its log."""
        slot = self._slots[uri]
        with slot.lock:
            read_here = slot.source is not None and not slot.source.stands_by
            other = self._elsewhere(uri) if slot.place.has_one_log and not read_here else ""
            if other:
                raise PenstockError("CONFIG_INVALID", f"source: {slot.place.shown} is captured by the server {other}", "Ask that server.")
            source = self._begin(slot)
            slot.users += 1
        try:
            yield source
        finally:
            with slot.lock:
                slot.users -= 1

    @contextlib.contextmanager
    def holding(self, feed: FeedRecord) -> Iterator[OpenSource]:
        """Give the source of a feed, if it is open here, which it is where the feed runs; it does not end meanwhile."""
        place = self.place_of(feed)
        if place is None or self.opened(place.uri) is None:
            raise self.why_closed(feed)
        with self.using(place.uri) as source:
            yield source

    def why_closed(self, feed: FeedRecord) -> PenstockError:
        """Return why nothing can be done here with the source of a feed."""
        place = self.place_of(feed)
        if place is None:
            return PenstockError("CONFIG_INVALID", f"this server does not capture the source of feed {feed.name}", _ELSEWHERE)
        failure = self.failure(place.uri)
        if failure is not None:
            return PenstockError(failure.code, failure.detail, failure.hint)
        return PenstockError("CONFIG_INVALID", f"no feed of the source {place.shown} runs on this server", _ELSEWHERE)

    def end_unneeded(self) -> None:
        """End every source with a name that nobody needed at two looks; the one without stands by. Called by the thread, or by a test."""
        ending = [s for s in self._slots.values() if s.place.name and (s.source is not None or s.failure is not None)]
        standing = [s for s in self._slots.values() if not s.place.name and s.place.has_one_log and s.source is not None]
        for slot in (*ending, *standing):
            with slot.lock:
                # Asked for under the lock: whoever takes a feed shows that before the source is begun.
                was_idle, slot.is_idle = slot.is_idle, not slot.users and slot.place.uri not in self._needed()
                if not slot.is_idle:
                    continue
                slot.failure = None
                # A feed that was just removed is forgotten a moment later, and its place may be taken by another.
                if slot.source is not None and was_idle and not slot.place.name:
                    if not slot.source.stands_by:
                        slot.source.stand_by()
                elif slot.source is not None and was_idle:
                    log.info("source is ended: no feed of it is here", extra={"source": slot.place.name})
                    self._end(slot)

    def _begin(self, slot: _Slot) -> OpenSource:
        if slot.source is not None:
            return slot.source
        if self._stop.is_set():
            raise PenstockError("CANCELLED", "the server stops")
        if slot.failure is not None and self._clock.monotonic_s() < slot.not_before_s:
            raise PenstockError(slot.failure.code, slot.failure.detail, slot.failure.hint)
        try:
            slot.source = self._open_source(slot.place)
        except PenstockError as error:
            self._failed(slot, error)
            raise
        except Exception as error:
            found = foreign_error(error)
            self._failed(slot, found)
            if not slot.place.name:
                raise
            raise found from error
        slot.failure, slot.failures, slot.is_idle = None, 0, False
        self._begun.append(slot.place.uri)
        log.info("source is captured", extra={"source": slot.place.shown})
        return slot.source

    def _failed(self, slot: _Slot, error: PenstockError) -> None:
        slot.failure = error
        slot.failures += 1
        pause_s = _BACKOFF.pause_s(slot.failures, self._jitter)
        slot.not_before_s = self._clock.monotonic_s() + pause_s
        if slot.place.name:
            # Of the one without a name whoever starts the server is told.
            fields = {"source": slot.place.name, "code": error.code, "error": mask_text(error.detail), "failures": slot.failures}
            log.warning("source cannot be captured", extra=fields)

    def _end(self, slot: _Slot) -> None:
        source, slot.source = slot.source, None
        if source is not None:
            self._begun.remove(slot.place.uri)
            source.close()

    def _watch(self) -> None:
        while not self._clock.wait(self._stop, LOOK_S):
            try:
                self.end_unneeded()
            except PenstockError as error:
                log.info("sources stay as they are", extra={"code": error.code})
            except Exception:
                log.exception("source not ended")


def _look(slot: _Slot, judge: Callable[[CaptureLook], ComponentHealth]) -> ComponentHealth:
    source = slot.source
    return judge(source.look) if source is not None else closed_look(slot.failure)


_ELSEWHERE = "Ask the server that runs it: penstock feed show says which."


class SourcedRuns:
    """Makes each run in the source of its feed, which begins with it. Implements ``FeedRunFactory``."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def prepare(self, feed: FeedRecord, epoch: int) -> FeedRecord:
        """Return a feed as it is to be run; raises where its source cannot be opened."""
        return self._sources.begin(self._uri(feed)).runs.prepare(feed, epoch)

    def create(self, feed: FeedRecord, epoch: int) -> FeedRun:
        """Return a run of a feed; raises where its source cannot be opened."""
        return self._sources.begin(self._uri(feed)).runs.create(feed, epoch)

    def forget(self, feed: FeedRecord) -> None:
        """Release what was kept for a removed feed; the source is opened for that where it is not."""
        with self._sources.using(self._uri(feed)) as source:
            source.runs.forget(feed)

    def _uri(self, feed: FeedRecord) -> str:
        uri = self._sources.uri_of(feed)
        if uri is None:
            raise self._sources.why_closed(feed)
        return uri


def needed_sources(sources: Sources, feeds: Iterable[FeedRecord], owner: str, keeps: Callable[[str], bool]) -> set[str]:
    """Return the URIs of the sources of which this server, or nobody, has a feed; ``keeps`` says which it has not let go of yet."""
    mine = [feed for feed in feeds if (feed.owner in {"", owner} and not feed.is_over) or keeps(feed.name)]
    return {uri for feed in mine if (uri := sources.uri_of(feed)) is not None}


def captured_elsewhere(sources: Sources, feeds: Iterable[FeedRecord], servers: Iterable[ServerRecord], owner: str, uri: str) -> str:
    """Return the address, or else the name, of another server that is there and has a feed of a source; empty where none has."""
    others = {server.owner: server.url or server.owner for server in servers if server.owner != owner}
    return next((others[feed.owner] for feed in feeds if feed.owner in others and sources.uri_of(feed) == uri), "")


def places_of(config: ServerConfig) -> list[SourcePlace]:
    """Return the sources of a server, the one without a name first; raise ``CONFIG_INVALID`` where two are one."""
    default = [SourcePlace("", config.source, config.flight_port, config.capturing)] if config.source else []
    places = default + [SourcePlace(name, given.uri, given.flight_port, given.capturing) for name, given in config.sources.items()]
    for at, place in enumerate(places):
        twin = next((other for other in places[:at] if same_source(place.uri, other.uri)), None)
        if twin is not None:
            other = f"sources.{twin.name}" if twin.name else "source"
            raise PenstockError("CONFIG_INVALID", f"sources.{place.name}: is the same as {other}", "Name each source once.")
    return places
