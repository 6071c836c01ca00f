"""What the planner hands to Spark's tasks: the dispatchers of one partition and their work.

Apart from the planner, because tasks need none of what planning needs. Runs beside the driver and on executors.
"""

from __future__ import annotations

import msgspec

from penstock.model.ddl import DdlEvent
from penstock.sink.contract import DispatcherWork


class WorkItem(msgspec.Struct, frozen=True):
    """One dispatcher's work, the span that it reads, and the DDLs that it passes on the way, oldest first."""

    work: DispatcherWork
    span_id: int
    ddls: tuple[DdlEvent, ...] = ()
    difference_nbytes: int | None = None
    """Set where the dispatcher delivers the difference between the target and the state at the window's end: how large that is."""


class PlannedPartition(msgspec.Struct, frozen=True):
    """The dispatchers of one Spark task, and the end of the window; 0 where the batch is no window."""

    items: tuple[WorkItem, ...]
    to_ts: int = 0
