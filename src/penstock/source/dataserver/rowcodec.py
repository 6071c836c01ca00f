"""Row values: how a row stands in one byte string, and the kernels that turn columns into values and back.

A value is ``[u8 format][u64 LE schema version]``, a null bitmap (bit c % 8 of byte c // 8 is set where column c is NULL), then the
columns that are not NULL in table order: fixed-width ones little endian, others as a u32 LE length and the bytes. Decoding checks every
bound: truncated, mutated or over-long bytes give ``DECODE_FAILED`` with the row's number, never a crash and never a column of another
length. Each direction takes two passes: measure, then fill. Runs in the data server, the log service and on executors.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

from penstock.kernels.jit import EMPTY_U8, I64, INT32_MAX, U8, U64, binary_array, binary_view, kernel
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema

FORMAT_V1 = 1
HEADER_BYTES = 9
_ALIGN_BYTES = 64


class RowLayout:
    """What the kernels must know of a table version: flat descriptor arrays, made once."""

    def __init__(self, table: TableSchema) -> None:
        self.table = table
        self.schema = table.row_schema()
        self.columns = len(table.columns)
        self.bitmap_bytes = (self.columns + 7) // 8
        self.widths = np.array([_width(f.type) for f in self.schema], dtype=np.int64)
        self.slots = np.zeros(self.columns, dtype=np.int64)
        self.fixed = [c for c in range(self.columns) if self.widths[c]]
        self.variable = [c for c in range(self.columns) if not self.widths[c]]
        self.slots[self.fixed] = np.arange(len(self.fixed))
        self.slots[self.variable] = np.arange(len(self.variable))

    def fixed_starts(self, rows: int) -> tuple[I64, int]:
        """Return where each fixed column begins in one aligned buffer, and the buffer's size."""
        starts = np.zeros(max(1, len(self.fixed)), dtype=np.int64)
        at = 0
        for slot, column in enumerate(self.fixed):
            starts[slot] = at
            at += -(-rows * int(self.widths[column]) // _ALIGN_BYTES) * _ALIGN_BYTES
        return starts, at


@lru_cache(maxsize=1024)
def layout_of(table: TableSchema) -> RowLayout:
    """Return the layout of a table version."""
    return RowLayout(table)


def value_header(version: int) -> bytes:
    """Return the first nine bytes of every value of a schema version."""
    return bytes([FORMAT_V1]) + version.to_bytes(8, "little")


def encode_values(table: TableSchema, columns: dict[str, pa.Array]) -> pa.Array:
    """Return the values of rows given as columns by field name."""
    layout = layout_of(table)
    arrays = [columns[field.name] for field in layout.schema]
    rows = len(arrays[0]) if arrays else 0
    for column, array, field in zip(table.columns, arrays, layout.schema, strict=True):
        if array.type != field.type or len(array) != rows:
            raise PenstockError(
                "CONFIG_INVALID", f"column {column.name} of {table.full_name} must hold {rows} x {field.type}, got {array.type}"
            )
        if array.null_count and not column.nullable:
            raise PenstockError("CONFIG_INVALID", f"column {column.name} of {table.full_name} is NOT NULL and holds a NULL")
    nulls = np.zeros((layout.columns, rows), dtype=np.uint8)
    for at, array in enumerate(arrays):
        if array.null_count:
            nulls[at] = array.is_null().to_numpy(zero_copy_only=False)
    fixed, fixed_starts = _flatten_fixed(layout, arrays, rows)
    flat, starts = _flatten_variable(layout, arrays, rows)
    offsets = np.zeros(rows + 1, dtype=np.int64)
    _measure_values(HEADER_BYTES + layout.bitmap_bytes, layout.widths, layout.slots, nulls, starts, offsets)
    if offsets[-1] > INT32_MAX:
        raise PenstockError("CONFIG_INVALID", f"rows of {table.full_name} exceed 2 GiB in one batch")
    out = np.zeros(int(offsets[-1]), dtype=np.uint8)
    header = np.frombuffer(value_header(table.version), dtype=np.uint8)
    _fill_values(header, layout.bitmap_bytes, layout.widths, layout.slots, nulls, fixed, fixed_starts, flat, starts, offsets, out)
    return binary_array(out, offsets)


def decode_values(table: TableSchema, values: pa.Array) -> list[pa.Array]:
    """Return the columns of values that are all of this table version, in table order."""
    layout = layout_of(table)
    rows = len(values)
    data, offsets = binary_view(values)
    validity = np.zeros((max(1, layout.columns), (rows + 7) // 8), dtype=np.uint8)
    null_counts = np.zeros(max(1, layout.columns), dtype=np.int64)
    var_offsets = np.zeros((max(1, len(layout.variable)), rows + 1), dtype=np.int64)
    header = np.frombuffer(value_header(table.version), dtype=np.uint8)
    bad = _measure_columns(data, offsets, header, layout.columns, layout.widths, layout.slots, validity, null_counts, var_offsets)
    if bad >= 0:
        raise PenstockError("DECODE_FAILED", f"value {bad} of {rows} of {table.full_name} version {table.version} is malformed")
    if len(layout.variable) and int(var_offsets[:, -1].max()) > INT32_MAX:
        raise PenstockError("DECODE_FAILED", f"a column of {table.full_name} exceeds 2 GiB in one batch")
    fixed_starts, fixed_bytes = layout.fixed_starts(rows)
    fixed = np.zeros(fixed_bytes, dtype=np.uint8)
    var_bases = np.zeros(var_offsets.shape[0] + 1, dtype=np.int64)
    np.cumsum(var_offsets[:, -1], out=var_bases[1:])
    flat = np.empty(int(var_bases[-1]), dtype=np.uint8)
    seen = np.zeros(var_offsets.shape[0], dtype=np.uint8)
    _fill_columns(data, offsets, layout.columns, layout.widths, layout.slots, fixed, fixed_starts, flat, var_bases, var_offsets, seen)
    return _arrays(layout, rows, validity, null_counts, fixed, fixed_starts, flat, var_bases, var_offsets, seen)


def schema_versions(values: pa.Array) -> U64:
    """Return the schema version of each value; values must not be null. Bytes that are too short or of another format are an error."""
    data, offsets = binary_view(values)
    versions = np.zeros(len(values), dtype=np.uint64)
    bad = _read_versions(data, offsets, FORMAT_V1, versions)
    if bad >= 0:
        raise PenstockError("DECODE_FAILED", f"value {bad} of {len(values)} has no header of format {FORMAT_V1}")
    return versions


def _width(data_type: pa.DataType) -> int:
    return 0 if pa.types.is_string(data_type) or pa.types.is_binary(data_type) else data_type.bit_width // 8


def _flatten_fixed(layout: RowLayout, arrays: list[pa.Array], rows: int) -> tuple[U8, I64]:
    starts, size = layout.fixed_starts(rows)
    flat = np.zeros(size, dtype=np.uint8)
    for slot, column in enumerate(layout.fixed):
        width = int(layout.widths[column])
        array = arrays[column]
        data = array.buffers()[1]
        if rows and data is not None:
            view = np.frombuffer(data, dtype=np.uint8)[array.offset * width : (array.offset + rows) * width]
            flat[starts[slot] : starts[slot] + rows * width] = view
    return flat, starts


def _flatten_variable(layout: RowLayout, arrays: list[pa.Array], rows: int) -> tuple[U8, I64]:
    starts = np.zeros((max(1, len(layout.variable)), rows + 1), dtype=np.int64)
    pieces: list[U8] = [EMPTY_U8]
    base = 0
    for slot, column in enumerate(layout.variable):
        data, offsets = binary_view(arrays[column])
        piece = data[offsets[0] : offsets[-1]]
        starts[slot] = offsets - offsets[0] + base
        base += len(piece)
        pieces.append(piece)
    return np.concatenate(pieces), starts


def _arrays(
    layout: RowLayout,
    rows: int,
    validity: U8,
    null_counts: I64,
    fixed: U8,
    fixed_starts: I64,
    flat: U8,
    var_bases: I64,
    var_offsets: I64,
    seen: U8,
) -> list[pa.Array]:
    arrays = []
    for at, field in enumerate(layout.schema):
        slot, nulls = int(layout.slots[at]), int(null_counts[at])
        mask = pa.py_buffer(validity[at]) if nulls else None
        if layout.widths[at]:
            start = int(fixed_starts[slot])
            buffers = [mask, pa.py_buffer(fixed[start : start + rows * int(layout.widths[at])])]
        else:
            piece = flat[int(var_bases[slot]) : int(var_bases[slot + 1])]
            buffers = [mask, pa.py_buffer(var_offsets[slot].astype(np.int32)), pa.py_buffer(piece)]
        array = pa.Array.from_buffers(field.type, rows, buffers, null_count=nulls)
        # Bytes below 128 are ASCII, which needs no check; numbers, dates and most texts are nothing else.
        if pa.types.is_string(field.type) and seen[slot] > 127:
            _check_utf8(array, layout.table, layout.table.columns[at].name)
        arrays.append(array)
    return arrays


def _check_utf8(array: pa.Array, table: TableSchema, column: str) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise PenstockError("DECODE_FAILED", f"column {column} of {table.full_name} is not UTF-8") from error


@kernel
def _measure_values(head: int, widths: I64, slots: I64, nulls: U8, starts: I64, offsets: I64) -> None:
    for row in range(len(offsets) - 1):
        size = head
        for column in range(len(widths)):
            if nulls[column, row] != 0:
                continue
            if widths[column] > 0:
                size += widths[column]
            else:
                size += 4 + starts[slots[column], row + 1] - starts[slots[column], row]
        offsets[row + 1] = offsets[row] + size


@kernel
def _fill_values(
    header: U8, bitmap: int, widths: I64, slots: I64, nulls: U8, fixed: U8, fixed_starts: I64, flat: U8, starts: I64, offsets: I64, out: U8
) -> None:
    for row in range(len(offsets) - 1):
        at = offsets[row]
        for p in range(len(header)):
            out[at + p] = header[p]
        bits = at + len(header)
        at = bits + bitmap
        for column in range(len(widths)):
            slot = slots[column]
            width = widths[column]
            if nulls[column, row] != 0:
                out[bits + column // 8] |= np.uint8(1 << (column % 8))
            elif width > 0:
                source = fixed_starts[slot] + row * width
                for p in range(width):
                    out[at + p] = fixed[source + p]
                at += width
            else:
                source = starts[slot, row]
                length = starts[slot, row + 1] - source
                for p in range(4):
                    out[at + p] = (length >> (8 * p)) & 255
                at += 4
                for p in range(length):
                    out[at + p] = flat[source + p]
                at += length


@kernel
def _measure_columns(  # noqa: C901, PLR0911, PLR0912 - one loop nest, because a call per field would cost more than the field
    data: U8, offsets: I64, header: U8, columns: int, widths: I64, slots: I64, validity: U8, null_counts: I64, var_offsets: I64
) -> int:
    bitmap = (columns + 7) // 8
    for row in range(len(offsets) - 1):
        at = offsets[row]
        end = offsets[row + 1]
        if at < 0 or end > len(data) or end - at < len(header) + bitmap:
            return row
        for p in range(len(header)):
            if data[at + p] != header[p]:
                return row
        bits = at + len(header)
        at = bits + bitmap
        # Bits past the last column have no meaning, so a set one shows that the bytes were written for another layout.
        if columns % 8 != 0 and (data[at - 1] >> (columns % 8)) != 0:
            return row
        for column in range(columns):
            is_null = (data[bits + column // 8] >> (column % 8)) & 1
            width = widths[column]
            length = 0
            if is_null != 0:
                null_counts[column] += 1
            else:
                validity[column, row // 8] |= np.uint8(1 << (row % 8))
                if width > 0:
                    at += width
                else:
                    if end - at < 4:
                        return row
                    for p in range(4):
                        length |= int(data[at + p]) << (8 * p)
                    at += 4 + length
                if at > end:
                    return row
            if width == 0:
                var_offsets[slots[column], row + 1] = var_offsets[slots[column], row] + length
        if at != end:
            return row
    return -1


@kernel
def _fill_columns(
    data: U8,
    offsets: I64,
    columns: int,
    widths: I64,
    slots: I64,
    fixed: U8,
    fixed_starts: I64,
    flat: U8,
    var_bases: I64,
    var_offsets: I64,
    seen: U8,
) -> None:
    """Copy every field to its column; ``seen`` collects the bits of all bytes of a variable column."""
    bitmap = (columns + 7) // 8
    for row in range(len(offsets) - 1):
        bits = offsets[row] + 9
        at = bits + bitmap
        for column in range(columns):
            if (data[bits + column // 8] >> (column % 8)) & 1:
                continue
            slot = slots[column]
            width = widths[column]
            if width > 0:
                target = fixed_starts[slot] + row * width
                for p in range(width):
                    fixed[target + p] = data[at + p]
                at += width
            else:
                at += 4
                target = var_bases[slot] + var_offsets[slot, row]
                length = var_offsets[slot, row + 1] - var_offsets[slot, row]
                bits_seen = seen[slot]
                for p in range(length):
                    byte = data[at + p]
                    flat[target + p] = byte
                    bits_seen |= byte
                seen[slot] = bits_seen
                at += length


@kernel
def _read_versions(data: U8, offsets: I64, row_format: int, versions: U64) -> int:
    for row in range(len(versions)):
        at = offsets[row]
        if at < 0 or offsets[row + 1] > len(data) or offsets[row + 1] - at < 9 or data[at] != row_format:
            return row
        version = np.uint64(0)
        for p in range(8):
            version |= np.uint64(data[at + 1 + p]) << np.uint64(8 * p)
        versions[row] = version
    return -1
