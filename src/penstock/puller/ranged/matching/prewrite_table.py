"""The prewrites of one region that wait for their commit or rollback, as a hash table in arrays.

Keyed by (start ts, key), open addressing with linear probing; the bytes of key, value and old value lie in one arena, end to end for one
prewrite. Removing moves later slots back, so there are no dead slots and the table is rebuilt only to grow. What is dropped stays in the
arena until it is full; then what lives moves to a second arena, and the two change places. Both happen before a message is matched, so
places in the arena hold while it is worked on. The kernels here and in ``matcher.py`` touch single entries, Python only whole
messages. Runs in the log service.
"""

from __future__ import annotations

import numpy as np

from penstock.kernels.byte_ranges import same_bytes
from penstock.kernels.hashing import hash64
from penstock.kernels.jit import I64, U8, kernel
from penstock.kernels.memory import copy_bytes, load_i64, signed, store_u64
from penstock.puller.ranged.matching.wire_scan import KEY_LEN, KEY_OFF, OLD_LEN, OP, ROW_WORDS, VALUE_LEN

HASH = 1
"""A slot has the columns of a scanned row, but where a row has its commit ts, the hash of the prewrite: 0 in an empty slot."""
_SLOT_BYTES = ROW_WORDS * 8
_SLOTS_MIN = 64
_SLOTS_KEEP = 1 << 14
_ARENA_MIN = 4096
_ARENA_KEEP = 1 << 20


