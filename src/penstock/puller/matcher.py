"""Matches prewrites with commits and rollbacks, region by region, and builds raw batches.

Owns the rules for one region's entries:

- COMMITTED rows are whole and pass at once; a COMMIT takes value and old value from its prewrite.
- Before INITIALIZED, prewrites may come after their commit or rollback (the incremental scan runs beside the live log): a COMMIT
  without a prewrite (or with an empty one, which a transaction heartbeat may send) and every ROLLBACK wait until INITIALIZED.
- After INITIALIZED a COMMIT without a prewrite is an error: the region must be registered again.
- A prewrite with an empty value does not replace one that is there.
- Rows at or below the floor ts were not asked for, and rows outside the asked keys belong to another region: neither is emitted.

A message is worked on by one kernel, in the order of its entries. Runs in the log service, in the shard of the region.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model.errors import PenstockError
from penstock.model.raw import RAW_DELETE, RAW_SCHEMA
from penstock.puller.prewrite_table import PrewriteTable, drop_slot, find_slot, put_slot
from penstock.puller.raw_memory import copy_bytes, load_u8
from penstock.puller.wire_scan import (
    COMMIT,
    INITIALIZED,
    KEY_LEN,
    KEY_OFF,
    OLD_LEN,
    OLD_OFF,
    PREWRITE,
    VALUE_LEN,
    VALUE_OFF,
    ScannedMessage,
)

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


class Entries(msgspec.Struct, frozen=True):
    """Entries of one region as columns, with the bytes that their places point into."""

    data: U8
    start_ts: U64
    commit_ts: U64
    type: U8
    op: U8
    places: I64

    @classmethod
    def of(cls, message: ScannedMessage, low: int, high: int) -> Entries:
        """Return the entries ``low:high`` of a message."""
        cut = slice(low, high)
        return cls(message.data, message.start_ts[cut], message.commit_ts[cut], message.type[cut], message.op[cut], message.places[cut])

    def cut(self, low: int, high: int) -> Entries:
        """Return a part."""
        part = slice(low, high)
        return Entries(self.data, self.start_ts[part], self.commit_ts[part], self.type[part], self.op[part], self.places[part])

    def own(self, rows: I64) -> Entries:
        """Return chosen rows with their keys copied, so that the message can go."""
        places = self.places[rows]
        data, offsets = _gather(self.data, self.data, np.zeros(len(rows), np.uint8), places[:, KEY_OFF], places[:, KEY_LEN])
        kept = np.zeros((len(rows), 6), dtype=np.int64)
        kept[:, KEY_OFF] = offsets[:-1]
        kept[:, KEY_LEN] = places[:, KEY_LEN]
        return Entries(data, self.start_ts[rows], self.commit_ts[rows], self.type[rows], self.op[rows], kept)


_NO_PREWRITES = PrewriteTable()
"""Shared by all regions that never saw a prewrite: without slots nothing is found in it, and nothing is put into it."""


class RegionMatcher:
    """The matcher of one registration of one region. Not thread safe: its shard owns it."""

    def __init__(self, start_key: bytes = b"", end_key: bytes = b"") -> None:
        self._start = np.frombuffer(start_key, dtype=np.uint8)
        self._end = np.frombuffer(end_key, dtype=np.uint8)
        self._table = _NO_PREWRITES
        self._cached: list[Entries] = []
        self.initialized = False

    @property
    def pending(self) -> int:
        """Return how many prewrites wait for their end."""
        return self._table.live

    @property
    def cached(self) -> int:
        """Return how many commits and rollbacks wait for INITIALIZED."""
        return sum(len(c.type) for c in self._cached)

    def feed(self, entries: Entries, floor_ts: int = 0) -> pa.RecordBatch | None:
        """Take the entries of one region event; return the committed rows in order (``RAW_SCHEMA``), or None if there are none.

        Raises:
            PenstockError: ``PREWRITE_MISSING`` for a commit that nothing matches, ``DECODE_FAILED`` for a row without an operation.
        """
        if self.initialized:
            return self._match(entries, floor_ts)
        marks = np.flatnonzero(entries.type == INITIALIZED)
        if len(marks) == 0:
            return self._match(entries, floor_ts)
        at = int(marks[0])
        before = self._match(entries.cut(0, at), floor_ts)
        self.initialized = True
        cached, self._cached = self._cached, []
        parts = [before, *(self._match(c, floor_ts, missing_is_error=False) for c in cached)]
        parts.append(self._match(entries.cut(at + 1, len(entries.type)), floor_ts))
        return _concat([p for p in parts if p is not None])

    def _match(self, entries: Entries, floor_ts: int, missing_is_error: bool = True) -> pa.RecordBatch | None:
        rows = len(entries.type)
        if rows == 0:
            return None
        prewrites = entries.type == PREWRITE
        count = int(np.count_nonzero(prewrites))
        if count:
            if self._table is _NO_PREWRITES:
                self._table = PrewriteTable()
            self._table.reserve(count, int(entries.places[prewrites][:, 1::2].sum()))
        out = _Matched(rows)
        failure = _match_entries(
            entries.data,
            entries.start_ts,
            entries.commit_ts,
            entries.type,
            entries.op,
            entries.places,
            self.initialized,
            np.uint64(floor_ts),
            self._start,
            self._end,
            *self._table.arrays(),
            *out.arrays(),
        )
        emitted, waiting, missing = (int(x) for x in out.counts)
        if failure:
            raise PenstockError("DECODE_FAILED", "a committed row has no operation")
        if missing and missing_is_error:
            raise PenstockError("PREWRITE_MISSING", f"{missing} commits without a prewrite in an initialised region")
        if waiting:
            self._cached.append(entries.own(out.waiting[:waiting]))
        return out.records(emitted, entries.data, self._table.arena) if emitted else None


class _Matched:
    """What the matching kernel fills: emitted rows, and rows that wait for INITIALIZED."""

    def __init__(self, rows: int) -> None:
        self.commit_ts = np.empty(rows, dtype=np.uint64)
        self.start_ts = np.empty(rows, dtype=np.uint64)
        self.op = np.empty(rows, dtype=np.uint8)
        self.from_arena = np.empty(rows, dtype=np.uint8)
        self.places = np.empty((rows, 6), dtype=np.int64)
        self.waiting = np.empty(rows, dtype=np.int64)
        self.counts = np.zeros(3, dtype=np.int64)

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return (self.commit_ts, self.start_ts, self.op, self.from_arena, self.places, self.waiting, self.counts)

    def records(self, rows: int, data: U8, arena: U8) -> pa.RecordBatch:
        op = self.op[:rows]
        places = self.places[:rows]
        from_arena = self.from_arena[:rows]
        in_message = np.zeros(rows, dtype=np.uint8)
        value_len = np.where(op == RAW_DELETE, 0, places[:, VALUE_LEN])
        columns = [
            pa.array(self.commit_ts[:rows].copy()),
            pa.array(self.start_ts[:rows].copy()),
            pa.array(op.copy()),
            _binary(*_gather(data, arena, in_message, places[:, KEY_OFF], places[:, KEY_LEN]), None),
            _binary(*_gather(data, arena, from_arena, places[:, VALUE_OFF], value_len), op != RAW_DELETE),
            _binary(*_gather(data, arena, from_arena, places[:, OLD_OFF], places[:, OLD_LEN]), places[:, OLD_LEN] > 0),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


def _gather(data: U8, arena: U8, from_arena: U8, off: I64, size: I64) -> tuple[U8, npt.NDArray[np.int32]]:
    """Copy byte strings out of two buffers into one; return it and the n + 1 offsets."""
    ends = np.cumsum(size, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if total > np.iinfo(np.int32).max:
        raise PenstockError("DECODE_FAILED", f"a region event with {total} bytes in one column")
    offsets = np.zeros(len(size) + 1, dtype=np.int32)
    offsets[1:] = ends
    out = np.empty(total, dtype=np.uint8)
    _copy_strings(data, arena, from_arena, off, size, out)
    return out, offsets


def _binary(data: U8, offsets: npt.NDArray[np.int32], valid: npt.NDArray[np.bool_] | None) -> pa.Array:
    rows = len(offsets) - 1
    bitmap = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), rows, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)])


def _concat(parts: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    if len(parts) <= 1:
        return parts[0] if parts else None
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


assert COMMIT == 2


@numba.njit(nogil=True, cache=True)
def _copy_strings(data, arena, from_arena, off, size, out):  # type: ignore[no-untyped-def]
    at = np.int64(out.ctypes.data)
    in_data = np.int64(data.ctypes.data)
    in_arena = np.int64(arena.ctypes.data)
    for row in range(len(size)):
        source = in_arena if from_arena[row] else in_data
        copy_bytes(np.uintp(at), np.uintp(source + off[row]), np.uintp(size[row]))
        at += size[row]


@numba.njit(nogil=True, cache=True)
def _compare(key, size, bound, bound_size):  # type: ignore[no-untyped-def]
    """Return -1, 0 or 1 as a key is smaller than, equal to or larger than a bound; both are given by their addresses."""
    for i in range(min(size, bound_size)):
        left, right = load_u8(np.uintp(key + i)), load_u8(np.uintp(bound + i))
        if left != right:
            return -1 if left < right else 1
    if size == bound_size:
        return 0
    return -1 if size < bound_size else 1


@numba.njit(nogil=True, cache=True)
def _match_entries(  # type: ignore[no-untyped-def]  # noqa: C901, PLR0912, PLR0915
    data, start_ts, commit_ts, kind, op, places, initialized, floor_ts, start_key, end_key,
    t_state, t_start_ts, t_op, t_places, t_arena, t_stat,
    o_commit_ts, o_start_ts, o_op, o_from_arena, o_places, o_waiting, counts,
):  # fmt: skip
    base = np.int64(data.ctypes.data)
    arena = np.int64(t_arena.ctypes.data)
    low, low_size = np.int64(start_key.ctypes.data), len(start_key)
    high, high_size = np.int64(end_key.ctypes.data), len(end_key)
    emitted = 0
    waiting = 0
    missing = 0
    for row in range(len(kind)):
        what = kind[row]
        if what == 5:
            continue
        off = places[row, 0]
        size = places[row, 1]
        slot = -1
        row_op = op[row]
        if what != 4:
            slot, free = find_slot(t_state, t_start_ts, t_places, arena, start_ts[row], base + off, size)
        if what == 1:
            if slot >= 0:
                if places[row, 3] == 0:
                    continue
                drop_slot(t_state, t_stat, slot)
                free = slot
            put_slot(t_state, t_start_ts, t_op, t_places, arena, t_stat, free, start_ts[row], row_op, base, places, row)
            continue
        if what == 3:
            if not initialized:
                o_waiting[waiting] = row
                waiting += 1
            elif slot >= 0:
                drop_slot(t_state, t_stat, slot)
            continue
        if what == 2:
            if not initialized and (slot < 0 or t_places[slot, 3] == 0):
                o_waiting[waiting] = row
                waiting += 1
                continue
            if slot < 0:
                if commit_ts[row] > floor_ts:
                    missing += 1
                continue
            if t_op[slot] != 0:
                row_op = t_op[slot]
            drop_slot(t_state, t_stat, slot)
        if commit_ts[row] <= floor_ts:
            continue
        if _compare(base + off, size, low, low_size) < 0 or (high_size > 0 and _compare(base + off, size, high, high_size) >= 0):
            continue
        if row_op == 0:
            return 1
        o_commit_ts[emitted] = commit_ts[row]
        o_start_ts[emitted] = start_ts[row]
        o_op[emitted] = row_op
        o_from_arena[emitted] = 1 if what == 2 else 0
        o_places[emitted, 0] = off
        o_places[emitted, 1] = size
        for part in range(2, 6):
            o_places[emitted, part] = t_places[slot, part] if what == 2 else places[row, part]
        emitted += 1
    counts[0] = emitted
    counts[1] = waiting
    counts[2] = missing
    return 0
