"""Runs of bytes: whether two are equal, which comes first, and a copy of short ones; by address and size, or as parts of arrays.

Sizes may be signed or not; addresses are taken as they come from ``array.ctypes.data``. Eight bytes are looked at together as long as there
are eight. Nothing outside the given runs is read or written. Runs anywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.jit import U8, kernel
from penstock.kernels.memory import load_u8, load_u64, store_u8, store_u64

_ONE = np.uint64(1)
_EIGHT = np.uint64(8)


@kernel
def same_bytes(left: Any, right: Any, size: Any) -> bool:
    """Return whether two runs of one size are equal."""
    at, end = np.uint64(0), np.uint64(size)
    one, other = np.uint64(left), np.uint64(right)
    while at + _EIGHT <= end:
        if load_u64(one + at) != load_u64(other + at):
            return False
        at += _EIGHT
    while at < end:
        if load_u8(one + at) != load_u8(other + at):
            return False
        at += _ONE
    return True


@kernel
def compare_bytes(left: Any, left_size: Any, right: Any, right_size: Any) -> int:
    """Return -1, 0 or 1 as the left run is smaller than, equal to or larger than the right one; a beginning is smaller than the whole."""
    at, end = np.uint64(0), np.uint64(min(left_size, right_size))
    one, other = np.uint64(left), np.uint64(right)
    while at + _EIGHT <= end and load_u64(one + at) == load_u64(other + at):
        at += _EIGHT
    while at < end:
        mine, theirs = load_u8(one + at), load_u8(other + at)
        if mine != theirs:
            return -1 if mine < theirs else 1
        at += _ONE
    if left_size == right_size:
        return 0
    return -1 if left_size < right_size else 1


@kernel
def same_range(left: U8, at: int, end: int, right: U8, other: int, other_end: int) -> bool:
    """Return whether parts of two arrays are equal."""
    if end - at != other_end - other:
        return False
    return same_bytes(np.uint64(left.ctypes.data) + np.uint64(at), np.uint64(right.ctypes.data) + np.uint64(other), end - at)


@kernel
def compare_ranges(left: U8, at: int, end: int, right: U8, other: int, other_end: int) -> int:
    """Return how a part of an array compares with that of another, as ``compare_bytes`` does."""
    here, there = np.uint64(left.ctypes.data) + np.uint64(at), np.uint64(right.ctypes.data) + np.uint64(other)
    return compare_bytes(here, end - at, there, other_end - other)


@kernel
def copy_short(source: np.uint64, to: np.uint64, size: np.int64) -> None:
    """Copy a run that is mostly shorter than a call of ``copy_bytes`` is worth."""
    at = np.uint64(0)
    whole = np.uint64(size & ~7)
    while at < whole:
        store_u64(to + at, load_u64(source + at))
        at += _EIGHT
    end = np.uint64(size)
    while at < end:
        store_u8(to + at, load_u8(source + at))
        at += _ONE