class PrewriteTable:
    """The arrays. Not thread safe: the shard of the region owns it."""

    __slots__ = ("_spare", "arena", "slots", "stat")

    def __init__(self) -> None:
        self.slots: I64 = np.zeros((0, ROW_WORDS), dtype=np.int64)
        self.arena: U8 = np.empty(0, dtype=np.uint8)
        self._spare = self.arena
        self.stat: I64 = np.zeros(3, dtype=np.int64)
        """Prewrites, their bytes, used bytes of the arena."""

    @property
    def live(self) -> int:
        """Return how many prewrites wait."""
        return int(self.stat[0])

    @property
    def nbytes(self) -> int:
        """Return the memory that the arrays take."""
        return len(self.slots) * _SLOT_BYTES + len(self.arena) + len(self._spare)

    def reserve(self, prewrites: int, nbytes: int) -> None:
        """Make room for so many more prewrites and bytes."""
        live, live_bytes, used = self.stat.tolist()
        if live == 0:
            self.stat[2] = used = 0
            if (len(self.arena) > _ARENA_KEEP and nbytes < _ARENA_KEEP) or (len(self.slots) > _SLOTS_KEEP and prewrites < _SLOTS_KEEP // 8):
                self.slots = np.zeros((_SLOTS_MIN, ROW_WORDS), dtype=np.int64)
                self.arena = self._spare = np.empty(0, dtype=np.uint8)
        if (live + prewrites) * 2 > len(self.slots):
            slots = np.zeros((_power_of_two(4 * (live + prewrites), _SLOTS_MIN), ROW_WORDS), dtype=np.int64)
            if live:
                _move_slots(self.slots, slots)
            self.slots = slots
        if used + nbytes > len(self.arena):
            self._make_room(live, live_bytes + nbytes)

    def _make_room(self, live: int, wanted: int) -> None:
        # Four times what is wanted: moving what lives must be rare compared with what is put in between.
        size = len(self.arena) if 2 * wanted <= len(self.arena) else _power_of_two(4 * wanted, _ARENA_MIN)
        target = self._spare if len(self._spare) == size and self._spare is not self.arena else np.empty(size, dtype=np.uint8)
        self.stat[2] = _move_bytes(self.slots, self.arena, target) if live else 0
        # A large arena is not kept twice.
        self._spare = self.arena if size == len(self.arena) and size <= _ARENA_KEEP else target
        self.arena = target


def _power_of_two(at_least: int, floor: int) -> int:
    return 1 << (max(at_least, floor) - 1).bit_length()


@kernel
def prewrite_hash(start_ts: int, key: int, size: int) -> int:
    """Return an odd hash of (start ts, key); the key is given by its address."""
    return signed(hash64(key, size, start_ts)) | signed(1)


@kernel
def word(row: int, column: int) -> int:
    """Return a column of the row or slot at an address, as a signed number."""
    return int(load_i64(np.uint64(row + column * 8)))


@kernel
def _home(hashed: int, mask: int) -> int:
    """Return where a prewrite would like to be; the lowest bit of the hash says nothing."""
    return (hashed >> 1) & mask


@kernel
def find_slot(slots: int, mask: int, arena: int, ts: int, key: int, size: int, hashed: int) -> tuple[int, int]:
    """Return (slot of the prewrite or 0, the empty slot where the search ended or 0); slots, arena and key are addresses."""
    if mask < 0:
        return signed(0), signed(0)
    at = _home(hashed, mask)
    # The table is never more than half full, so there is an empty slot.
    while True:
        slot = slots + at * _SLOT_BYTES
        found = word(slot, HASH)
        if found == 0:
            return signed(0), slot
        if found == hashed and word(slot, 0) == ts and word(slot, KEY_LEN) == size and same_bytes(arena + word(slot, KEY_OFF), key, size):
            return slot, signed(0)
        at = (at + 1) & mask


@kernel
def put_slot(slot: int, arena: int, stat: int, data: int, row: int, hashed: int) -> None:
    """Fill an empty slot with the prewrite at ``row``, whose bytes stand at its places from the address ``data`` on."""
    store_u64(np.uint64(slot), np.uint64(word(row, 0)))
    store_u64(np.uint64(slot + HASH * 8), np.uint64(hashed))
    store_u64(np.uint64(slot + OP * 8), np.uint64(word(row, OP)))
    began = word(stat, 2)
    used = began
    for part in range(KEY_OFF, ROW_WORDS, 2):
        size = word(row, part + 1)
        store_u64(np.uint64(slot + part * 8), np.uint64(used))
        store_u64(np.uint64(slot + part * 8 + 8), np.uint64(size))
        copy_bytes(np.uint64(arena + used), np.uint64(data + word(row, part)), np.uint64(size))
        used += size
    store_u64(np.uint64(stat), np.uint64(word(stat, 0) + 1))
    store_u64(np.uint64(stat + 8), np.uint64(word(stat, 1) + used - began))
    store_u64(np.uint64(stat + 16), np.uint64(used))


@kernel
def drop_slot(slots: int, mask: int, slot: int, stat: int) -> None:
    """Remove a prewrite: slots behind it that would rather be here move up. Its bytes stay in the arena for now."""
    size = word(slot, KEY_LEN) + word(slot, VALUE_LEN) + word(slot, OLD_LEN)
    store_u64(np.uint64(stat), np.uint64(word(stat, 0) - 1))
    store_u64(np.uint64(stat + 8), np.uint64(word(stat, 1) - size))
    hole = (slot - slots) // _SLOT_BYTES
    at = hole
    while True:
        at = (at + 1) & mask
        follower = slots + at * _SLOT_BYTES
        hashed = word(follower, HASH)
        if hashed == 0:
            break
        # It may move up only if its home is not behind the hole, counted around the end of the table.
        if ((at - _home(hashed, mask)) & mask) >= ((at - hole) & mask):
            copy_bytes(np.uint64(slots + hole * _SLOT_BYTES), np.uint64(follower), np.uint64(_SLOT_BYTES))
            hole = at
    store_u64(np.uint64(slots + hole * _SLOT_BYTES + HASH * 8), np.uint64(0))


@kernel
def _move_slots(source: I64, target: I64) -> None:
    """Put all slots of a table into a larger one."""
    mask = len(target) - 1
    for row in range(len(source)):
        if source[row, HASH] != 0:
            at = _home(source[row, HASH], mask)
            while target[at, HASH] != 0:
                at = (at + 1) & mask
            target[at, :] = source[row, :]


@kernel
def _move_bytes(slots: I64, source: U8, target: U8) -> int:
    """Copy the bytes of all prewrites to another arena, end to end; return how many there are."""
    from_bytes = signed(source.ctypes.data)
    to_bytes = signed(target.ctypes.data)
    used = 0
    for row in range(len(slots)):
        if slots[row, HASH] != 0:
            began = slots[row, KEY_OFF]
            size = slots[row, KEY_LEN] + slots[row, VALUE_LEN] + slots[row, OLD_LEN]
            copy_bytes(np.uint64(to_bytes + used), np.uint64(from_bytes + began), np.uint64(size))
            for part in range(KEY_OFF, ROW_WORDS, 2):
                slots[row, part] += used - began
            used += size
    return used
