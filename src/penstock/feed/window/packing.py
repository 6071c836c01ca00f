"""The tasks of a window: dispatchers and their work, packed into partitions by bytes.

Packing is deterministic: the same sizes give the same partitions. Apart from the planner, because tasks need none of what planning needs.
Runs in the driver and on executors.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from penstock.model.ddl import DdlEvent
from penstock.sink.contract import DispatcherWork

T = TypeVar("T")
LIGHT_BYTES = 1 << 20
LIGHT_DISPATCHERS = 16
"""A task costs about as much as writing these few: light windows take fewer tasks than they could."""


class WorkItem(msgspec.Struct, frozen=True):
    """One dispatcher's work, the span that it reads, and the DDLs that it passes on the way, oldest first."""

    work: DispatcherWork
    span_id: int
    ddls: tuple[DdlEvent, ...] = ()
    difference_nbytes: int | None = None
    """Set where the dispatcher delivers the difference between the target and the state at the window's end: how large that is."""


class PlannedPartition(msgspec.Struct, frozen=True):
    """The dispatchers of one task, and how many bytes they are expected to read."""

    items: tuple[WorkItem, ...]
    nbytes: int = 0


def tasks_for(sizes: Sequence[int], partitions: int) -> int:
    """Return into how many tasks dispatchers of these bytes are packed: as many as there may be, where they have enough to do."""
    needed = max(-(-sum(sizes) // LIGHT_BYTES), -(-len(sizes) // LIGHT_DISPATCHERS))
    return max(1, min(partitions, needed))


def pack_by_bytes(items: Sequence[tuple[int, T]], partitions: int) -> list[list[T]]:
    """Divide sized items in at most the given number of groups, largest first into the lightest group; no group is empty.

    Inside a group the order of the input is kept.
    """
    if partitions < 1:
        raise ValueError("partitions must be at least 1")
    count = min(partitions, len(items))
    loads = [(0, index) for index in range(count)]
    groups: list[list[int]] = [[] for _ in range(count)]
    by_size = sorted(range(len(items)), key=lambda i: (-items[i][0], i))
    for item in by_size:
        load, group = heapq.heappop(loads)
        groups[group].append(item)
        # An item of no bytes still takes a place, so that many empty ones spread as well.
        heapq.heappush(loads, (load + max(1, items[item][0]), group))
    return [[items[i][1] for i in sorted(group)] for group in groups]
