"""Compiled kernels that find the fields of CSV rows and read them column by column.

``tokenize`` is one scan that notes where each field of a block of rows begins and ends and of which sort it is; a ``take_*`` kernel then
reads one column of the block. The scan never goes back and always moves on, so any input ends. Kernels release the interpreter
lock and are cached on disk. Runs wherever a target is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.format.sheet_kernels import EIGHT, LOW_BITS, ONE, has_byte
from penstock.kernels.byte_ranges import copy_short, same_bytes
from penstock.kernels.jit import I64, U8, U64, Flags, kernel
from penstock.kernels.memory import load_u8, load_u64

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


@kernel
def _scan_quoted(base: np.uint64, at: int, size: int, quote: int) -> tuple[Any, int]:
    """Return the position of the closing quote, or -1, and whether quotes are doubled inside."""
    sort = PLAIN
    pattern = np.uint64(quote) * LOW_BITS
    here, end = base + np.uint64(at), base + np.uint64(size)
    while here < end:
        if here + EIGHT <= end and not has_byte(load_u64(here), pattern):
            here += EIGHT
            continue
        if load_u8(here) == quote:
            if here + ONE < end and load_u8(here + ONE) == quote:
                sort = CODED
                here += np.uint64(2)
                continue
            return np.int64(here - base), sort
        here += ONE
    return np.int64(-1), sort


@kernel
def _stands_at(here: np.uint64, end: np.uint64, text: np.uint64, size: int) -> bool:
    return bool(here + np.uint64(size) <= end) and same_bytes(here, text, size)


@kernel
def _scan_bare(
    base: np.uint64,
    at: int,
    size: int,
    escaping: bool,
    delimiter: np.uint64,
    delimiter_size: int,
    terminator: np.uint64,
    terminator_size: int,
) -> tuple[int, int]:
    """Return the end of an unquoted field, or -1 at a dangling escape, and whether something in it is escaped."""
    sort = PLAIN
    first, last, end = load_u8(delimiter), load_u8(terminator), base + np.uint64(size)
    while at < size:
        here = base + np.uint64(at)
        byte = load_u8(here)
        if byte == first and (delimiter_size == 1 or _stands_at(here, end, delimiter, delimiter_size)):
            break
        if byte == last and _stands_at(here, end, terminator, terminator_size):
            break
        if escaping and byte == _BACKSLASH:
            sort = CODED
            if at + 1 >= size:
                return -1, sort
            at += 1
        at += 1
    return at, sort


@kernel
def tokenize(  # noqa: PLR0911, PLR0912 - one scan; numba inlines no closures
    data: U8,
    at: int,
    quote: int,
    delimiter: U8,
    terminator: U8,
    null: U8,
    starts: I64,
    ends: I64,
    sorts: U8,
) -> tuple[int, int, int]:
    """Fill the (columns, rows) arrays from position ``at`` on.

    ``quote`` is -1 in escape mode. Returns rows found, where the next row begins (or the faulty one), and an error code.
    """
    columns, rows = starts.shape
    size = len(data)
    base = np.uint64(data.ctypes.data)
    end = base + np.uint64(size)
    between, after, nothing = np.uint64(delimiter.ctypes.data), np.uint64(terminator.ctypes.data), np.uint64(null.ctypes.data)
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
                stop, sort = _scan_bare(base, at, size, quote < 0, between, len(delimiter), after, len(terminator))
                if stop < 0:
                    return row, line, ESCAPE_AT_END
                ends[column, row] = stop
                if stop - at == len(null) and same_bytes(base + np.uint64(at), nothing, len(null)):
                    sort = NULL
                at = stop
            sorts[column, row] = sort
            column += 1
            if at >= size:
                return row, line, UNTERMINATED_LINE
            here = base + np.uint64(at)
            if load_u8(here) == first and (len(delimiter) == 1 or _stands_at(here, end, between, len(delimiter))):
                at += len(delimiter)
            elif _stands_at(here, end, after, len(terminator)):
                at += len(terminator)
                break
            else:
                return row, line, GARBAGE_AFTER_QUOTE
        if column < columns:
            return row, line, TOO_FEW_FIELDS
        row += 1
    return row, at, OK


@kernel
def _decode_text(data: U8, at: int, end: int, quote: int, out: U8, to: int) -> int:
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


@kernel
def first_other(data: U8, starts: I64, ends: I64, sorts: U8, text: U8) -> int:
    """Return the first row whose field, plain and not null, is not this text; -1 where all are."""
    base = np.uint64(data.ctypes.data)
    for row in range(len(starts)):
        if sorts[row] != PLAIN or ends[row] - starts[row] != len(text):
            return row
        if not same_bytes(base + np.uint64(starts[row]), text.ctypes.data, len(text)):
            return row
    return -1


@kernel
def take_letters(data: U8, starts: I64, ends: I64, sorts: U8, out: U8) -> None:
    """Read one byte per row; a field that has not exactly one gives 0."""
    for row in range(len(starts)):
        out[row] = data[starts[row]] if sorts[row] == PLAIN and ends[row] - starts[row] == 1 else 0


@kernel
def take_text(data: U8, starts: I64, ends: I64, sorts: U8, quote: int) -> tuple[I64, U8]:
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
            copy_short(source + np.uint64(at), target + np.uint64(to), end - at)
            to += end - at
        elif sorts[row] == CODED:
            to = _decode_text(data, at, end, quote, out, to)
        offsets[row + 1] = to
    return offsets, out[:to]


@kernel
def take_ints(data: U8, starts: I64, ends: I64, sorts: U8, magnitudes: U64, negative: Flags) -> int:
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
