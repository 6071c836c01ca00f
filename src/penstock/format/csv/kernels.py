"""Compiled kernels that lay CSV fields into rows and take them out again.

Encoding works column by column on one chunk: first every column adds its field lengths to the row lengths, then every column puts
its fields at the row positions and moves them on. Decoding is one scan that notes where each field begins and ends, then one pass
per column. Kernels release the interpreter lock, are cached on disk, and know no Python objects. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt

_F = TypeVar("_F", bound=Callable[..., Any])
jit: Callable[[_F], _F] = numba.njit(cache=True, nogil=True)

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

QUOTED = 0
ESCAPED = 1
BARE = 2

_BACKSLASH = 92
_CR = 13
_LF = 10


@jit
def _delimiter_at(data: Bytes, at: int, end: int, delimiter: Bytes) -> bool:
    if at + len(delimiter) > end:
        return False
    for i in range(len(delimiter)):  # noqa: SIM110 - numba compiles loops, not generators
        if data[at + i] != delimiter[i]:
            return False
    return True


@jit
def _tail_overlap(data: Bytes, at: int, end: int, delimiter: Bytes) -> bool:
    """Return whether the rest of the value is a beginning of the delimiter, so that it would run into the one that follows."""
    if end - at >= len(delimiter):
        return False
    for i in range(end - at):  # noqa: SIM110
        if data[at + i] != delimiter[i]:
            return False
    return True


@jit
def _escaped_size(data: Bytes, start: int, end: int, delimiter: Bytes) -> int:
    size = 0
    at = start
    while at < end:
        byte = data[at]
        if byte in (_CR, _LF, _BACKSLASH):
            size += 2
            at += 1
        elif byte == delimiter[0] and _delimiter_at(data, at, end, delimiter):
            size += 2 * len(delimiter)
            at += len(delimiter)
        elif byte == delimiter[0] and _tail_overlap(data, at, end, delimiter):
            size += 2 * (end - at)
            at = end
        else:
            size += 1
            at += 1
    return size


@jit
def _put_escaped(data: Bytes, start: int, end: int, delimiter: Bytes, out: Bytes, to: int) -> int:
    at = start
    while at < end:
        byte = data[at]
        run = 0
        if byte == _CR:
            out[to], out[to + 1] = _BACKSLASH, 114
            to += 2
            at += 1
        elif byte == _LF:
            out[to], out[to + 1] = _BACKSLASH, 110
            to += 2
            at += 1
        elif byte == _BACKSLASH:
            run = 1
        elif byte == delimiter[0] and _delimiter_at(data, at, end, delimiter):
            run = len(delimiter)
        elif byte == delimiter[0] and _tail_overlap(data, at, end, delimiter):
            run = end - at
        else:
            out[to] = byte
            to += 1
            at += 1
        for _ in range(run):
            out[to], out[to + 1] = _BACKSLASH, data[at]
            to += 2
            at += 1
    return to


@jit
def add_text_lengths(
    offsets: Longs, data: Bytes, valid: Flags, mode: int, quote: int, delimiter: Bytes, null_size: int, lengths: Longs
) -> None:
    """Add the size of each field of a text column to the row lengths. ``valid`` is empty where nothing is null."""
    for row in range(len(lengths)):
        if len(valid) and not valid[row]:
            lengths[row] += null_size
            continue
        start, end = offsets[row], offsets[row + 1]
        if mode == QUOTED:
            size = end - start + 2
            for at in range(start, end):
                if data[at] == quote:
                    size += 1
            lengths[row] += size
        elif mode == ESCAPED:
            lengths[row] += _escaped_size(data, start, end, delimiter)
        else:
            lengths[row] += end - start


@jit
def put_text(
    offsets: Longs, data: Bytes, valid: Flags, mode: int, quote: int, delimiter: Bytes, null: Bytes, out: Bytes, positions: Longs
) -> None:
    """Put each field of a text column at its row's position and move the position on."""
    for row in range(len(positions)):
        to = positions[row]
        if len(valid) and not valid[row]:
            for i in range(len(null)):
                out[to + i] = null[i]
            positions[row] = to + len(null)
            continue
        start, end = offsets[row], offsets[row + 1]
        if mode == QUOTED:
            out[to] = quote
            to += 1
            for at in range(start, end):
                byte = data[at]
                out[to] = byte
                to += 1
                if byte == quote:
                    out[to] = byte
                    to += 1
            out[to] = quote
            to += 1
        elif mode == ESCAPED:
            to = _put_escaped(data, start, end, delimiter, out, to)
        else:
            for at in range(start, end):
                out[to] = data[at]
                to += 1
        positions[row] = to


@jit
def _digits(value: np.uint64) -> int:
    count = 1
    while value >= np.uint64(10):
        value = value // np.uint64(10)
        count += 1
    return count


@jit
def add_int_lengths(magnitudes: npt.NDArray[np.uint64], negative: Flags, valid: Flags, null_size: int, lengths: Longs) -> None:
    """Add the size of each number to the row lengths. ``negative`` is empty for unsigned columns."""
    for row in range(len(lengths)):
        if len(valid) and not valid[row]:
            lengths[row] += null_size
        else:
            lengths[row] += _digits(magnitudes[row])
            if len(negative) and negative[row]:
                lengths[row] += 1


@jit
def put_ints(magnitudes: npt.NDArray[np.uint64], negative: Flags, valid: Flags, null: Bytes, out: Bytes, positions: Longs) -> None:
    """Put each number at its row's position and move the position on."""
    for row in range(len(positions)):
        to = positions[row]
        if len(valid) and not valid[row]:
            for i in range(len(null)):
                out[to + i] = null[i]
            positions[row] = to + len(null)
            continue
        if len(negative) and negative[row]:
            out[to] = 45
            to += 1
        value = magnitudes[row]
        end = to + _digits(value)
        at = end
        while at > to:
            at -= 1
            rest = value // np.uint64(10)
            out[at] = np.uint8(48) + np.uint8(value - rest * np.uint64(10))
            value = rest
        positions[row] = end


@jit
def put_constant(text: Bytes, out: Bytes, positions: Longs) -> None:
    """Put the same bytes at every row's position and move the positions on."""
    for row in range(len(positions)):
        to = positions[row]
        for i in range(len(text)):
            out[to + i] = text[i]
        positions[row] = to + len(text)


@jit
def put_letters(letters: Bytes, out: Bytes, positions: Longs) -> None:
    """Put one byte per row and move the positions on."""
    for row in range(len(positions)):
        out[positions[row]] = letters[row]
        positions[row] += 1
