"""What the API asks about one feed and only its source can answer: verification, and tables in doubt.

Where the source is not open here, what the meta database has of its doubts is shown still; asking for anything to be done is refused, with
the reason for which the source is not open. Runs in the server.
"""

from __future__ import annotations

import threading
from typing import Any, NoReturn

from prometheus_client import CollectorRegistry

from penstock.config.server_tree import ServerConfig
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord
from penstock.meta.table_states import TableState, TableStates
from penstock.model.clock import Clock, system_random
from penstock.model.errors import InvariantError, PenstockError
from penstock.server.doubts.doubt_rules import FeedDoubtRules
from penstock.server.doubts.doubted_tables import DoubtedTables, TableJob
from penstock.server.feeds.creation import FeedDocument
from penstock.server.metrics import DoubtMetrics
from penstock.server.source_address import SourcePlace, source_name
from penstock.server.sources.sources import Sources
from penstock.server.verify.verification import Verdict


class FeedAnswers:
    """Answers for all sources of a server. Implements ``Verifies``. Thread safe."""

    def __init__(self, sources: Sources, meta: MetaDatabase, config: ServerConfig, clock: Clock) -> None:
        self._sources = sources
        self._meta = meta
        self._config = config
        self._clock = clock
        self._closed: dict[str, TableStates] = {}
        self._lock = threading.Lock()

    def verify(self, name: str) -> Verdict:
        """Compare the target of a feed with its source, as of the target's checkpoint."""
        with self._sources.holding(self._meta.get_feed(name)) as source:
            return source.verifier.verify(name)

    def progress(self, name: str) -> list[str] | None:
        """Return what was told of a feed's verification that is under way, oldest first; None where none is."""
        place = self._sources.place_of(self._meta.get_feed(name))
        source = self._sources.opened(place.uri) if place is not None else None
        return source.verifier.progress(name) if source is not None else None

    def cancel(self, name: str) -> bool:
        """Have a feed's verification that is under way end; return whether there was one."""
        place = self._sources.place_of(self._meta.get_feed(name))
        source = self._sources.opened(place.uri) if place is not None else None
        return source is not None and source.verifier.cancel(name)

    def verification(self, name: str) -> dict[str, Any] | None:
        """Return what verification on a schedule found of a feed, None where it is not verified so."""
        place = self._sources.place_of(self._meta.get_feed(name))
        source = self._sources.opened(place.uri) if place is not None else None
        return source.verification(name) if source is not None else None

    def doubted(self, feed: FeedRecord) -> DoubtedTables | None:
        """Return the doubted tables of a feed's source; None where they are never in doubt."""
        place = self._sources.place_of(feed)
        source = self._sources.opened(place.uri) if place is not None else None
        if source is not None:
            return source.doubted
        known = place or SourcePlace("", FeedDocument.of(feed).source)
        return self._unopened(feed, known) if known.has_one_log else None

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            for states in self._closed.values():
                states.close()

    def _unopened(self, feed: FeedRecord, place: SourcePlace) -> DoubtedTables:
        """Return doubted tables that can be looked at and no more: nobody settles them here."""
        with self._lock:
            if place.uri not in self._closed:
                url, name = self._config.effective_meta_url, source_name(place.uri)
                self._closed[place.uri] = TableStates(url, name, self._clock, self._config.meta)
            log = _UnopenedLog(self._sources, feed, self._closed[place.uri])
        rules, metrics = FeedDoubtRules(self._meta, place.uri), DoubtMetrics(CollectorRegistry())
        return DoubtedTables(log, _no_job, rules, self._config.reread, self._clock, system_random(), metrics)


class _UnopenedLog:
    """The log of a source that is not open. Implements ``DoubtedLog``."""

    def __init__(self, sources: Sources, feed: FeedRecord, states: TableStates) -> None:
        self._sources = sources
        self._feed = feed
        self._states = states

    def table_states(self) -> list[TableState]:
        """Return every table that was ever in doubt, as the meta database has it."""
        return self._states.states()

    def doubt_table(self, table_id: int, schema: str, table: str, reason: str) -> None:
        """Refuse."""
        self._refuse()

    def fail_round(self, table_id: int, error: PenstockError, retry_s: float) -> None:
        """Refuse."""
        self._refuse()

    def look_again(self) -> None:
        """Refuse."""
        self._refuse()

    def forget_table(self, table_id: int, schema: str = "", table: str = "") -> None:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise self._sources.why_closed(self._feed)


def _no_job() -> TableJob:
    raise InvariantError("a source that is not open settles nothing")
