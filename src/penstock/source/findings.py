"""What a source's doctor found: one setting of the upstream, whether it allows capture, and the statement that makes it so.

A doctor only reads. Runs wherever someone asks: ``penstock doctor``, tests.
"""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One setting or privilege of an upstream. ``statement`` is what an administrator runs where it is not ``ok``, if anything helps."""

    name: str
    ok: bool
    found: str
    wanted: str
    statement: str = ""
