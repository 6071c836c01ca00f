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

import msgspec
import numpy as np

from penstock.kernels.byte_ranges import compare_bytes
from penstock.kernels.jit import I64, INT32_MAX, U8, kernel, short_kernel
from penstock.kernels.memory import signed
from penstock.model.errors import PenstockError
from penstock.puller.ranged.matching.committed_rows import (
    EMITTED_OLD,
    EMITTED_OLD_SIZE,
    EMITTED_OP,
    EMITTED_ROW,
    EMITTED_VALUE,
    EMITTED_VALUE_SIZE,
    HIGH_TS,
    KEY_BYTES,
    LOW_TS,
    OLD_BYTES,
    OLD_NULLS,
    ROWS,
    VALUE_BYTES,
    VALUE_NULLS,
    Committed,
    committed_rows,
    joined,
    lay_out,
)
from penstock.puller.ranged.matching.prewrite_table import PrewriteTable, drop_slot, find_slot, prewrite_hash, put_slot, word
from penstock.puller.ranged.matching.wire_scan import (
    COMMIT,
    COMMIT_TS,
    COMMITTED,
    INITIALIZED,
    KEY_LEN,
    KEY_OFF,
    OLD_LEN,
    OLD_OFF,
    OP,
    OP_DELETE,
    OP_UNKNOWN,
    PREWRITE,
    ROLLBACK,
    ROW_WORDS,
    START_TS,
    TYPE,
    VALUE_LEN,
    VALUE_OFF,
    ScannedMessage,
)


class Entries(msgspec.Struct, frozen=True):
    """Entries of one region as rows of a scanned message, with the bytes that their places point into."""

    data: U8
    rows: I64

    @classmethod
    def of(cls, message: ScannedMessage, low: int, high: int) -> Entries:
        """Return the entries ``low:high`` of a message."""
        return cls(message.data, message.rows[low:high])

    def cut(self, low: int, high: int) -> Entries:
        """Return a part."""
        return Entries(self.data, self.rows[low:high])

    def own(self, chosen: I64) -> Entries:
        """Return chosen rows with their keys copied, so that the message can go."""
        rows = self.rows[chosen]
        return Entries(_own_keys(self.data, rows), rows)


_NO_PREWRITES = PrewriteTable()
"""Shared by all regions that never saw a prewrite: without slots nothing is found in it, and nothing is put into it."""


class RegionMatcher:
    """The matcher of one registration of one region. Not thread safe: its shard owns it."""

    __slots__ = ("_cached", "_end", "_start", "_table", "initialized")

    def __init__(self, start_key: bytes = b"", end_key: bytes = b"") -> None:
        self._start = start_key
        self._end = end_key
        self._table = _NO_PREWRITES
        self._cached: list[Entries] | None = None
        self.initialized = False

    @property
    def pending(self) -> int:
        """Return how many prewrites wait for their end."""
        return self._table.live

    @property
    def nbytes(self) -> int:
        """Return the memory that waiting prewrites, commits and rollbacks take."""
        if self._cached is None:
            return self._table.nbytes
        return self._table.nbytes + sum(int(c.rows.nbytes + c.data.nbytes) for c in self._cached)

    def feed(self, entries: Entries, floor_ts: int = 0) -> Committed | None:
        """Take the entries of one region event; return the committed rows in order, or None if there are none.

        Raises:
            PenstockError: ``PREWRITE_MISSING`` for a commit that nothing matches, ``DECODE_FAILED`` for a row without an operation.
        """
        if self.initialized:
            return self._match(entries, floor_ts)
        marks = np.flatnonzero(entries.rows[:, TYPE] == INITIALIZED)
        if len(marks) == 0:
            return self._match(entries, floor_ts)
        at = int(marks[0])
        before = self._match(entries.cut(0, at), floor_ts)
        self.initialized = True
        cached, self._cached = self._cached or [], None
        parts = [before, *(self._match(c, floor_ts, missing_is_error=False) for c in cached)]
        parts.append(self._match(entries.cut(at + 1, len(entries.rows)), floor_ts))
        return joined([p for p in parts if p is not None])

    def _match(self, entries: Entries, floor_ts: int, missing_is_error: bool = True) -> Committed | None:
        if len(entries.rows) == 0:
            return None
        prewrites, nbytes = _prewrite_needs(entries.rows)
        if prewrites:
            if self._table is _NO_PREWRITES:
                self._table = PrewriteTable()
            self._table.reserve(prewrites, nbytes)
        table = self._table
        match = _match_entries if len(entries.rows) > _GIL_HELD_ROWS_MAX else _match_entries_holding_gil
        failure, missing, waiting, counts, narrow, wide = match(
            entries.data,
            entries.rows,
            self.initialized,
            floor_ts,
            np.frombuffer(self._start, dtype=np.uint8),
            np.frombuffer(self._end, dtype=np.uint8),
            table.slots,
            table.arena,
            table.stat,
        )
        if failure:
            raise PenstockError("DECODE_FAILED", _FAILURES[failure])
        if missing and missing_is_error:
            raise PenstockError("PREWRITE_MISSING", f"{missing} commits without a prewrite in an initialised region")
        if len(waiting):
            if self._cached is None:
                self._cached = []
            self._cached.append(entries.own(waiting))
        return committed_rows(counts.tolist(), narrow, wide) if counts[ROWS] else None


