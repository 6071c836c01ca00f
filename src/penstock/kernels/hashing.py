"""Hashes of byte strings: one of 64 bits for tables in memory, and those of 128 and 64 bits whose values are kept or decide an order.

Invariant: from the first release on, ``hash_numbers``, ``hash_texts``, ``cell_hashes`` and ``fold_hashes`` always give the same. The first
three make the keys of rows without a key in event stores, and the last decides the order in which a re-snapshot is delivered. ``hash64``
may change at any time, because its values never leave the process. Runs anywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.jit import I32, I64, U8, U64, Flags, kernel
from penstock.kernels.memory import load_u8, load_u64

HASH128_BYTES = 16
FNV_START = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_SEPARATOR = np.uint64(0xFF)
_NULL = np.uint64(0xA0761D6478BD642F)


@kernel
def _mix(value: np.uint64) -> np.uint64:
    """Let every bit of a number play on every other."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@kernel
def hash64(data: Any, size: Any, seed: Any) -> np.uint64:
    """Return a hash of the bytes at an address, together with a number."""
    value = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(size)
    at, end = np.uint64(data), np.uint64(data) + np.uint64(size)
    while at + np.uint64(8) <= end:
        value = (value ^ load_u64(at)) * np.uint64(0xFF51AFD7ED558CCD)
        value ^= value >> np.uint64(32)
        at += np.uint64(8)
    while at < end:
        value = (value ^ np.uint64(load_u8(at))) * _FNV_PRIME
        at += np.uint64(1)
    value ^= value >> np.uint64(29)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(32))


@kernel
def fold_hashes(offsets: I64, data: U8, total: U64) -> None:
    """Fold one value per row into its FNV-1a hash."""
    for row in range(len(total)):
        value = total[row]
        for at in range(offsets[row], offsets[row + 1]):
            value = (value ^ np.uint64(data[at])) * _FNV_PRIME
        total[row] = (value ^ _SEPARATOR) * _FNV_PRIME


@kernel
def hash_numbers(numbers: U64, nulls: Flags, one: U64, two: U64) -> None:
    """Fold a column of numbers into two hashes per row; a NULL is told apart from every number."""
    for row in range(len(one)):
        if nulls[row]:
            one[row], two[row] = _mix(one[row] + _NULL), _mix(two[row] ^ _NULL)
        else:
            one[row], two[row] = _mix(one[row] ^ numbers[row]), _mix(two[row] + numbers[row])


@kernel
def hash_texts(data: U8, offsets: I64, nulls: Flags, one: U64, two: U64) -> None:
    """Fold a column of texts into two hashes per row: the length, then words of 8 bytes; a NULL is told apart from every text."""
    base = np.uint64(data.ctypes.data)
    for row in range(len(one)):
        if nulls[row]:
            one[row], two[row] = _mix(one[row] + _NULL), _mix(two[row] ^ _NULL)
            continue
        at, end = base + np.uint64(offsets[row]), base + np.uint64(offsets[row + 1])
        first, second = _mix(one[row] ^ (end - at)), _mix(two[row] + (end - at))
        while at + np.uint64(8) <= end:
            word = load_u64(at)
            first, second = _mix(first ^ word), _mix(second + word)
            at += np.uint64(8)
        if at < end:
            word = np.uint64(0)
            while at < end:
                end -= np.uint64(1)
                word = (word << np.uint64(8)) | np.uint64(load_u8(end))
            first, second = _mix(first ^ word), _mix(second + word)
        one[row], two[row] = first, second


@kernel
def cell_hashes(data: U8, starts: I64, lengths: I32, out: U8) -> None:
    """Write a 128-bit hash of each row of cells, (columns, rows) arrays; a negative length says what a cell is that has no bytes."""
    for row in range(starts.shape[1]):
        one, two = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
        for column in range(starts.shape[0]):
            length = lengths[column, row]
            one = _mix(one ^ np.uint64(length + 3))
            two = _mix(two + np.uint64(length + 3))
            word, filled = np.uint64(0), 0
            for at in range(max(length, 0)):
                word = (word << np.uint64(8)) | np.uint64(data[starts[column, row] + at])
                filled += 1
                if filled == 8:
                    one = _mix(one ^ word)
                    two = _mix(two + word)
                    word, filled = np.uint64(0), 0
            if filled:
                one = _mix(one ^ word)
                two = _mix(two + word)
        _put_big_endian(one, two, row, out)


@kernel
def _put_big_endian(one: np.uint64, two: np.uint64, row: int, out: U8) -> None:
    for at in range(8):
        shift = np.uint64(56 - 8 * at)
        out[row * HASH128_BYTES + at] = np.uint8((one >> shift) & np.uint64(255))
        out[row * HASH128_BYTES + 8 + at] = np.uint8((two >> shift) & np.uint64(255))
