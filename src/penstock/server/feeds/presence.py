"""Says in the meta database that this server is there, and tells of others that work in a copy of its data directory.

Invariant: what is announced is never older than a third of a lease while the meta database answers. Runs in the server, on the
supervisor's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.meta.database import MetaDatabase
from penstock.meta.records import ServerRecord, ServerState
from penstock.meta.transactions.servers import home_of
from penstock.model.clock import Clock

log = logging.getLogger(__name__)


class Presence:
    """The place of this server among the others."""

    def __init__(self, owner: str, meta: MetaDatabase, clock: Clock, lease_s: float) -> None:
        self.servers: list[ServerRecord] = []
        self._owner = owner
        self._meta = meta
        self._clock = clock
        self._lease_s = lease_s
        self._copies: set[str] = set()
        self._announced_s: float | None = None

    @property
    def is_told(self) -> bool:
        """Return whether this server was announced and that is still true."""
        return self._announced_s is not None

    def changed(self) -> None:
        """Announce at the next occasion, because what was said is true no more."""
        self._announced_s = None

    def announce_if_due(self, url: str, takes_feeds: Callable[[], bool]) -> None:
        """Say that this server is there, and learn which servers are."""
        now_s = self._clock.monotonic_s()
        if self._announced_s is None or now_s - self._announced_s >= self._lease_s / 3:
            state = ServerState.ACTIVE if takes_feeds() else ServerState.DRAINING
            self.servers = self._meta.announce(ServerRecord(self._owner, url, state), round(self._lease_s * 1000))
            self._announced_s = now_s
            self._tell_of_copies()

    def _tell_of_copies(self) -> None:
        """Say once of another server that it works in a copy of this data directory: those before in this one were taken out."""
        for other in self.servers:
            if other.owner != self._owner and home_of(other.owner) == home_of(self._owner) and other.owner not in self._copies:
                self._copies.add(other.owner)
                log.error(
                    "another server works in a copy of this data directory",
                    extra={"other": other.owner, "url": other.url, "do": "stop one of them; remove the file server-id from the copy"},
                )
