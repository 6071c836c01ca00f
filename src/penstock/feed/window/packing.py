"""Packs dispatchers into partitions by bytes. Deterministic: the same sizes give the same partitions. Runs beside the driver."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


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
