"""Folding: what a transaction did to each key, whatever it did in between.

Rows of both sides arrive in log order. They leave ordered by (commit ts, key), each key once per commit ts and side: the first
before-image and the last after-image. A key that has both is updated, one that only ceased is deleted, one that only came to be is
inserted. A key that was inserted and deleted again still gives its delete, so that nobody keeps what a replay may have written.
Runs in the log service.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa

from penstock.kernels.byte_ranges import compare_ranges
from penstock.kernels.jit import I64, U8, U64, binary_view, kernel
from penstock.model.batch import Op

_INSERT, _UPDATE, _DELETE, _BEFORE = int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE), int(Op.BEFORE)


class Folded(msgspec.Struct, frozen=True):
    """For each side the rows that stay, in order, and their ops."""

    ceased: I64
    ceased_ops: U8
    became: I64
    became_ops: U8


def fold(sides: U8, ceased_ts: U64, ceased_keys: pa.Array, became_ts: U64, became_keys: pa.Array) -> Folded:
    """Fold the rows of one table; ``sides`` tells for each image in log order whether it came to be (1) or ceased (0)."""
    ceased, became = np.empty(len(ceased_ts), dtype=np.int64), np.empty(len(became_ts), dtype=np.int64)
    ceased_ops, became_ops = np.empty(len(ceased_ts), dtype=np.uint8), np.empty(len(became_ts), dtype=np.uint8)
    counts = np.zeros(2, dtype=np.int64)
    data, offsets = binary_view(ceased_keys)
    other_data, other_offsets = binary_view(became_keys)
    _fold(sides, ceased_ts, data, offsets, became_ts, other_data, other_offsets, ceased, ceased_ops, became, became_ops, counts)
    kept, came = int(counts[0]), int(counts[1])
    return Folded(ceased[:kept], ceased_ops[:kept], became[:came], became_ops[:came])


def is_identity(rows: I64, count: int) -> bool:
    """Return whether chosen rows are all rows in their order."""
    return len(rows) == count and bool(np.array_equal(rows, np.arange(count)))


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
def _rest(left: U8, left_at: int, left_end: int, right: U8, right_at: int, right_end: int) -> int:
    """Compare two keys whose first eight bytes are equal."""
    if left_end - left_at == 8 and right_end - right_at == 8:
        return 0
    return compare_ranges(left, left_at, left_end, right, right_at, right_end)


@kernel
def _compare(one: int, two: int, side: U8, row: I64, prefix: U64, data: U8, offsets: I64, other: U8, other_offsets: I64) -> int:
    if prefix[one] != prefix[two]:
        return -1 if prefix[one] < prefix[two] else 1
    if side[one] == 0:
        left, left_at, left_end = data, offsets[row[one]], offsets[row[one] + 1]
    else:
        left, left_at, left_end = other, other_offsets[row[one]], other_offsets[row[one] + 1]
    if side[two] == 0:
        right, right_at, right_end = data, offsets[row[two]], offsets[row[two] + 1]
    else:
        right, right_at, right_end = other, other_offsets[row[two]], other_offsets[row[two] + 1]
    return _rest(left, left_at, left_end, right, right_at, right_end)


@kernel
def _sort_run(  # a stable merge sort, because equal keys must stay in log order
    order: I64, low: int, high: int, room: I64, side: U8, row: I64, prefix: U64, data: U8, offsets: I64, other: U8, other_offsets: I64
) -> None:
    width = 1
    while width < high - low:
        start = low
        while start < high:
            middle = min(start + width, high)
            stop = min(start + 2 * width, high)
            left, right, to = start, middle, start
            while left < middle or right < stop:
                if right >= stop or (
                    left < middle and _compare(order[left], order[right], side, row, prefix, data, offsets, other, other_offsets) <= 0
                ):
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
def _fold(  # noqa: C901, PLR0912, PLR0915
    sides: U8,
    ts: U64,
    data: U8,
    offsets: I64,
    other_ts: U64,
    other: U8,
    other_offsets: I64,
    ceased: I64,
    ceased_ops: U8,
    became: I64,
    became_ops: U8,
    counts: I64,
) -> None:
    total = len(sides)
    row = np.empty(total, dtype=np.int64)
    when = np.empty(total, dtype=np.uint64)
    prefix = np.empty(total, dtype=np.uint64)
    order = np.empty(total, dtype=np.int64)
    gone = 0
    came = 0
    for n in range(total):
        order[n] = n
        if sides[n] == 0:
            row[n] = gone
            when[n] = ts[gone]
            prefix[n] = _prefix(data, offsets[gone], offsets[gone + 1])
            gone += 1
        else:
            row[n] = came
            when[n] = other_ts[came]
            prefix[n] = _prefix(other, other_offsets[came], other_offsets[came + 1])
            came += 1
    room = np.empty(0, dtype=np.int64)
    # Whether an entry has the key and the ts of the one before it in order.
    same = np.zeros(total, dtype=np.uint8)
    start = 0
    while start < total:
        stop = start + 1
        sorted_ = True
        while stop < total and when[stop] == when[start]:
            if sorted_:
                found = _compare(stop - 1, stop, sides, row, prefix, data, offsets, other, other_offsets)
                sorted_ = found <= 0
                same[stop] = found == 0
            stop += 1
        if not sorted_:
            if len(room) == 0:
                room = np.empty(total, dtype=np.int64)
            _sort_run(order, start, stop, room, sides, row, prefix, data, offsets, other, other_offsets)
            for p in range(start + 1, stop):
                same[p] = _compare(order[p - 1], order[p], sides, row, prefix, data, offsets, other, other_offsets) == 0
        start = stop
    kept = 0
    given = 0
    start = 0
    while start < total:
        first = order[start]
        last = first
        first_gone = first if sides[first] == 0 else -1
        stop = start + 1
        while stop < total and same[stop]:
            last = order[stop]
            if sides[last] == 0 and first_gone < 0:
                first_gone = last
            stop += 1
        existed = sides[first] == 0
        exists = sides[last] == 1
        if first_gone >= 0 and (existed or not exists):
            ceased[kept] = row[first_gone]
            ceased_ops[kept] = _BEFORE if exists else _DELETE
            kept += 1
        if exists:
            became[given] = row[last]
            became_ops[given] = _UPDATE if existed else _INSERT
            given += 1
        start = stop
    counts[0] = kept
    counts[1] = given
