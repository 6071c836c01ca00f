"""The changes of a log brought together by (commit ts, key): what folding a transaction begins with, for every source.

Changes come in log order, each with its commit ts and its key. They are ordered by both, those of one key in log order, and cut into groups
of one (commit ts, key) each. Input that is in order already, as most is, is passed through. Runs in the log service.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa

from penstock.kernels.jit import I64, U8, U64, Flags, binary_view, kernel


class Arranged(msgspec.Struct, frozen=True):
    """``order`` says which change stands where, or is None where all stay; ``begins`` marks there the first change of each group."""

    order: I64 | None
    begins: Flags

    @property
    def first(self) -> I64:
        """Return where each group begins."""
        return np.flatnonzero(self.begins)

    @property
    def last(self) -> I64:
        """Return where each group ends."""
        first = self.first
        return np.append(first[1:], len(self.begins))[: len(first)] - 1


def arrange(ts: U64, key: I64, keys: pa.Array) -> Arranged:
    """Order changes by (ts, key); ``key`` is the number of each change's key in ``keys``."""
    data, offsets = binary_view(keys)
    order = np.argsort(ts, kind="stable") if bool((ts[1:] < ts[:-1]).any()) else np.arange(len(ts))
    begins = np.ones(len(ts), dtype=np.bool_)
    moved = _arrange(ts, key, data, offsets, order, begins)
    return Arranged(order if moved else None, begins)


@kernel
def _prefix(data: U8, start: int, end: int) -> int:
    """Return the first eight bytes as a number whose order is theirs."""
    value = np.uint64(0)
    if end - start >= 8:
        for p in range(8):
            value = (value << np.uint64(8)) | np.uint64(data[start + p])
        return value  # type: ignore[return-value]
    for p in range(end - start):
        value |= np.uint64(data[start + p]) << np.uint64(56 - 8 * p)
    return value  # type: ignore[return-value]


@kernel
def _compare(one: int, two: int, key: I64, prefix: U64, data: U8, offsets: I64) -> int:
    """Compare the keys of two changes; behind equal prefixes by what follows, then by length."""
    if prefix[one] != prefix[two]:
        return -1 if prefix[one] < prefix[two] else 1
    at, end = offsets[key[one]], offsets[key[one] + 1]
    other, other_end = offsets[key[two]], offsets[key[two] + 1]
    left_size, right_size = end - at, other_end - other
    if left_size == 8 and right_size == 8:
        return 0
    at += 8
    other += 8
    while at < end and other < other_end:
        if data[at] != data[other]:
            return -1 if data[at] < data[other] else 1
        at += 1
        other += 1
    if left_size == right_size:
        return 0
    return -1 if left_size < right_size else 1


@kernel
def _sort_run(order: I64, low: int, high: int, room: I64, key: I64, prefix: U64, data: U8, offsets: I64) -> None:
    """Sort a stretch by key: a stable merge sort, because equal keys must stay in log order."""
    width = 1
    while width < high - low:
        start = low
        while start < high:
            middle = min(start + width, high)
            stop = min(start + 2 * width, high)
            left, right, to = start, middle, start
            while left < middle or right < stop:
                if right >= stop or (left < middle and _compare(order[left], order[right], key, prefix, data, offsets) <= 0):
                    room[to] = order[left]
                    left += 1
                else:
                    room[to] = order[right]
                    right += 1
                to += 1
            start = stop
        for p in range(low, high):
            order[p] = room[p]
        width *= 2


@kernel
def _arrange(ts: U64, key: I64, data: U8, offsets: I64, order: I64, begins: Flags) -> bool:
    """Sort each stretch of one ts where it is not sorted; mark where groups begin; return whether the changes moved."""
    total = len(ts)
    prefix = np.empty(total, dtype=np.uint64)
    moved = False
    for n in range(total):
        prefix[n] = _prefix(data, offsets[key[n]], offsets[key[n] + 1])
        if order[n] != n:
            moved = True
    room = np.empty(0, dtype=np.int64)
    start = 0
    while start < total:
        stop = start + 1
        in_order = True
        while stop < total and ts[order[stop]] == ts[order[start]]:
            if in_order:
                found = _compare(order[stop - 1], order[stop], key, prefix, data, offsets)
                in_order = found <= 0
                begins[stop] = found != 0
            stop += 1
        if not in_order:
            moved = True
            if len(room) == 0:
                room = np.empty(total, dtype=np.int64)
            _sort_run(order, start, stop, room, key, prefix, data, offsets)
            for p in range(start + 1, stop):
                begins[p] = _compare(order[p - 1], order[p], key, prefix, data, offsets) != 0
        start = stop
    return moved
