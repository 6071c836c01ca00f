"""How far a dispatcher has come in its window, and the name under which it says so.

A window of a dispatcher is a sequence of steps, the same for every attempt: each row that its messages tell, and each DDL between rows.
Progress is how many of them are in the target. Runs on executors and beside the driver.
"""

from __future__ import annotations

import msgspec

from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.target.dispatcher import DispatcherId
from penstock.target.kind import SinkRun


class Progress(msgspec.Struct, frozen=True, rename={"from_ts": "from", "to_ts": "to", "nbytes": "bytes"}):
    """What one dispatcher has done of one window; an attempt that comes later goes on behind it."""

    from_ts: int = 0
    to_ts: int = 0
    steps: int = 0
    rows: int = 0
    nbytes: int = 0
    epoch: int = 0
    by: str = ""
    """The stream that committed it: one that rested, and finds another here, was fenced meanwhile."""
    partitions: dict[str, int] = {}
    """How many partitions the topics of its rows had: with another number keys would go elsewhere, and their order be lost."""
    rule: str = ""
    """What decided on them, of which the same holds."""


class ControlState(msgspec.Struct, frozen=True):
    """Whose the target is, and which DDLs at the end of windows it has: the newest ts, and those of that ts."""

    feed: str = ""
    epoch: int = 0
    ddl_ts: int = 0
    ddls: tuple[str, ...] = ()


def control_name(control_topic: str) -> str:
    """Return the group and transactional id of what acts once per target."""
    return f"penstock.{control_topic}"


def dispatcher_name(control_topic: str, feed: str, dispatcher: DispatcherId) -> str:
    """Return the group and transactional id of a dispatcher: whichever task has it, it fences the one before."""
    return f"penstock.{control_topic}.{feed}.{dispatcher}"


def found_progress(text: str, run: SinkRun, from_ts: int, to_ts: int, name: str) -> Progress:
    """Return what is done of a window, by the progress that was found; raise where a later owner or window is there."""
    if not text:
        return Progress(from_ts, to_ts, epoch=run.epoch)
    found = decoded(text.encode(), Progress)
    begun = Progress(from_ts, to_ts, epoch=run.epoch, by=found.by, partitions=found.partitions, rule=found.rule)
    if found.epoch > run.epoch:
        raise PenstockError("FENCED", f"{name}: epoch {found.epoch} has written there, and this is {run.epoch}")
    if (found.from_ts, found.to_ts) == (from_ts, to_ts):
        return found
    # Under a higher epoch windows may lie before: the feed was reset, and tells again what it told.
    if found.to_ts >= to_ts and found.epoch == run.epoch:
        raise PenstockError(
            "SINK_CONFLICT",
            f"{name}: the window ({found.from_ts}, {found.to_ts}] is in the target, and this is ({from_ts}, {to_ts}]",
            "Another feed of this name has written there. Use another prefix, or delete the consumer groups that begin with this name.",
        )
    return begun
