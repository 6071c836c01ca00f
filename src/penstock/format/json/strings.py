"""Compiled kernels that undo the escapes of JSON strings, one column of found fields at a time.

A lone surrogate is read as U+FFFD; any other bad escape is reported by its row. Runs wherever a target is read.
"""

from __future__ import annotations

import numpy as np

from penstock.format.csv.tokens import CODED, NULL
from penstock.kernels.jit import I64, U8, kernel

_BACKSLASH = 92


@kernel
def _hex4(data: U8, at: int, end: int) -> int:
    """Return the number that four hexadecimal digits give, or -1."""
    if at + 4 > end:
        return -1
    value = 0
    for i in range(4):
        byte = data[at + i]
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= byte <= 102:
            digit = byte - 87
        elif 65 <= byte <= 70:
            digit = byte - 55
        else:
            return -1
        value = value * 16 + digit
    return value


@kernel
def _put_utf8(code: int, out: U8, to: int) -> int:
    if code < 0x80:
        out[to] = code
        return to + 1
    if code < 0x800:
        out[to], out[to + 1] = 0xC0 | code >> 6, 0x80 | code & 0x3F
        return to + 2
    if code < 0x10000:
        out[to], out[to + 1], out[to + 2] = 0xE0 | code >> 12, 0x80 | code >> 6 & 0x3F, 0x80 | code & 0x3F
        return to + 3
    out[to], out[to + 1], out[to + 2], out[to + 3] = (
        0xF0 | code >> 18,
        0x80 | code >> 12 & 0x3F,
        0x80 | code >> 6 & 0x3F,
        0x80 | code & 0x3F,
    )
    return to + 4


_LETTERS = np.zeros(256, np.uint8)
"""What the letter after a backslash stands for; 0 where it may not stand there."""
for _letter, _byte in zip(b'"\\/nrtbf', b'"\\/\n\r\t\b\f', strict=True):
    _LETTERS[_letter] = _byte


@kernel
def _take_unicode(data: U8, at: int, end: int) -> tuple[int, int]:
    """Return the character of an escape whose digits begin here, -1 where it is bad, and the position after it."""
    code = _hex4(data, at, end)
    at += 4
    if 0xD800 <= code < 0xDC00 and at + 1 < end and data[at] == _BACKSLASH and data[at + 1] == 117:
        low = _hex4(data, at + 2, end)
        if 0xDC00 <= low < 0xE000:
            return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), at + 6
    return 0xFFFD if 0xD800 <= code < 0xE000 else code, at


@kernel
def decode_string(data: U8, at: int, end: int, out: U8, to: int) -> int:
    """Put the inside of a JSON string with its escapes undone; return the end, or -1 at a bad escape. A lone surrogate is U+FFFD."""
    while at < end:
        byte = data[at]
        if byte != _BACKSLASH:
            out[to] = byte
            to += 1
            at += 1
            continue
        if at + 1 >= end:
            return -1
        letter = data[at + 1]
        at += 2
        if letter == 117:
            code, at = _take_unicode(data, at, end)
            if code < 0:
                return -1
            to = _put_utf8(code, out, to)
        elif _LETTERS[letter]:
            out[to] = _LETTERS[letter]
            to += 1
        else:
            return -1
    return to


@kernel
def take_text(data: U8, starts: I64, ends: I64, sorts: U8) -> tuple[I64, U8, int]:
    """Return offsets and bytes of one slot's texts, and the first row with a bad escape or -1; NULL gives nothing."""
    rows = len(starts)
    total = 0
    for row in range(rows):
        if sorts[row] != NULL:
            total += ends[row] - starts[row]
    out = np.empty(total + 4, np.uint8)
    offsets = np.empty(rows + 1, np.int64)
    offsets[0] = 0
    to = 0
    for row in range(rows):
        at, end = starts[row], ends[row]
        if sorts[row] == CODED:
            used = decode_string(data, at, end, out, to)
            if used < 0:
                return offsets, out, row
            to = used
        elif sorts[row] != NULL:
            out[to : to + end - at] = data[at:end]
            to += end - at
        offsets[row + 1] = to
    return offsets, out[:to], -1


@kernel
def latin1_bytes(offsets: I64, data: U8) -> tuple[I64, U8, int]:
    """Turn texts of characters up to U+00FF into bytes; the last value is the first row with another character, or -1."""
    rows = len(offsets) - 1
    out = np.empty(len(data), np.uint8)
    ends = np.empty(rows + 1, np.int64)
    ends[0] = 0
    to = 0
    for row in range(rows):
        at, end = offsets[row], offsets[row + 1]
        while at < end:
            byte = data[at]
            if byte >= 0x80:
                if byte not in (0xC2, 0xC3) or at + 1 >= end:
                    return ends, out, row
                byte = (byte & 3) << 6 | data[at + 1] & 0x3F
                at += 1
            out[to] = byte
            to += 1
            at += 1
        ends[row + 1] = to
    return ends, out[:to], -1
