"""What a source's doctor found: one setting of the upstream, whether it allows capture, and the statement that makes it so.

A doctor only reads. Runs wherever someone asks: ``penstock doctor``, tests.
"""

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
    """One setting or privilege of an upstream. ``statement`` is what an administrator runs where it is not ``ok``, if anything helps."""

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
