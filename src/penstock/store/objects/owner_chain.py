"""Tells whether a meta database knows who had the objects of an event store last: a copy of one, or an old backup, does not.

Each mark on shared storage carries a link, a random word that the meta database noted before. So the newest link there is always one that
the meta database of its writer knows, and one that was copied before knows none of the links that came since. Whoever holds such a copy is
refused before it takes the objects away from their owner. A meta database that knows no link at all begins with what is there. Invariant: a
link is noted before it is written. One thread at a time calls it. Runs in the log service.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence

from penstock.model.errors import ErrorKind, PenstockError

log = logging.getLogger(__name__)


class OwnerChain:
    """The links of one source's objects, as one server makes them."""

    def __init__(self, known: Callable[[], Sequence[str]], note: Callable[[str], None], rng: random.Random) -> None:
        """``known`` gives the links that the meta database noted last, ``note`` notes one more."""
        self._known = known
        self._note = note
        self._rng = rng
        self._written = ""
        self._noted = ""

    def check(self, newest: str, place: str) -> None:
        """Raise where the meta database does not know the newest link at a place, although it knows others."""
        self._written = newest
        known = self._known() if newest else ()
        if known and newest not in known:
            raise PenstockError("OBJECTS_FOREIGN", f"{place}: whoever had the objects last works with another meta database")
        if newest and not known:
            log.warning("objects of another meta database", extra={"place": place})

    def link(self) -> str:
        """Return the link of the next mark; the one before where the meta database does not answer."""
        if not self._noted:
            link = f"{self._rng.getrandbits(64):016x}"
            try:
                self._note(link)
            except PenstockError as error:
                if error.kind is not ErrorKind.TRANSIENT:
                    raise
                return self._written
            self._noted = link
        return self._noted

    def wrote(self, link: str) -> None:
        """Note that a mark with a link is there: the next one gets another."""
        self._written = link
        if link == self._noted:
            self._noted = ""
