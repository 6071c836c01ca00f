"""Compiled kernels that find the fields of CSV rows and read them column by column.

``tokenize`` is one scan that notes where each field of a block of rows begins and ends and of which sort it is; a ``take_*`` kernel then
reads one column of the block. The scan never goes back and always moves on, so any input ends. Kernels release the interpreter
lock and are cached on disk. Runs wherever a target is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.format.csv.kernels import Bytes, Flags, Longs, _delimiter_at, jit
from penstock.format.csv.rows import _copy, load_u8, load_u64

PLAIN = 0
CODED = 1
NULL = 2

OK = 0
UNTERMINATED_QUOTE = 1
GARBAGE_AFTER_QUOTE = 2
TOO_MANY_FIELDS = 3
TOO_FEW_FIELDS = 4
UNTERMINATED_LINE = 5
ESCAPE_AT_END = 6

ERROR_TEXTS = {
    UNTERMINATED_QUOTE: "a quoted field does not end",
    GARBAGE_AFTER_QUOTE: "neither delimiter nor line end follows a quoted field",
    TOO_MANY_FIELDS: "more fields than the schema has",
    TOO_FEW_FIELDS: "fewer fields than the schema has",
    UNTERMINATED_LINE: "the last line does not end",
    ESCAPE_AT_END: "a backslash stands at the end of the file",
}

_BACKSLASH = 92


_ONE = np.uint64(1)
_EIGHT = np.uint64(8)
_LOW_BITS = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)


@jit
def _scan_quoted(base: np.uint64, at: int, size: int, quote: int) -> tuple[Any, int]:
    """Return the position of the closing quote, or -1, and whether quotes are doubled inside."""
    sort = PLAIN
    pattern = np.uint64(quote) * _LOW_BITS
    here, end = base + np.uint64(at), base + np.uint64(size)
    while here < end:
        if here + _EIGHT <= end:
            other = load_u64(here) ^ pattern
            # A byte of `other` is zero where the word has a quote.
            if not (other - _LOW_BITS) & ~other & _HIGH_BITS:
                here += _EIGHT
                continue
        if load_u8(here) == quote:
            if here + _ONE < end and load_u8(here + _ONE) == quote:
                sort = CODED
                here += np.uint64(2)
                continue
            return np.int64(here - base), sort
        here += _ONE
    return np.int64(-1), sort


@jit
def _scan_bare(base: np.uint64, at: int, size: int, escaping: bool, delimiter: Bytes, terminator: Bytes, data: Bytes) -> tuple[int, int]:
    """Return the end of an unquoted field, or -1 at a dangling escape, and whether something in it is escaped."""
    sort = PLAIN
    first, last = delimiter[0], terminator[0]
    while at < size:
        byte = load_u8(base + np.uint64(at))
        if byte == first and (len(delimiter) == 1 or _delimiter_at(data, at, size, delimiter)):
            break
        if byte == last and _delimiter_at(data, at, size, terminator):
            break
        if escaping and byte == _BACKSLASH:
            sort = CODED
            if at + 1 >= size:
                return -1, sort
            at += 1
        at += 1
    return at, sort


@jit
def _equals(data: Bytes, start: int, end: int, text: Bytes) -> bool:
    return end - start == len(text) and _delimiter_at(data, start, end, text)


@jit
def tokenize(  # noqa: PLR0911, PLR0912 - one scan; numba inlines no closures
    data: Bytes,
    at: int,
    quote: int,
    delimiter: Bytes,
    terminator: Bytes,
    null: Bytes,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    sorts: npt.NDArray[np.uint8],
) -> tuple[int, int, int]:
    """Fill the (columns, rows) arrays from position ``at`` on.

    ``quote`` is -1 in escape mode. Returns rows found, where the next row begins (or the faulty one), and an error code.
    """
    columns, rows = starts.shape
    size = len(data)
    base = np.uint64(data.ctypes.data)
    first = delimiter[0]
    row = 0
    while row < rows and at < size:
        line = at
        column = 0
        while True:
            if column == columns:
                return row, line, TOO_MANY_FIELDS
            if quote >= 0 and at < size and load_u8(base + np.uint64(at)) == quote:
                starts[column, row] = at + 1
                close, sort = _scan_quoted(base, at + 1, size, quote)
                if close < 0:
                    return row, line, UNTERMINATED_QUOTE
                ends[column, row] = close
                at = close + 1
            else:
                starts[column, row] = at
                stop, sort = _scan_bare(base, at, size, quote < 0, delimiter, terminator, data)
                if stop < 0:
                    return row, line, ESCAPE_AT_END
                ends[column, row] = stop
                if stop - at == len(null) and _equals(data, at, stop, null):
                    sort = NULL
                at = stop
            sorts[column, row] = sort
            column += 1
            if at >= size:
                return row, line, UNTERMINATED_LINE
            if load_u8(base + np.uint64(at)) == first and (len(delimiter) == 1 or _delimiter_at(data, at, size, delimiter)):
                at += len(delimiter)
            elif _delimiter_at(data, at, size, terminator):
                at += len(terminator)
                break
            else:
                return row, line, GARBAGE_AFTER_QUOTE
        if column < columns:
            return row, line, TOO_FEW_FIELDS
        row += 1
    return row, at, OK


@jit
def _decode_text(data: Bytes, at: int, end: int, quote: int, out: Bytes, to: int) -> int:
    while at < end:
        byte = data[at]
        if quote >= 0 and byte == quote:
            at += 1
        elif quote < 0 and byte == _BACKSLASH:
            at += 1
            byte = data[at]
            if byte == 114:
                byte = 13
            elif byte == 110:
                byte = 10
        out[to] = byte
        to += 1
        at += 1
    return to


@jit
def first_other(data: Bytes, starts: Longs, ends: Longs, sorts: Bytes, text: Bytes) -> int:
    """Return the first row whose field, plain and not null, is not this text; -1 where all are."""
    base = np.uint64(data.ctypes.data)
    for row in range(len(starts)):
        if sorts[row] != PLAIN or ends[row] - starts[row] != len(text):
            return row
        for i in range(len(text)):
            if load_u8(base + np.uint64(starts[row] + i)) != text[i]:
                return row
    return -1


@jit
def take_letters(data: Bytes, starts: Longs, ends: Longs, sorts: Bytes, out: Bytes) -> None:
    """Read one byte per row; a field that has not exactly one gives 0."""
    for row in range(len(starts)):
        out[row] = data[starts[row]] if sorts[row] == PLAIN and ends[row] - starts[row] == 1 else 0


@jit
def take_text(data: Bytes, starts: Longs, ends: Longs, sorts: Bytes, quote: int) -> tuple[Longs, Bytes]:
    """Return offsets and bytes of one column's texts, with doubled quotes and escapes undone; NULL gives nothing."""
    rows = len(starts)
    total = 0
    for row in range(rows):
        if sorts[row] != NULL:
            total += ends[row] - starts[row]
    out = np.empty(total, np.uint8)
    offsets = np.empty(rows + 1, np.int64)
    offsets[0] = 0
    to = 0
    source, target = np.uint64(data.ctypes.data), np.uint64(out.ctypes.data)
    for row in range(rows):
        at, end = starts[row], ends[row]
        if sorts[row] == PLAIN:
            _copy(source + np.uint64(at), target + np.uint64(to), end - at)
            to += end - at
        elif sorts[row] == CODED:
            to = _decode_text(data, at, end, quote, out, to)
        offsets[row + 1] = to
    return offsets, out[:to]


@jit
def take_ints(data: Bytes, starts: Longs, ends: Longs, sorts: Bytes, magnitudes: npt.NDArray[np.uint64], negative: Flags) -> int:
    """Read one column's whole numbers; return the first row that holds none or one beyond 64 bits, or -1."""
    limit = np.uint64(1844674407370955161)
    for row in range(len(starts)):
        at, end = starts[row], ends[row]
        value = np.uint64(0)
        negative[row] = False
        if sorts[row] != NULL:
            if at < end and data[at] == 45:
                negative[row] = True
                at += 1
            if at >= end:
                return row
            while at < end:
                digit = np.uint64(data[at]) - np.uint64(48)
                if digit > np.uint64(9) or value > limit or (value == limit and digit > np.uint64(5)):
                    return row
                value = value * np.uint64(10) + digit
                at += 1
        magnitudes[row] = value
    return -1
