"""The fused CSV kernel: all fields of a row in one pass, straight from Arrow buffers, for the quoted dialect.

The kernel sees a sheet of columns as one table of numbers (kind, addresses of validity, offsets and values, first row), so one compiled
function serves every table shape. It writes into a buffer of the caller; where a row might not fit it stops and says how
many rows are in. Text without a quote character, the common case, is copied eight bytes at a time.
Invariant: nothing outside the described buffers is read. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numba
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from penstock.format.go_floats import go_floats

_F = TypeVar("_F", bound=Callable[..., Any])
jit: Callable[[_F], _F] = numba.njit(cache=True, nogil=True)
inlined: Callable[[_F], _F] = numba.njit(cache=True, nogil=True, inline="always")

TEXT_QUOTED = 0
TEXT_BARE = 1
TEXT_FLOAT = 2
SIGNED = 3
UNSIGNED = 4
LETTER = 5
CONSTANT = 6

# One entry of the sheet: kind, width of the values or offsets in bytes, validity, offsets, values, first row, and how many delimiter
# bytes stand before the field (of a constant: its length).
_INT_CHARS_MAX = 20
_PLAIN_MIN, _PLAIN_MAX = 1e-4, 1e6
_PAIRS = np.frombuffer(b"".join(b"%02d" % i for i in range(100)), np.uint16)


def _loader(bits: int, numba_type: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def load(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer)
            value.align = 1
            return value

        return numba_type(types.uint64), codegen

    return load


def _storer(bits: int, numba_type: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            builder.store(args[1], pointer).align = 1
            return context.get_dummy_value()

        return types.void(types.uint64, numba_type), codegen

    return store


load_u8 = _loader(8, types.uint8)
load_i8 = _loader(8, types.int8)
load_u16 = _loader(16, types.uint16)
load_i16 = _loader(16, types.int16)
load_u32 = _loader(32, types.uint32)
load_i32 = _loader(32, types.int32)
load_u64 = _loader(64, types.uint64)
load_i64 = _loader(64, types.int64)
store_u8 = _storer(8, types.uint8)
store_u16 = _storer(16, types.uint16)
store_u64 = _storer(64, types.uint64)

_ONE = np.uint64(1)
_EIGHT = np.uint64(8)
_LOW_BITS = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)


@jit
def _copy(source: np.uint64, to: np.uint64, size: np.int64) -> None:
    at = np.uint64(0)
    whole = np.uint64(size & ~7)
    while at < whole:
        store_u64(to + at, load_u64(source + at))
        at += _EIGHT
    end = np.uint64(size)
    while at < end:
        store_u8(to + at, load_u8(source + at))
        at += _ONE


@jit
def _put_quoted(source: np.uint64, size: np.int64, quote: np.uint8, to: np.uint64) -> np.uint64:
    """Put a text between quotes, quotes inside it doubled; return the address after it."""
    store_u8(to, quote)
    to += _ONE
    pattern = np.uint64(quote) * _LOW_BITS
    at, end = source, source + np.uint64(size)
    whole = source + np.uint64(size & ~7)
    while at < whole:
        word = load_u64(at)
        other = word ^ pattern
        # A byte of `other` is zero where the word has a quote.
        if (other - _LOW_BITS) & ~other & _HIGH_BITS:
            break
        store_u64(to, word)
        at += _EIGHT
        to += _EIGHT
    while at < end:
        byte = load_u8(at)
        if byte == quote:
            store_u8(to, quote)
            to += _ONE
        store_u8(to, byte)
        at += _ONE
        to += _ONE
    store_u8(to, quote)
    return to + _ONE


@jit
def _put_digits(value: np.uint64, to: np.uint64) -> np.uint64:
    size = np.uint64(1)
    bound = np.uint64(10)
    while value >= bound:
        size += _ONE
        if size == np.uint64(20):
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
        store_u8(at - _ONE, np.uint8(np.uint64(48) + rest))
    return to + size


@jit
def _load_signed(values: np.uint64, width: np.int64, row: np.int64) -> np.int64:
    address = values + np.uint64(row * width)
    if width == 4:
        return np.int64(load_i32(address))
    if width == 8:
        return np.int64(load_i64(address))
    if width == 2:
        return np.int64(load_i16(address))
    return np.int64(load_i8(address))


@jit
def _load_unsigned(values: np.uint64, width: np.int64, row: np.int64) -> np.uint64:
    address = values + np.uint64(row * width)
    if width == 4:
        return np.uint64(load_u32(address))
    if width == 8:
        return np.uint64(load_u64(address))
    if width == 2:
        return np.uint64(load_u16(address))
    return np.uint64(load_u8(address))


@jit
def _text_bounds(offsets: np.uint64, width: np.int64, row: np.int64) -> tuple[np.int64, np.int64]:
    address = offsets + np.uint64(row * width)
    if width == 4:
        return np.int64(load_i32(address)), np.int64(load_i32(address + np.uint64(4)))
    return load_i64(address), load_i64(address + _EIGHT)


@jit
def _is_null(validity: np.uint64, at: np.int64) -> bool:
    return validity != 0 and not (load_u8(validity + np.uint64(at >> 3)) >> np.uint8(at & 7)) & 1


@jit
def _size_max(sheet: npt.NDArray[np.int64], column: int, at: np.int64, null_size: int) -> np.uint64:
    """Return how many bytes a field may take at most, its delimiter included."""
    kind = sheet[column, 0]
    if kind == CONSTANT:
        return np.uint64(sheet[column, 6])
    lead = sheet[column, 6]
    if kind <= TEXT_FLOAT:
        low, high = _text_bounds(np.uint64(sheet[column, 3]), sheet[column, 1], at)
        return np.uint64(lead + 2 * (high - low) + 2 + null_size)
    return np.uint64(lead + _INT_CHARS_MAX + 1 + null_size)


@jit
def _put_text(sheet: npt.NDArray[np.int64], column: int, at: np.int64, quote: np.uint8, to: np.uint64) -> np.uint64:
    low, high = _text_bounds(np.uint64(sheet[column, 3]), sheet[column, 1], at)
    source, size = np.uint64(sheet[column, 4]) + np.uint64(low), high - low
    if sheet[column, 0] == TEXT_QUOTED:
        return _put_quoted(source, size, quote, to)
    if sheet[column, 0] == TEXT_FLOAT:
        # A whole number has a ".0" that the dialect does not show.
        end = source + np.uint64(size)
        if size > 2 and load_u8(end - np.uint64(2)) == 46 and load_u8(end - _ONE) == 48:
            size -= 2
    _copy(source, to, size)
    return to + np.uint64(size)


@jit
def _put_number(sheet: npt.NDArray[np.int64], column: int, at: np.int64, to: np.uint64) -> np.uint64:
    values, width = np.uint64(sheet[column, 4]), sheet[column, 1]
    if sheet[column, 0] == LETTER:
        store_u8(to, load_u8(values + np.uint64(at)))
        return to + _ONE
    if sheet[column, 0] == UNSIGNED:
        return _put_digits(_load_unsigned(values, width, at), to)
    number = _load_signed(values, width, at)
    if number < 0:
        store_u8(to, np.uint8(45))
        return _put_digits(np.uint64(~number) + _ONE, to + _ONE)
    return _put_digits(np.uint64(number), to)


@jit
def write_rows(
    sheet: npt.NDArray[np.int64],
    start: int,
    rows: int,
    quote: int,
    delimiter: npt.NDArray[np.uint8],
    null: npt.NDArray[np.uint8],
    out: npt.NDArray[np.uint8],
) -> tuple[int, int]:
    """Write rows from ``start`` on; return (rows written so far, bytes used).

    Stops before a row that might not fit: rows written < rows then, and the caller goes on with a new buffer.
    """
    base = np.uint64(out.ctypes.data)
    limit = base + np.uint64(len(out))
    to = base
    for row in range(start, rows):
        begin = to
        for column in range(sheet.shape[0]):
            at = sheet[column, 5] + row
            if to + _size_max(sheet, column, at, len(null)) > limit:
                return row, int(begin - base)
            if sheet[column, 0] == CONSTANT:
                _copy(np.uint64(sheet[column, 4]), to, sheet[column, 6])
                to += np.uint64(sheet[column, 6])
                continue
            for i in range(sheet[column, 6]):
                store_u8(to, delimiter[i])
                to += _ONE
            if _is_null(np.uint64(sheet[column, 2]), at):
                for i in range(len(null)):
                    store_u8(to, null[i])
                    to += _ONE
            elif sheet[column, 0] <= TEXT_FLOAT:
                to = _put_text(sheet, column, at, np.uint8(quote), to)
            else:
                to = _put_number(sheet, column, at, to)
    return rows, int(to - base)


class Space(Protocol):
    """Where bytes go: free space that can be written to, then taken over."""

    def reserve(self, size: int) -> npt.NDArray[np.uint8]:
        """Return free space, at least this large."""

    def advance(self, size: int) -> None:
        """Take over bytes that were written into the reserved space."""


class ByteSpace:
    """A space that gives its bytes at the end."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.uint8]] = []
        self._open: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def reserve(self, size: int) -> npt.NDArray[np.uint8]:
        """Return new free space of this size."""
        self._open = np.empty(size, np.uint8)
        return self._open

    def advance(self, size: int) -> None:
        """Keep the first bytes of the space."""
        self._parts.append(self._open[:size])

    def getvalue(self) -> bytes:
        """Return everything."""
        return b"".join(part.data for part in self._parts)


