"""The addresses of sources: whether anybody listens there, under which name positions are kept, which feeds are whose.

Runs in the server.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from penstock.config.capture_settings import CaptureSettings
from penstock.meta.records import FeedRecord
from penstock.model.errors import PenstockError
from penstock.server.feeds.creation import FeedDocument
from penstock.settings.masking import mask_uri
from penstock.source.catalog import ONE_LOG_SCHEMES

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 3.0
_DEFAULT_PORTS = {"mariadb": 3306, "mysql": 3306, "postgres": 5432, "postgresql": 5432}


def check_reachable(uri: str) -> None:
    """Raise ``UPSTREAM_UNREACHABLE`` where nothing listens at the source's address, before anything slow is started for it."""
    try:
        parts = urlsplit(uri)
        address = (parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme, 0))
    except ValueError:
        raise PenstockError("CONFIG_INVALID", f"source: {mask_uri(uri)} has no valid port") from None
    if not address[0] or not address[1]:
        raise PenstockError("CONFIG_INVALID", f"source: {mask_uri(uri)} must name a host and a port, as dataserver://host:port")
    try:
        socket.create_connection(address, _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise PenstockError("UPSTREAM_UNREACHABLE", f"source: {mask_uri(uri)}: {error.strerror or error}") from None


def source_name(uri: str) -> str:
    """Return under which name a source's positions are kept: its address, which a replica takes over that takes its place.

    A PostgreSQL server has a log for each database, so the name tells which.
    """
    parts = urlsplit(uri)
    database = parts.path if parts.scheme.startswith("postgres") else ""
    return f"{parts.scheme}://{parts.hostname or ''}:{parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)}{database}"


@dataclass(frozen=True)
class SourcePlace:
    """A source as a server is configured with it; the one without a name is what feeds capture that name none. Holds secrets."""

    name: str
    uri: str
    flight_port: int = 0
    capture: CaptureSettings = field(default_factory=CaptureSettings)

    def __repr__(self) -> str:
        return f"SourcePlace({self.name!r})"

    @property
    def shown(self) -> str:
        """Return how a user knows it."""
        return self.name or mask_uri(self.uri)

    @property
    def has_one_log(self) -> bool:
        """Return whether its feeds share a log, so that one server shall have them all; known before anything is opened."""
        return urlsplit(self.uri).scheme in ONE_LOG_SCHEMES


class SourceFeeds:
    """Knows of which source of a server a feed is; says once of a feed of any other that it is left alone."""

    def __init__(self, places: Iterable[SourcePlace]) -> None:
        self._places = {_server_of(place.uri): place for place in places}
        self._left: set[str] = set()

    def place_of(self, feed: FeedRecord) -> SourcePlace | None:
        """Return the source in which a feed's tables are: its address counts, not with what credentials it is reached."""
        source = FeedDocument.of(feed).source
        found = self._places.get(_server_of(source))
        if found is None and feed.name not in self._left:
            self._left.add(feed.name)
            log.warning("feed of another source is left alone", extra={"feed": feed.name, "source": mask_uri(source)})
        return found


def same_source(first: str, second: str) -> bool:
    """Return whether two URIs name one source: its address counts, not with what credentials it is reached."""
    return first.rstrip("/") == second.rstrip("/") or bool(urlsplit(first).hostname and _server_of(first) == _server_of(second))


def _server_of(uri: str) -> str:
    return source_name(uri).replace("mariadb://", "mysql://").replace("postgres://", "postgresql://")
