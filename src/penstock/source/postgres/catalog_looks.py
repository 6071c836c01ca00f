"""When the catalog is looked at while the log is read, and up to where of the log nothing that it shows can be lost.

The server keeps for the slot which transactions changed its catalog, but only until they are confirmed: after that, a process that comes
back cannot tell a table that was rewritten from one that was not. So a place may be confirmed only once the catalog was looked at behind
it and what the look found was kept. A commit may be sent a moment before others can see it, so a look speaks for what was read when the
look before it began. One reading has its own: whoever begins to want a table begins another. Not thread safe. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.model.clock import Clock
from penstock.source.postgres.tables.catalog_watch import Changed

LOOK_SHARE = 20
"""How many times as long as a look took the reader waits until it looks again."""


class CatalogLooks:
    """The looks of one reading."""

    def __init__(self, look: Callable[[], list[Changed]], interval_s: float, clock: Clock) -> None:
        self.found: list[Changed] = []
        """What the last look found and nobody has told yet."""
        self.seen_lsn = 0
        """Up to here everything that the catalog shows was told and kept."""
        self._look = look
        self._interval_s = interval_s
        self._clock = clock
        self._looked_s = 0.0
        self._again_s = 0.0
        self._read_lsn = 0
        self._behind_lsn = 0

    def begin(self, read_lsn: int) -> None:
        """Begin at a place of the log: everything before it was read long ago."""
        self._read_lsn = read_lsn

    def is_due(self) -> bool:
        """Return whether the last look was long ago."""
        return self._clock.monotonic_s() - self._looked_s >= self._interval_s

    def look(self, read_lsn: int) -> None:
        """Look at the catalog, the log having been read up to a place.

        Not where the last look took long and was not long ago: many tables are looked at less often.
        """
        now_s = self._clock.monotonic_s()
        if now_s < self._again_s:
            return
        self._looked_s = now_s
        self.found = self._look()
        self._again_s = now_s + LOOK_SHARE * (self._clock.monotonic_s() - now_s)
        self._behind_lsn, self._read_lsn = self._read_lsn, read_lsn
        if not self.found:
            self.note_kept()

    def note_kept(self) -> None:
        """Note that what the last look found was told, and that whoever was told has kept it."""
        self.found = []
        self.seen_lsn = self._behind_lsn