_GIL_HELD_ROWS_MAX = 32
"""As for ``wire_scan.GIL_HELD_BYTES_MAX``."""

_NO_OPERATION, _TOO_LARGE = 1, 2
_FAILURES = {_NO_OPERATION: "a committed row has no operation", _TOO_LARGE: "a region event has more than 2 GiB in one column"}

_Matched = tuple[int, int, I64, I64, U8, U8]


@short_kernel
def _prewrite_needs(rows: I64) -> tuple[int, int]:
    """Return how many prewrites there are, and their bytes."""
    count = 0
    nbytes = 0
    for row in range(len(rows)):
        if rows[row, TYPE] == PREWRITE:
            count += 1
            nbytes += rows[row, KEY_LEN] + rows[row, VALUE_LEN] + rows[row, OLD_LEN]
    return count, nbytes


@kernel
def _own_keys(data: U8, rows: I64) -> U8:
    """Return the keys of rows end to end, and let the rows point there; their values are forgotten."""
    total = 0
    for row in range(len(rows)):
        total += rows[row, KEY_LEN]
    out = np.empty(total, dtype=np.uint8)
    at = 0
    for row in range(len(rows)):
        size = rows[row, KEY_LEN]
        out[at : at + size] = data[rows[row, KEY_OFF] : rows[row, KEY_OFF] + size]
        rows[row, KEY_OFF] = at
        rows[row, VALUE_OFF : OLD_LEN + 1] = 0
        at += size
    return out


