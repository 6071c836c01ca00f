"""Floats as Go's ``%v`` and ``%f`` write them, from their shortest decimal texts.

Digits are the shortest that read back as the same number; ``%v`` uses the exponent form below 1e-4 and from 1e6 on, with a sign and at
least two digits, the shortest ``%f`` never does. Kernels release the interpreter lock and are cached on disk. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.kernels.jit import I64, U8, byte_view, kernel

_DIGITS_MAX = 400
_ROOM = 8
"""How many bytes a text can grow: sign of infinity, point, and exponent."""


def shortest_texts(values: pa.Array) -> pa.Array:
    """Return floats as polars writes them, as large strings."""
    return pl.Series(values).cast(pl.String).to_arrow(compat_level=pl.CompatLevel.oldest())


def rewritten_texts(values: pa.Array, rewrite: Callable[[I64, U8], tuple[I64, U8]]) -> pa.Array:
    """Return floats in one of Go's forms, as large strings."""
    texts = shortest_texts(values)
    validity, offsets, data = texts.buffers()
    ends, text = rewrite(np.frombuffer(offsets, np.int64)[: len(texts) + 1], byte_view(data))
    return pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(text), validity)


@kernel
def go_floats(offsets: I64, data: U8) -> tuple[I64, U8]:
    """Rewrite texts such as ``1000000`` or ``1e-05`` in Go's form; the input may have any exponent and any trailing zeros."""
    return _rewritten(offsets, data, np.empty(len(data) + _ROOM * (len(offsets) - 1), np.uint8), True)


@kernel
def plain_floats(offsets: I64, data: U8) -> tuple[I64, U8]:
    """Rewrite the same texts without an exponent: ``1e-05`` becomes ``0.00001``, ``1.0`` becomes ``1``."""
    rows = len(offsets) - 1
    room = len(data) + _ROOM * rows
    for row in range(rows):
        for at in range(offsets[row], offsets[row + 1]):
            if data[at] in (69, 101):
                room += _DIGITS_MAX
    return _rewritten(offsets, data, np.empty(room, np.uint8), False)


@kernel
def _rewritten(offsets: I64, data: U8, out: U8, exponents: bool) -> tuple[I64, U8]:
    """Rewrite texts into ``out``, which has room for all; an empty text stays empty."""
    rows = len(offsets) - 1
    ends = np.empty(rows + 1, np.int64)
    ends[0] = 0
    digits = np.empty(_DIGITS_MAX, np.uint8)
    to = 0
    for row in range(rows):
        at, end = offsets[row], offsets[row + 1]
        if at < end:
            negative = data[at] == 45
            if negative:
                out[to] = 45
                to += 1
                at += 1
            if data[at] < 48 or data[at] > 57:
                to = _put_word(data[at], negative, out, to)
            else:
                to = _put_number(data, at, end, digits, exponents, out, to)
        ends[row + 1] = to
    return ends, out[:to]


@kernel
def _put_number(data: U8, at: int, end: int, digits: U8, exponents: bool, out: U8, to: int) -> int:
    count, scale = _parse(data, at, end, digits)
    if count == 0:
        out[to] = 48
        return to + 1
    if exponents and (scale - 1 < -4 or scale - 1 >= 6):
        return _put_exponent(digits, count, scale - 1, out, to)
    return _put_plain(digits, count, scale, out, to)


@kernel
def _put_word(first: int, negative: bool, out: U8, to: int) -> int:
    """Put +Inf, Inf after a minus, or NaN."""
    infinite = first in (73, 105)
    if infinite and not negative:
        out[to] = 43
        to += 1
    word = (73, 110, 102) if infinite else (78, 97, 78)
    for i in range(3):
        out[to + i] = word[i]
    return to + 3


@kernel
def _parse(data: U8, at: int, end: int, digits: U8) -> tuple[int, int]:
    """Fill the significant digits; return their count and the power of ten by which 0.d1d2d3... is multiplied."""
    count = 0
    leading = 0
    point = -1
    while at < end and data[at] not in (69, 101):
        if data[at] == 46:
            point = count + leading
        elif count == 0 and data[at] == 48:
            leading += 1
        else:
            digits[count] = data[at]
            count += 1
        at += 1
    if point < 0:
        point = count + leading
    exponent = _parse_exponent(data, at + 1, end)
    while count > 0 and digits[count - 1] == 48:
        count -= 1
    return count, point - leading + exponent


@kernel
def _parse_exponent(data: U8, at: int, end: int) -> int:
    if at >= end:
        return 0
    negative = data[at] == 45
    if data[at] in (43, 45):
        at += 1
    exponent = 0
    while at < end:
        exponent = exponent * 10 + (data[at] - 48)
        at += 1
    return -exponent if negative else exponent


@kernel
def _put_exponent(digits: U8, count: int, exponent: int, out: U8, to: int) -> int:
    out[to] = digits[0]
    to += 1
    if count > 1:
        out[to] = 46
        to += 1
        for i in range(1, count):
            out[to] = digits[i]
            to += 1
    out[to] = 101
    out[to + 1] = 43 if exponent >= 0 else 45
    to += 2
    power = abs(exponent)
    if power >= 100:
        out[to] = 48 + power // 100
        to += 1
    out[to] = 48 + (power // 10) % 10
    out[to + 1] = 48 + power % 10
    return to + 2


@kernel
def _put_plain(digits: U8, count: int, scale: int, out: U8, to: int) -> int:
    if scale <= 0:
        out[to] = 48
        out[to + 1] = 46
        to += 2
        for _ in range(-scale):
            out[to] = 48
            to += 1
    for i in range(max(count, scale)):
        if i == scale and scale > 0:
            out[to] = 46
            to += 1
        out[to] = digits[i] if i < count else 48
        to += 1
    return to
