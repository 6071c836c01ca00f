"""Row images: the kernels that turn the rows events of one table into Arrow columns.

Two passes over the raw events. ``walk`` finds every image, checks every bound and measures the columns; ``fill`` writes them. A table's
columns come as arrays (wire kind and two numbers each), so nothing is compiled per table. Images of rows that ceased (before-images,
deletes) and of rows that came to be are two sides with columns of their own. Whatever the bytes are, the answer is columns of the right
length or ``DECODE_FAILED``. Runs in the log service.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.jit import I32, I64, INT32_MAX, U8, U64, Flags, kernel
from penstock.model.errors import PenstockError
from penstock.source.mysql.rows.image_layout import ImageLayout
from penstock.source.mysql.rows.texts import (
    DIGIT_BYTES,
    little_endian,
    put_date,
    put_datetime,
    put_decimal,
    put_old_datetime,
    put_old_time,
    put_seconds,
    put_time,
    put_timestamp,
)
from penstock.source.mysql.wire.constants import (
    FIXED_MAX,
    W_DATE,
    W_DATETIME,
    W_DECIMAL,
    W_ENUM,
    W_INT1,
    W_INT2,
    W_INT3,
    W_INT4,
    W_INT8,
    W_OLD_DATETIME,
    W_OLD_TIMESTAMP,
    W_PADDED,
    W_SET,
    W_TIME,
    W_TIMESTAMP,
    W_YEAR,
)

INSERT, UPDATE, DELETE = 0, 1, 2
"""What a rows event does."""
_ALIGN_BYTES = 64


class Images(msgspec.Struct, frozen=True):
    """The images of one side, in log order: where each begins, where its bitmap of present columns is, and its event."""

    at: I64
    present: I64
    event: I64
    capacity: I64
    """Bytes that the texts of each column take at most."""
    complete: bool
    """Whether every image holds all columns."""

    @property
    def rows(self) -> int:
        """Return how many images there are."""
        return len(self.at)


class Walked(msgspec.Struct, frozen=True):
    """Both sides of the rows events of one table, and for each image in log order which side it is on."""

    ceased: Images
    became: Images
    sides: U8


class SideColumns(msgspec.Struct, frozen=True):
    """The columns of one side, and for each the rows whose image does not hold it (None where all do)."""

    arrays: tuple[pa.Array, ...]
    missing: Flags | None
    """``missing[column, row]``; such a value stands as NULL."""


def walk_events(events: U8, layout: ImageLayout, starts: I64, ends: I64, ops: U8) -> Walked:
    """Find the images of rows events of one table; ``starts`` point at the column count of each."""
    total = int((ends - starts).sum())
    room = total // max(1, (layout.columns + 7) // 8) + len(starts) + 1
    at, present, event = (np.empty((2, room), dtype=np.int64) for _ in range(3))
    capacity = np.zeros((2, layout.columns), dtype=np.int64)
    sides = np.empty(2 * room, dtype=np.uint8)
    counts = np.zeros(3, dtype=np.int64)
    bad = _walk(
        events, starts, ends, ops, layout.columns, layout.kinds, layout.a, layout.b, layout.sizes, layout.text_max,
        at, present, event, capacity, sides, counts,
    )  # fmt: skip
    if bad >= 0:
        raise PenstockError(
            "DECODE_FAILED", f"rows event {bad} of {len(starts)} does not hold whole row images of {layout.columns} columns"
        )
    if int(capacity.max(initial=0)) > INT32_MAX:
        raise PenstockError("DECODE_FAILED", "a column exceeds 2 GiB in one step of the log")
    parts = []
    for side in (0, 1):
        rows = int(counts[side])
        parts.append(Images(at[side, :rows], present[side, :rows], event[side, :rows], capacity[side], bool(counts[2] == 0)))
    return Walked(parts[0], parts[1], sides[: int(counts[0] + counts[1])])


def fill_columns(events: U8, layout: ImageLayout, images: Images, types: tuple[pa.DataType, ...]) -> SideColumns:
    """Write the columns of one side; texts are bytes of the column's own charset, typed as binary where the type is a string."""
    rows, columns = images.rows, layout.columns
    validity = np.full((max(1, columns), (rows + 7) // 8), 255, dtype=np.uint8)
    nulls = np.zeros(max(1, columns), dtype=np.int64)
    starts = np.zeros(columns + 1, dtype=np.int64)
    sizes = np.where(layout.widths > 0, layout.widths * rows, images.capacity)
    np.cumsum(-(-sizes // _ALIGN_BYTES) * _ALIGN_BYTES, out=starts[1:])
    # A whole number of words, so that fixed columns are written by word.
    flat = np.empty(int(starts[-1]) + 8, dtype=np.uint8)
    offsets = np.zeros((max(1, columns), rows + 1), dtype=np.int32)
    missing = np.zeros((columns, rows), dtype=np.bool_) if not images.complete else np.zeros((1, 1), dtype=np.bool_)
    words = flat[: len(flat) // 8 * 8]
    bad = _fill(
        events, images.at, images.present, columns, layout.kinds, layout.a, layout.b, layout.signed, layout.sizes, DIGIT_BYTES,
        validity, nulls, starts, flat, words.view(np.uint16), words.view(np.uint32), words.view(np.uint64), offsets,
        not images.complete, missing,
    )  # fmt: skip
    if bad >= 0:
        raise PenstockError("DECODE_FAILED", f"row image {bad} of {rows} holds a value that no server writes")
    arrays = []
    for at in range(columns):
        count = int(nulls[at])
        mask = pa.py_buffer(validity[at]) if count else None
        start = int(starts[at])
        if layout.widths[at]:
            body = flat[start : start + rows * int(layout.widths[at])]
            arrays.append(pa.Array.from_buffers(types[at], rows, [mask, pa.py_buffer(body)], null_count=count))
            continue
        body = flat[start : start + int(offsets[at, rows])]
        # Texts of a charset other than UTF-8 are bytes until they are recoded, so nothing is claimed to be a string here.
        buffers = [mask, pa.py_buffer(offsets[at]), pa.py_buffer(body)]
        arrays.append(pa.Array.from_buffers(pa.binary(), rows, buffers, null_count=count))
    return SideColumns(tuple(arrays), missing if not images.complete else None)


@kernel
def _walk(  # noqa: C901, PLR0911, PLR0912, PLR0915 - one loop nest, because a call per field would cost more than the field
    events: U8,
    starts: I64,
    ends: I64,
    ops: U8,
    columns: int,
    kinds: I64,
    a: I64,
    b: I64,
    sizes: I64,
    text_max: I64,
    out_at: I64,
    out_present: I64,
    out_event: I64,
    capacity: I64,
    sides: U8,
    counts: I64,
) -> int:
    """Return the number of the first event that is malformed, or -1. ``counts``: rows of either side, and incomplete bitmaps."""
    bitmap = (columns + 7) // 8
    counts[0] = 0
    counts[1] = 0
    counts[2] = 0
    if columns == 0:
        return 0 if len(starts) else -1
    for number in range(len(starts)):
        at = starts[number]
        end = ends[number]
        if at < 0 or end > len(events) or at >= end:
            return number
        count = int(events[at])
        at += 1
        if count == 252:
            if at + 2 > end:
                return number
            count = little_endian(events, at, 2)
            at += 2
        elif count > 250:
            return number
        if count != columns:
            return number
        op = ops[number]
        bitmaps = 2 if op == UPDATE else 1
        first_present = at
        if at + bitmaps * bitmap > end:
            return number
        given_first = 0
        given_second = 0
        for column in range(columns):
            given_first += (events[at + column // 8] >> (column % 8)) & 1
            if op == UPDATE:
                given_second += (events[at + bitmap + column // 8] >> (column % 8)) & 1
        if given_first < columns or (op == UPDATE and given_second < columns):
            counts[2] += 1
        at += bitmaps * bitmap
        while at < end:
            for image in range(bitmaps):
                side = 1 if (op == INSERT or image == 1) else 0
                present = first_present + image * bitmap
                given = given_second if image == 1 else given_first
                row = counts[side]
                if row >= out_at.shape[1]:
                    return number
                out_at[side, row] = at
                out_present[side, row] = present
                out_event[side, row] = number
                sides[counts[0] + counts[1]] = side
                bits = at
                at += (given + 7) // 8
                if at > end:
                    return number
                place = 0
                for column in range(columns):
                    if given < columns and (events[present + column // 8] >> (column % 8)) & 1 == 0:
                        continue
                    is_null = (events[bits + place // 8] >> (place % 8)) & 1
                    place += 1
                    if is_null:
                        continue
                    size = sizes[column]
                    if size > 0:
                        capacity[side, column] += text_max[column]
                        at += size
                    else:
                        prefix = a[column]
                        if at + prefix > end:
                            return number
                        length = little_endian(events, at, prefix)
                        at += prefix + length
                        if kinds[column] == W_PADDED:
                            if length > b[column]:
                                return number
                            length = b[column]
                        capacity[side, column] += length
                    if at > end:
                        return number
                counts[side] = row + 1
    return -1


@kernel
def _fill(  # noqa: C901, PLR0912, PLR0915 - as above
    events: U8,
    image_at: I64,
    image_present: I64,
    columns: int,
    kinds: I64,
    a: I64,
    b: I64,
    signed: U8,
    sizes: I64,
    digit_bytes: I64,
    validity: U8,
    nulls: I64,
    starts: I64,
    flat: U8,
    flat2: npt.NDArray[np.uint16],
    flat4: npt.NDArray[np.uint32],
    flat8: U64,
    offsets: I32,
    sparse: bool,
    missing: Flags,
) -> int:
    """Return the number of the first image that holds an impossible value, or -1. ``walk`` has checked every bound."""
    for row in range(len(image_at)):
        bits = image_at[row]
        present = image_present[row]
        given = columns
        if sparse:
            given = 0
            for column in range(columns):
                given += (events[present + column // 8] >> (column % 8)) & 1
        at = bits + (given + 7) // 8
        place = 0
        for column in range(columns):
            kind = kinds[column]
            if sparse and (events[present + column // 8] >> (column % 8)) & 1 == 0:
                missing[column, row] = True
                is_null = 1
            else:
                is_null = (events[bits + place // 8] >> (place % 8)) & 1
                place += 1
            if is_null:
                nulls[column] += 1
                validity[column, row // 8] &= np.uint8(255 ^ (1 << (row % 8)))
                if kind > FIXED_MAX:
                    offsets[column, row + 1] = offsets[column, row]
                continue
            start = starts[column]
            if kind <= FIXED_MAX:
                if kind == W_INT4:
                    flat4[start // 4 + row] = np.uint32(little_endian(events, at, 4))
                elif kind == W_INT8:
                    low = np.uint64(little_endian(events, at, 4))
                    high = np.uint64(little_endian(events, at + 4, 4))
                    flat8[start // 8 + row] = low | (high << np.uint64(32))
                elif kind == W_INT1:
                    flat[start + row] = events[at]
                elif kind == W_INT2:
                    flat2[start // 2 + row] = np.uint16(little_endian(events, at, 2))
                elif kind == W_INT3:
                    value = little_endian(events, at, 3)
                    if signed[column] != 0 and value >= 0x800000:
                        value |= 0xFF000000
                    flat4[start // 4 + row] = np.uint32(value)
                elif kind == W_YEAR:
                    year = int(events[at])
                    flat2[start // 2 + row] = np.uint16(1900 + year if year else 0)
                elif kind == W_ENUM:
                    flat2[start // 2 + row] = np.uint16(little_endian(events, at, a[column]))
                else:
                    number = np.uint64(0)
                    for p in range(a[column]):
                        shift = 8 * p if kind == W_SET else 8 * (a[column] - 1 - p)
                        number |= np.uint64(events[at + p]) << np.uint64(shift)
                    flat8[start // 8 + row] = number
                at += sizes[column]
                continue
            to = start + offsets[column, row]
            if kind <= W_PADDED:
                length = little_endian(events, at, a[column])
                at += a[column]
                for p in range(length):
                    flat[to + p] = events[at + p]
                at += length
                to += length
                if kind == W_PADDED:
                    for _ in range(b[column] - length):
                        flat[to] = 0
                        to += 1
            else:
                if kind == W_DECIMAL:
                    to = put_decimal(events, at, a[column], b[column], digit_bytes, flat, to)
                elif kind == W_DATETIME:
                    to = put_datetime(events, at, b[column], flat, to)
                elif kind == W_TIMESTAMP:
                    to = put_timestamp(events, at, b[column], flat, to)
                elif kind == W_DATE:
                    day = little_endian(events, at, 3)
                    to = put_date(day >> 9, (day >> 5) & 15, day & 31, flat, to)
                elif kind == W_TIME:
                    to = put_time(events, at, b[column], flat, to)
                elif kind == W_OLD_DATETIME:
                    to = put_old_datetime(events, at, flat, to)
                elif kind == W_OLD_TIMESTAMP:
                    to = put_seconds(little_endian(events, at, 4), flat, to)
                else:
                    to = put_old_time(events, at, flat, to)
                if to < 0:
                    return row
                at += sizes[column]
            offsets[column, row + 1] = to - start
    return -1
