"""What a doctor says of a source or a target: one setting or privilege, whether it is right, and what is at stake. Runs anywhere."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """What is at stake where a finding is not ``ok``."""

    MUST = "must"
    """Without it nothing is captured, or a table is not, or the application's own statements are refused."""
    SHOULD = "should"
    """Capture works, but slower, with less, or not for ever."""
    NOTE = "note"
    """Good to know; nothing to be done unless it is not wanted so."""


class Finding(msgspec.Struct, frozen=True):
    """What a doctor found: one setting or privilege, and whether it allows capture. A source's doctor only reads.

    ``statement`` is what an administrator runs where it is not ``ok``, if anything helps.
    """

    name: str
    ok: bool
    found: str
    wanted: str
    statement: str = ""
    level: Level = Level.MUST

    @property
    def blocks(self) -> bool:
        """Return whether it keeps something from being captured."""
        return not self.ok and self.level is Level.MUST
