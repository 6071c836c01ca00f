"""The prewrites of one region that wait for their commit or rollback, as a hash table in arrays.

Keyed by (start ts, key), open addressing with linear probing; the bytes of key, value and old value lie in one arena. The kernels here
and in ``matcher.py`` touch single entries, Python only whole messages. Growing, dropping dead slots and compacting the arena are one
step: a rebuild, made before a message is matched, so that places in the arena hold while a message is worked on. Runs in the log service.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from penstock.puller.raw_memory import copy_bytes, load_u8, load_u64

EMPTY, LIVE, DEAD = 0, 1, 2
_SLOTS_MIN = 64
_ARENA_MIN = 4096
_ARENA_KEEP = 1 << 20


class PrewriteTable:
    """The arrays. Not thread safe: the shard of the region owns it."""

    __slots__ = ("arena", "op", "places", "start_ts", "stat", "state")

    def __init__(self) -> None:
        self.state: npt.NDArray[np.uint8]
        self.start_ts: npt.NDArray[np.uint64]
        self.op: npt.NDArray[np.uint8]
        self.places: npt.NDArray[np.int64]
        self.arena: npt.NDArray[np.uint8]
        self.stat = np.zeros(3, dtype=np.int64)
        """Live slots, dead slots, used bytes of the arena."""
        self._allocate(0, 0)

    @property
    def live(self) -> int:
        """Return how many prewrites wait."""
        return int(self.stat[0])

    @property
    def nbytes(self) -> int:
        """Return the memory that the arrays take."""
        return sum(int(a.nbytes) for a in self.arrays())

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """Return what the kernels work on, in their order."""
        return (self.state, self.start_ts, self.op, self.places, self.arena, self.stat)

    def reserve(self, prewrites: int, nbytes: int) -> None:
        """Make room for so many more prewrites and bytes."""
        live, dead, used = (int(x) for x in self.stat)
        if live == 0 and len(self.arena) > _ARENA_KEEP and nbytes < _ARENA_KEEP:
            self._allocate(_SLOTS_MIN, _ARENA_KEEP)
            used = dead = 0
        elif live == 0 and used:
            self.stat[2] = used = 0
        slots_fit = (live + dead + prewrites) * 2 <= len(self.state)
        if slots_fit and used + nbytes <= len(self.arena):
            return
        old = self.arrays()
        live_bytes = int(self.places[self.state == LIVE][:, 1::2].sum()) if live else 0
        self._allocate(_power_of_two(4 * (live + prewrites), _SLOTS_MIN), _power_of_two(live_bytes + nbytes, _ARENA_MIN))
        if live:
            _rebuild(*old, *self.arrays())

    def _allocate(self, slots: int, arena_bytes: int) -> None:
        self.state = np.zeros(slots, dtype=np.uint8)
        self.start_ts = np.zeros(slots, dtype=np.uint64)
        self.op = np.zeros(slots, dtype=np.uint8)
        self.places = np.zeros((slots, 6), dtype=np.int64)
        self.arena = np.zeros(arena_bytes, dtype=np.uint8)
        self.stat = np.zeros(3, dtype=np.int64)


def _power_of_two(at_least: int, floor: int) -> int:
    return 1 << (max(at_least, floor) - 1).bit_length()


@numba.njit(nogil=True, cache=True)
def hash_key(start_ts, key, size):  # type: ignore[no-untyped-def]
    """Return a 64-bit hash of (start ts, key); the key is given by its address."""
    h = np.uint64(start_ts) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(size)
    at = 0
    while at + 8 <= size:
        h = (h ^ load_u64(np.uintp(key + at))) * np.uint64(0xFF51AFD7ED558CCD)
        h ^= h >> np.uint64(32)
        at += 8
    while at < size:
        h = (h ^ np.uint64(load_u8(np.uintp(key + at)))) * np.uint64(1099511628211)
        at += 1
    h ^= h >> np.uint64(29)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(32))


@numba.njit(nogil=True, cache=True)
def same_bytes(left, right, size):  # type: ignore[no-untyped-def]
    """Return whether two byte strings, given by their addresses, are equal."""
    at = 0
    while at + 8 <= size:
        if load_u64(np.uintp(left + at)) != load_u64(np.uintp(right + at)):
            return False
        at += 8
    while at < size:
        if load_u8(np.uintp(left + at)) != load_u8(np.uintp(right + at)):
            return False
        at += 1
    return True


@numba.njit(nogil=True, cache=True)
def find_slot(state, start_ts, places, arena, ts, key, size):  # type: ignore[no-untyped-def]
    """Return (slot of the prewrite or -1, first slot where it could be put or -1). ``arena`` and ``key`` are addresses."""
    slots = len(state)
    free = np.int64(-1)
    if slots == 0:
        return np.int64(-1), free
    mask = np.int64(slots - 1)
    at = np.int64(hash_key(ts, key, size)) & mask
    for _ in range(slots):
        if state[at] == 0:
            return np.int64(-1), free if free >= 0 else at
        if state[at] == 2:
            if free < 0:
                free = at
        elif start_ts[at] == ts and places[at, 1] == size and same_bytes(arena + places[at, 0], key, size):
            return at, free
        at = (at + 1) & mask
    return np.int64(-1), free


@numba.njit(nogil=True, cache=True)
def put_slot(state, start_ts, op, places, arena, stat, slot, ts, op_value, data, sources, row):  # type: ignore[no-untyped-def]
    """Fill a free slot with a prewrite whose bytes stand at the places of ``sources[row]`` from the address ``data`` on."""
    if state[slot] == 2:
        stat[1] -= 1
    state[slot] = 1
    start_ts[slot] = ts
    op[slot] = op_value
    used = stat[2]
    for part in range(0, 6, 2):
        size = sources[row, part + 1]
        places[slot, part] = used
        places[slot, part + 1] = size
        copy_bytes(np.uintp(arena + used), np.uintp(data + sources[row, part]), np.uintp(size))
        used += size
    stat[2] = used
    stat[0] += 1


@numba.njit(nogil=True, cache=True)
def drop_slot(state, stat, slot):  # type: ignore[no-untyped-def]
    """Remove a prewrite; its bytes stay in the arena until the next rebuild."""
    state[slot] = 2
    stat[0] -= 1
    stat[1] += 1


@numba.njit(nogil=True, cache=True)
def _rebuild(old_state, old_ts, old_op, old_places, old_arena, old_stat, state, start_ts, op, places, arena, stat):  # type: ignore[no-untyped-def]
    source = np.int64(old_arena.ctypes.data)
    target = np.int64(arena.ctypes.data)
    for slot in range(len(old_state)):
        if old_state[slot] == 1:
            ts = old_ts[slot]
            _, free = find_slot(state, start_ts, places, target, ts, source + old_places[slot, 0], old_places[slot, 1])
            put_slot(state, start_ts, op, places, target, stat, free, ts, old_op[slot], source, old_places, slot)
