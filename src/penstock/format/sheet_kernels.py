"""What the kernels that write rows share: where values lie in Arrow buffers, whole numbers as digits, and where the bytes go.

Invariant: nothing outside the described buffers is read. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from penstock.kernels.jit import EMPTY_U8, U8, kernel
from penstock.kernels.memory import (
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_u8,
    store_u16,
)

NUMBER_CHARS_MAX = 20
ONE = np.uint64(1)
EIGHT = np.uint64(8)
LOW_BITS = np.uint64(0x0101010101010101)
HIGH_BITS = np.uint64(0x8080808080808080)
_PAIRS = np.frombuffer(b"".join(b"%02d" % i for i in range(100)), np.uint16)


class Space(Protocol):
    """Where bytes go: free space that can be written to, then taken over."""

    def reserve(self, size: int) -> U8:
        """Return free space, at least this large."""

    def advance(self, size: int) -> None:
        """Take over bytes that were written into the reserved space."""


class ByteSpace:
    """A space that gives its bytes at the end."""

    def __init__(self) -> None:
        self._parts: list[U8] = []
        self._open = EMPTY_U8

    def reserve(self, size: int) -> U8:
        """Return new free space of this size."""
        self._open = np.empty(size, np.uint8)
        return self._open

    def advance(self, size: int) -> None:
        """Keep the first bytes of the space."""
        self._parts.append(self._open[:size])

    def getvalue(self) -> bytes:
        """Return everything."""
        return b"".join(part.data for part in self._parts)


def fill(space: Space, rows: int, size: int, write: Callable[[int, U8], tuple[int, int]]) -> None:
    """Let a kernel write all rows: it gets the row to begin with and free space, and returns the row that it reached and the bytes."""
    done = 0
    while done < rows:
        reached, used = write(done, space.reserve(size))
        space.advance(used)
        if reached == done:
            # Not even one row fits.
            size *= 2
        done = reached


class Described(NamedTuple):
    """How a kernel finds the values of an array: how wide a value or an offset is, where its buffers lie, and its first row."""

    width: int
    validity: int
    offsets: int
    values: int
    first: int


def described(array: pa.Array) -> tuple[Described, int]:
    """Return where whole numbers, texts or bytes lie, and how many bytes the texts have. The caller keeps the array."""
    validity, *offsets, data = array.buffers()
    known = validity.address if validity is not None and array.null_count else 0
    address = data.address if data is not None else 0
    if not offsets:
        return Described(array.type.bit_width // 8, known, 0, address, array.offset), 0
    width = 8 if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) else 4
    bounds = np.frombuffer(offsets[0], np.int64 if width == 8 else np.int32)
    nbytes = int(bounds[array.offset + len(array)] - bounds[array.offset]) if len(array) else 0
    return Described(width, known, offsets[0].address, address, array.offset), nbytes


@kernel
def has_byte(word: np.uint64, pattern: np.uint64) -> bool:
    """Return whether one of eight bytes is that of which the pattern has eight."""
    # A byte of `other` is zero where the word has it.
    other = word ^ pattern
    return bool((other - LOW_BITS) & ~other & HIGH_BITS)


@kernel
def is_null(validity: np.uint64, at: np.int64) -> bool:
    """Return whether a value is NULL; without a validity buffer (address 0) none is."""
    return validity != 0 and not (load_u8(validity + np.uint64(at >> 3)) >> np.uint8(at & 7)) & 1


@kernel
def text_bounds(offsets: np.uint64, width: np.int64, row: np.int64) -> tuple[np.int64, np.int64]:
    """Return where a text begins and ends, by offsets of 4 or 8 bytes."""
    address = offsets + np.uint64(row * width)
    if width == 4:
        return np.int64(load_i32(address)), np.int64(load_i32(address + np.uint64(4)))
    return load_i64(address), load_i64(address + EIGHT)


@kernel
def put_signed(values: np.uint64, width: np.int64, row: np.int64, to: np.uint64) -> np.uint64:
    """Put the digits of a signed number of so many bytes; return the address after them."""
    address = values + np.uint64(row * width)
    if width == 4:
        number = np.int64(load_i32(address))
    elif width == 8:
        number = np.int64(load_i64(address))
    elif width == 2:
        number = np.int64(load_i16(address))
    else:
        number = np.int64(load_i8(address))
    if number < 0:
        store_u8(to, np.uint8(45))
        return _put_digits(np.uint64(~number) + ONE, to + ONE)
    return _put_digits(np.uint64(number), to)


@kernel
def put_unsigned(values: np.uint64, width: np.int64, row: np.int64, to: np.uint64) -> np.uint64:
    """Put the digits of an unsigned number of so many bytes; return the address after them."""
    address = values + np.uint64(row * width)
    if width == 4:
        number = np.uint64(load_u32(address))
    elif width == 8:
        number = np.uint64(load_u64(address))
    elif width == 2:
        number = np.uint64(load_u16(address))
    else:
        number = np.uint64(load_u8(address))
    return _put_digits(number, to)


@kernel
def _put_digits(value: np.uint64, to: np.uint64) -> np.uint64:
    size = ONE
    bound = np.uint64(10)
    while value >= bound:
        size += ONE
        if size == np.uint64(NUMBER_CHARS_MAX):
            break
        bound *= np.uint64(10)
    at = to + size
    rest = value
    while rest >= np.uint64(100):
        hundredth = rest // np.uint64(100)
        at -= np.uint64(2)
        store_u16(at, _PAIRS[rest - hundredth * np.uint64(100)])
        rest = hundredth
    if rest >= np.uint64(10):
        store_u16(at - np.uint64(2), _PAIRS[rest])
    else:
        store_u8(at - ONE, np.uint8(np.uint64(48) + rest))
    return to + size