@kernel
def _match_entries(  # noqa: C901, PLR0912, PLR0915
    data: U8, rows: I64, initialized: bool, floor_ts: int, start_key: U8, end_key: U8, slots: I64, arena_bytes: U8, stat: I64
) -> _Matched:
    """Match rows in their order; return (failure, missing prewrites, rows that wait, counts, and the two pieces of ``lay_out``)."""
    base = signed(data.ctypes.data)
    arena = signed(arena_bytes.ctypes.data)
    first_slot = signed(slots.ctypes.data)
    mask = signed(len(slots) - 1)
    stats = signed(stat.ctypes.data)
    first_row = signed(rows.ctypes.data)
    low, low_size = signed(start_key.ctypes.data), len(start_key)
    high, high_size = signed(end_key.ctypes.data), len(end_key)
    floor = np.uint64(floor_ts)
    emitted = np.empty((len(rows), 6), dtype=np.int64)
    waiting = np.empty(len(rows) if not initialized else 0, dtype=np.int64)
    counts = np.zeros(8, dtype=np.int64)
    nothing = np.empty(0, dtype=np.uint8)
    low_ts = ~np.uint64(0)
    high_ts = np.uint64(0)
    count = 0
    waits = 0
    missing = 0
    key_bytes = 0
    value_bytes = 0
    old_bytes = 0
    value_nulls = 0
    old_nulls = 0
    for at in range(len(rows)):
        what = rows[at, TYPE]
        if what == INITIALIZED:
            continue
        row = first_row + at * (ROW_WORDS * 8)
        key = base + rows[at, KEY_OFF]
        size = rows[at, KEY_LEN]
        op = rows[at, OP]
        commit_ts = np.uint64(rows[at, COMMIT_TS])
        slot = signed(0)
        empty = signed(0)
        hashed = signed(0)
        if what != COMMITTED:
            hashed = prewrite_hash(rows[at, START_TS], key, size)
            slot, empty = find_slot(first_slot, mask, arena, rows[at, START_TS], key, size, hashed)
        if what == PREWRITE:
            if slot != 0:
                if rows[at, VALUE_LEN] == 0:
                    continue
                drop_slot(first_slot, mask, slot, stats)
                slot, empty = find_slot(first_slot, mask, arena, rows[at, START_TS], key, size, hashed)
            put_slot(empty, arena, stats, base, row, hashed)
            continue
        if what == ROLLBACK:
            if not initialized:
                waiting[waits] = at
                waits += 1
            elif slot != 0:
                drop_slot(first_slot, mask, slot, stats)
            continue
        value, value_size = base + rows[at, VALUE_OFF], rows[at, VALUE_LEN]
        old, old_size = base + rows[at, OLD_OFF], rows[at, OLD_LEN]
        if what == COMMIT:
            if not initialized and (slot == 0 or word(slot, VALUE_LEN) == 0):
                waiting[waits] = at
                waits += 1
                continue
            if slot == 0:
                if commit_ts > floor:
                    missing += 1
                continue
            if word(slot, OP) != OP_UNKNOWN:
                op = word(slot, OP)
            value, value_size = arena + word(slot, VALUE_OFF), word(slot, VALUE_LEN)
            old, old_size = arena + word(slot, OLD_OFF), word(slot, OLD_LEN)
            drop_slot(first_slot, mask, slot, stats)
        if commit_ts <= floor:
            continue
        if compare_bytes(key, size, low, low_size) < 0 or (high_size > 0 and compare_bytes(key, size, high, high_size) >= 0):
            continue
        if op == OP_UNKNOWN:
            return _NO_OPERATION, missing, waiting[:0], counts, nothing, nothing
        low_ts = min(low_ts, commit_ts)
        high_ts = max(high_ts, commit_ts)
        emitted[count, EMITTED_ROW] = at
        emitted[count, EMITTED_OP] = op
        emitted[count, EMITTED_VALUE] = value
        emitted[count, EMITTED_VALUE_SIZE] = value_size
        emitted[count, EMITTED_OLD] = old
        emitted[count, EMITTED_OLD_SIZE] = old_size
        key_bytes += size
        old_bytes += old_size
        if op == OP_DELETE:
            value_nulls += 1
        else:
            value_bytes += value_size
        if old_size == 0:
            old_nulls += 1
        count += 1
    if max(key_bytes, value_bytes, old_bytes) > INT32_MAX:
        return _TOO_LARGE, missing, waiting[:0], counts, nothing, nothing
    counts[ROWS] = count
    counts[KEY_BYTES] = key_bytes
    counts[VALUE_BYTES] = value_bytes
    counts[OLD_BYTES] = old_bytes
    counts[VALUE_NULLS] = value_nulls
    counts[OLD_NULLS] = old_nulls
    counts[LOW_TS] = signed(low_ts)
    counts[HIGH_TS] = signed(high_ts)
    if count == 0:
        return 0, missing, waiting[:waits], counts, nothing, nothing
    narrow, wide = lay_out(base, rows, emitted, counts)
    return 0, missing, waiting[:waits], counts, narrow, wide


@short_kernel
def _match_entries_holding_gil(
    data: U8, rows: I64, initialized: bool, floor_ts: int, start_key: U8, end_key: U8, slots: I64, arena_bytes: U8, stat: I64
) -> _Matched:
    """Do the same, for few rows."""
    return _match_entries(data, rows, initialized, floor_ts, start_key, end_key, slots, arena_bytes, stat)
