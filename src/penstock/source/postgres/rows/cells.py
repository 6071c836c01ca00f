"""Cells: where each value of a tuple stands in the bytes that arrived, and the Arrow column that many of them make.

A cell grid is two matrices, ``starts`` and ``lengths``, by column and row; a length below zero says NULL or, for a value that an update
left where it was (TOAST), UNCHANGED. The grid comes from pgoutput tuples or from COPY rows; from there on both go the same way: a kernel
per way of storing parses or gathers a whole column. Values keep the text that PostgreSQL prints unless the column has a machine type.
Bytes that do not parse are ``DECODE_FAILED``. Runs in the log service and on executors.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.jit import EMPTY_U8, I32, I64, INT32_MAX, U8, kernel
from penstock.model.errors import PenstockError
from penstock.source.postgres.wire.pgoutput import u32

NULL, UNCHANGED = -1, -2


class CellForm(IntEnum):
    """How the text of a value becomes what its column holds."""

    TEXT = 0
    INTEGER = 1
    BOOLEAN = 2
    FLOAT = 3
    BYTES = 4
    UTC = 5
    """A timestamptz, whose zone ``+00`` is left out: the session prints UTC."""


class CellGrid:
    """Cells of some rows of one shape, over one buffer. Immutable once made."""

    def __init__(self, buffer: U8, starts: I64, lengths: I32) -> None:
        self.buffer = buffer
        self.starts = starts
        self.lengths = lengths

    @property
    def columns(self) -> int:
        """Return the number of columns."""
        return int(self.starts.shape[0])

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return int(self.starts.shape[1])

    def take(self, rows: I64) -> CellGrid:
        """Return chosen rows."""
        return CellGrid(self.buffer, self.starts[:, rows], self.lengths[:, rows])

    def column(self, at: int, form: CellForm, arrow: pa.DataType) -> pa.Array:
        """Return one column; NULL and UNCHANGED are null."""
        starts, lengths = self.starts[at], self.lengths[at]
        try:
            array = _BUILDERS[form](self.buffer, starts, lengths, arrow)
        except (pa.ArrowInvalid, ValueError, OverflowError) as error:
            raise PenstockError("DECODE_FAILED", f"column {at + 1} holds a value that does not read as {arrow}") from error
        return array


def tuple_grid(buffer: U8, at: I64, ends: I64, columns: int, table: str) -> CellGrid:
    """Return the grid of pgoutput tuples that begin and end at given places."""
    starts = np.zeros((columns, len(at)), dtype=np.int64)
    lengths = np.full((columns, len(at)), NULL, dtype=np.int32)
    bad = _walk_tuples(buffer, at, ends, columns, starts, lengths)
    if bad >= 0:
        raise PenstockError("DECODE_FAILED", f"a row of {table} does not have the {columns} columns of its relation")
    return CellGrid(buffer, starts, lengths)


def copy_grid(buffer: U8, at: int, end: int, columns: int, rows_max: int) -> tuple[CellGrid, int, bool]:
    """Return the grid of COPY text rows in framed messages, where it stopped, and whether a message stands there that is no row.

    Escapes are undone in the buffer itself, which must be writable and not be used for anything else.
    """
    starts = np.zeros((columns, rows_max), dtype=np.int64)
    lengths = np.full((columns, rows_max), NULL, dtype=np.int32)
    outcome = np.zeros(2, dtype=np.int64)
    stopped = _walk_copy(buffer, at, end, columns, starts, lengths, outcome)
    if outcome[1] == 2:
        raise PenstockError("DECODE_FAILED", f"a COPY row does not have {columns} columns")
    rows = int(outcome[0])
    return CellGrid(buffer, starts[:, :rows], lengths[:, :rows]), stopped, bool(outcome[1] == 1)


def _validity(lengths: I32) -> tuple[pa.Buffer | None, int]:
    nulls = lengths < 0
    count = int(nulls.sum())
    return (pa.py_buffer(np.packbits(~nulls, bitorder="little")) if count else None), count


def _offsets(sizes: I64) -> I64:
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if offsets[-1] > INT32_MAX:
        raise PenstockError("DECODE_FAILED", "a column exceeds 2 GiB in one batch")
    return offsets


def _variable(data: U8, offsets: I64, lengths: I32, arrow: pa.DataType) -> pa.Array:
    valid, nulls = _validity(lengths)
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    array = pa.Array.from_buffers(arrow, len(lengths), buffers, null_count=nulls)
    if pa.types.is_string(arrow):
        array.validate(full=True)
    return array


def _text(buffer: U8, starts: I64, lengths: I32, arrow: pa.DataType) -> pa.Array:
    offsets = _offsets(np.maximum(lengths, 0).astype(np.int64))
    data = np.empty(int(offsets[-1]), dtype=np.uint8) if offsets[-1] else EMPTY_U8
    _gather(buffer, starts, offsets, data)
    return _variable(data, offsets, lengths, arrow)


def _utc(buffer: U8, starts: I64, lengths: I32, arrow: pa.DataType) -> pa.Array:
    offsets = _offsets(np.maximum(lengths, 0).astype(np.int64))
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    _gather_without_zone(buffer, starts, lengths, offsets, data)
    return _variable(data[: int(offsets[-1])], offsets, lengths, arrow)


def _bytes(buffer: U8, starts: I64, lengths: I32, arrow: pa.DataType) -> pa.Array:
    offsets = _offsets(np.where(lengths < 2, 0, (lengths - 2) // 2).astype(np.int64))
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    if _gather_hex(buffer, starts, lengths, offsets, data) >= 0:
        raise ValueError("not hex")
    return _variable(data, offsets, lengths, arrow)


def _integer(buffer: U8, starts: I64, lengths: I32, arrow: pa.DataType) -> pa.Array:
    values = np.zeros(len(lengths), dtype=np.int64)
    if _parse_integers(buffer, starts, lengths, values) >= 0:
        raise ValueError("not an integer")
    valid, nulls = _validity(lengths)
    array = pa.Array.from_buffers(pa.int64(), len(values), [valid, pa.py_buffer(values)], null_count=nulls)
    return array if arrow == pa.int64() else array.cast(arrow)


def _boolean(buffer: U8, starts: I64, lengths: I32, arrow: pa.DataType) -> pa.Array:
    letters = buffer[np.where(lengths < 0, 0, starts)] if len(buffer) else np.zeros(len(lengths), np.uint8)
    shown = lengths >= 0
    truth = shown & (letters == ord("t"))
    if bool((shown & ~truth & ((letters != ord("f")) | (lengths != 1))).any()) or bool((truth & (lengths != 1)).any()):
        raise ValueError("not a boolean")
    valid, nulls = _validity(lengths)
    array = pa.Array.from_buffers(pa.int8(), len(truth), [valid, pa.py_buffer(truth.astype(np.int8))], null_count=nulls)
    return array if arrow == pa.int8() else array.cast(arrow)


def _float(buffer: U8, starts: I64, lengths: I32, arrow: pa.DataType) -> pa.Array:
    return pc.cast(_text(buffer, starts, lengths, pa.string()), arrow)


_BUILDERS = {
    CellForm.TEXT: _text,
    CellForm.INTEGER: _integer,
    CellForm.BOOLEAN: _boolean,
    CellForm.FLOAT: _float,
    CellForm.BYTES: _bytes,
    CellForm.UTC: _utc,
}


@kernel
def _walk_tuples(buf: U8, ats: I64, ends: I64, columns: int, starts: I64, lengths: I32) -> int:  # noqa: PLR0911
    for row in range(len(ats)):
        at, end = ats[row], ends[row]
        if at < 0 or at + 2 > end or end > len(buf) or ((np.int64(buf[at]) << 8) | np.int64(buf[at + 1])) != columns:
            return row
        at += 2
        for column in range(columns):
            if at >= end:
                return row
            kind = buf[at]
            at += 1
            if kind == 116:
                if at + 4 > end:
                    return row
                length = (np.int64(buf[at]) << 24) | (np.int64(buf[at + 1]) << 16) | (np.int64(buf[at + 2]) << 8) | np.int64(buf[at + 3])
                at += 4
                if at + length > end:
                    return row
                starts[column, row] = at
                lengths[column, row] = length
                at += length
            elif kind == 117:
                lengths[column, row] = UNCHANGED
            elif kind != 110:
                return row
        if at != end:
            return row
    return -1


@kernel
def _unescaped(letter: int) -> int:  # noqa: PLR0911
    if letter == 98:
        return 8
    if letter == 102:
        return 12
    if letter == 110:
        return 10
    if letter == 114:
        return 13
    if letter == 116:
        return 9
    if letter == 118:
        return 11
    return letter


@kernel
def _walk_copy(buf: U8, at: int, end: int, columns: int, starts: I64, lengths: I32, outcome: I64) -> int:  # noqa: C901, PLR0912
    row = 0
    while row < starts.shape[1]:
        if at + 5 > end:
            break
        size = u32(buf, at + 1)
        if buf[at] != 100:
            outcome[1] = 1
            break
        if size < 5:
            outcome[1] = 2
            break
        if at + 1 + size > end:
            break
        p, last = at + 5, at + size
        # The last byte of a row is its line feed.
        if buf[last] != 10:
            outcome[1] = 2
            break
        for column in range(columns):
            start = p
            out = p
            null = False
            while p < last and buf[p] != 9:
                if buf[p] == 92:
                    p += 1
                    if p == last:
                        outcome[1] = 2
                        outcome[0] = row
                        return at
                    if buf[p] == 78 and p == start + 1:
                        null = True
                    else:
                        buf[out] = _unescaped(buf[p])
                        out += 1
                else:
                    buf[out] = buf[p]
                    out += 1
                p += 1
            starts[column, row] = start
            lengths[column, row] = NULL if null else out - start
            if (column < columns - 1) == (p == last):
                outcome[1] = 2
                outcome[0] = row
                return at
            p += 1
        row += 1
        at += 1 + size
    outcome[0] = row
    return at


@kernel
def _gather(buf: U8, starts: I64, offsets: I64, data: U8) -> None:
    for row in range(len(starts)):
        start, out = starts[row], offsets[row]
        for p in range(offsets[row + 1] - out):
            data[out + p] = buf[start + p]


@kernel
def _gather_without_zone(buf: U8, starts: I64, lengths: I32, offsets: I64, data: U8) -> None:
    out = 0
    for row in range(len(starts)):
        p, last = starts[row], starts[row] + max(lengths[row], 0)
        while p < last:
            if p + 3 <= last and buf[p] == 43 and buf[p + 1] == 48 and buf[p + 2] == 48:
                p += 3
                continue
            data[out] = buf[p]
            out += 1
            p += 1
        offsets[row + 1] = out


@kernel
def _hex_digit(letter: int) -> int:
    if 48 <= letter <= 57:
        return letter - 48
    if 97 <= letter <= 102:
        return letter - 87
    return -1


@kernel
def _gather_hex(buf: U8, starts: I64, lengths: I32, offsets: I64, data: U8) -> int:
    for row in range(len(starts)):
        if lengths[row] < 0:
            continue
        start = starts[row]
        if lengths[row] < 2 or lengths[row] % 2 or buf[start] != 92 or buf[start + 1] != 120:
            return row
        for k in range(offsets[row + 1] - offsets[row]):
            high, low = _hex_digit(buf[start + 2 + 2 * k]), _hex_digit(buf[start + 3 + 2 * k])
            if high < 0 or low < 0:
                return row
            data[offsets[row] + k] = high * 16 + low
    return -1


@kernel
def _parse_integers(buf: U8, starts: I64, lengths: I32, values: I64) -> int:
    for row in range(len(starts)):
        length = lengths[row]
        if length < 0:
            continue
        at, last = starts[row], starts[row] + length
        negative = length > 0 and buf[at] == 45
        if negative:
            at += 1
        if at == last or last - at > 19:
            return row
        value = np.uint64(0)
        for p in range(at, last):
            if buf[p] < 48 or buf[p] > 57:
                return row
            value = value * np.uint64(10) + np.uint64(buf[p] - 48)
        if value > np.uint64(9223372036854775807) + np.uint64(1 if negative else 0):
            return row
        values[row] = -np.int64(value) if negative else np.int64(value)
    return -1