def _bytes_of(data: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)


class RowSheet:
    """The columns of one batch as the kernel reads them, in the order in which they stand in a row."""

    def __init__(self, rows: int, quote: bytes, delimiter: bytes, null: bytes) -> None:
        self._rows = rows
        self._delimiter = np.frombuffer(delimiter, np.uint8)
        self._quote = quote[0]
        self._null = np.frombuffer(null, np.uint8)
        self._entries: list[tuple[int, ...]] = []
        self._kept: list[object] = []
        self._estimate = 0

    def constant(self, text: bytes) -> None:
        """Add the same bytes to every row; neighbours become one."""
        if self._entries and self._entries[-1][0] == CONSTANT:
            text = self._kept.pop() + text  # type: ignore[operator]
            self._estimate -= self._entries.pop()[6] * self._rows
        data = np.frombuffer(text, np.uint8)
        self._kept.append(text)
        self._entries.append((CONSTANT, 1, 0, 0, data.ctypes.data, 0, len(text)))
        self._estimate += len(text) * self._rows

    def letters(self, letters: npt.NDArray[np.uint8]) -> None:
        """Add one byte per row."""
        self._kept.append(letters)
        self._entries.append((LETTER, 1, 0, 0, letters.ctypes.data, 0, 0))
        self._estimate += self._rows

    def integers(self, values: pa.Array) -> None:
        """Add whole numbers, bare."""
        validity, data = values.buffers()
        kind = SIGNED if pa.types.is_signed_integer(values.type) else UNSIGNED
        self._add(kind, values.type.bit_width // 8, values, validity, 0, data, 12 * self._rows)

    def text(self, values: pa.Array, *, quoted: bool) -> None:
        """Add texts (string or large string), between quotes or as they are."""
        validity, offsets, data = values.buffers()
        width = 8 if pa.types.is_large_string(values.type) else 4
        nbytes = 0
        if len(values):
            bounds = np.frombuffer(offsets, np.int64 if width == 8 else np.int32)
            nbytes = int(bounds[values.offset + len(values)] - bounds[values.offset])
        self._add(TEXT_QUOTED if quoted else TEXT_BARE, width, values, validity, offsets.address, data, nbytes + 4 * self._rows)

    def floats(self, values: pa.Array) -> None:
        """Add floats as Go's %v writes them, bare.

        Between 1e-4 and 1e6 that is the shortest decimal text without an exponent, which polars gives; other values are rewritten.
        """
        numbers = np.abs(values.fill_null(0).to_numpy(zero_copy_only=False))
        texts = pl.Series(values).cast(pl.String).to_arrow(compat_level=pl.CompatLevel.oldest())
        plain = bool((((numbers >= _PLAIN_MIN) & (numbers < _PLAIN_MAX)) | (numbers == 0)).all())
        validity, offsets, data = texts.buffers()
        if not plain:
            ends, data_bytes = go_floats(np.frombuffer(offsets, np.int64)[: len(texts) + 1], _bytes_of(data))
            offsets, data = pa.py_buffer(ends), pa.py_buffer(data_bytes)
        nbytes = int(np.frombuffer(offsets, np.int64)[len(texts)])
        self._kept.append(offsets)
        self._kept.append(data)
        kind = TEXT_FLOAT if plain else TEXT_BARE
        self._add(kind, 8, texts, validity, offsets.address, data, nbytes + 4 * self._rows)

    def render_into(self, space: Space) -> None:
        """Append all rows."""
        sheet = np.array(self._entries, np.int64)
        done, size = 0, int(self._estimate * 1.05) + 4096
        while done < self._rows:
            reached, used = write_rows(sheet, done, self._rows, self._quote, self._delimiter, self._null, space.reserve(size))
            space.advance(used)
            if reached == done:
                # Not even one row fits.
                size *= 2
            done = reached

    def render(self) -> bytes:
        """Return all rows."""
        space = ByteSpace()
        self.render_into(space)
        return space.getvalue()

    def _add(
        self, kind: int, width: int, values: pa.Array, validity: pa.Buffer | None, offsets: int, data: pa.Buffer | None, size: int
    ) -> None:
        self._kept.append(values)
        address = data.address if data is not None else 0
        known = validity.address if validity is not None and values.null_count else 0
        self._entries.append((kind, width, known, offsets, address, values.offset, len(self._delimiter)))
        self._estimate += size + len(self._delimiter) * self._rows
