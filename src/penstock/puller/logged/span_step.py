"""What one span gets of a step of the log, decoded already.

Runs in the log service: the reader's thread makes it, the span's pipeline worker appends it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.model.batch import ChangeBatch
from penstock.model.ddl import DdlEvent


class SpanStep(msgspec.Struct, frozen=True):
    """The part of a log step that one span gets."""

    changes: tuple[ChangeBatch, ...] = ()
    ddls: tuple[DdlEvent, ...] = ()
    nbytes: int = 1
    on_persisted: Callable[[], None] | None = None
    """Called when the store has it; perhaps more than once, from any thread."""
