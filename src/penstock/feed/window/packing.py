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
from penstock.model.errors import PenstockError
from penstock.model.timestamp import TS_ZERO
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
    companion_span_ids: tuple[int, ...] = ()
    """The other spans that the target holds in the same table: the difference is that to the state of all of them."""
    is_companion: bool = False
    """Whether another dispatcher of the table compares it for this one as well."""


class PlannedPartition(msgspec.Struct, frozen=True):
    """The dispatchers of one task, and how many bytes they are expected to read."""

    items: tuple[WorkItem, ...]
    nbytes: int = 0


def whole_tables(
    items: Sequence[tuple[int, tuple[int, WorkItem]]], live: Sequence[tuple[str, tuple[str, str]]]
) -> list[tuple[int, tuple[int, WorkItem]]]:
    """Return the items of a window for a target that holds tables: of a table that is compared, one does it for all of its dispatchers.

    ``live`` are all dispatchers of the feed with their tables' names. Raise where only some of a table's come with a state: the target
    cannot tell whose of its rows are theirs.
    """
    name_of = dict(live)
    comes: dict[tuple[str, str], list[WorkItem]] = {}
    for _, (_, item) in items:
        if item.work.from_ts == TS_ZERO:
            comes.setdefault(name_of[str(item.work.dispatcher)], []).append(item)
    for name, found in comes.items():
        if len(found) != sum(other == name for other in name_of.values()):
            raise PenstockError(
                "DDL_UNSUPPORTED",
                f"{'.'.join(name)}: some of its partitions come with their rows, and the target holds all of them in one table",
                "Take the table out of the feed, and in again: it comes with its state.",
            )
    return [(nbytes, (size, _in_group(item, comes.get(name_of[str(item.work.dispatcher)], [])))) for nbytes, (size, item) in items]


def _in_group(item: WorkItem, group: Sequence[WorkItem]) -> WorkItem:
    """Return what the dispatcher of an item does of the comparison of its table: the first of them does it, the others nothing."""
    if item.difference_nbytes is None or len(group) == 1:
        return item
    if group[0] is not item:
        return msgspec.structs.replace(item, is_companion=True)
    nbytes = sum(other.difference_nbytes or 0 for other in group)
    return msgspec.structs.replace(item, difference_nbytes=nbytes, companion_span_ids=tuple(other.span_id for other in group[1:]))


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
