"""The mark that says whose a target of objects is: one small object, which a claim creates.

Invariants: a target belongs to one feed at most; ``check`` leaves nothing behind when it raises; a target that a feed has delivered to and
that lacks its mark is not taken for an empty one: it was moved, unmounted or emptied, and what was delivered is not in it. Runs beside the
driver.
"""

from __future__ import annotations

import random

import msgspec

from penstock.format.layout.paths import OWNER_DIR, OWNER_PATH
from penstock.model.clock import system_random
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.target.storage import ObjectTarget


class Owner(msgspec.Struct, frozen=True):
    """The content of the mark: the feed's name, and a random id that tells two feeds of one name apart."""

    feed: str
    id: str = ""


class OwnerMark:
    """The mark of one target. Not thread safe."""

    def __init__(self, target: ObjectTarget, rng: random.Random | None = None) -> None:
        self._target = target
        self._rng = rng or system_random()

    def find(self) -> Owner | None:
        """Return who claimed the target, or None."""
        content = self._target.find(OWNER_PATH)
        try:
            return None if content is None else decoded(content, Owner)
        except msgspec.MsgspecError as error:
            raise PenstockError("FILE_MALFORMED", f"{OWNER_PATH}: line 1: {error}") from error

    def check(self, feed: str) -> None:
        """Raise unless the target is writable and empty or this feed's own."""
        owner = self.find()
        if owner is not None and owner.feed != feed:
            raise self._occupied(owner)
        if owner is None and not self._target.is_empty():
            raise PenstockError("SINK_OCCUPIED", f"{self._target.name} is not empty and belongs to no feed")
        self.probe()

    def probe(self) -> None:
        """Raise unless the target takes an object and lets go of it."""
        probe = f"{OWNER_DIR}/probe-{self._random_id()}"
        self._target.put_new(probe, b"penstock\n")
        self._target.delete(probe)

    def claim(self, feed: str) -> None:
        """Mark the target as this feed's; of two feeds that claim at once, one fails."""
        owner = self.find()
        if owner is None:
            try:
                self._target.put_new(OWNER_PATH, msgspec.json.encode(Owner(feed, self._random_id())))
            except PenstockError as error:
                if error.code != "SINK_CONFLICT":
                    raise
            owner = self.find()
        if owner is None or owner.feed != feed:
            raise self._occupied(owner)

    def require(self, feed: str) -> None:
        """Raise unless the target still has the mark of a feed that claimed it."""
        owner = self.find()
        if owner is None:
            raise PenstockError("SINK_LOST", f"{self._target.name} does not have the mark of feed {feed.partition('/')[0]} any more")
        if owner.feed != feed:
            raise self._occupied(owner)

    def _occupied(self, owner: Owner | None) -> PenstockError:
        return PenstockError("SINK_OCCUPIED", f"{self._target.name} belongs to feed {owner.feed if owner else 'unknown'!r}")

    def _random_id(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"
