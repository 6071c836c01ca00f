"""The CSV encoder: ordered change rows of one table version to the bytes of a data file, in both dialects, all fields of a row in one pass.

The kernel sees a sheet of columns as one table of numbers (kind, addresses of validity, offsets and values, first row), so one compiled
function serves every table shape. It writes into a buffer of the caller; where a row might not fit it stops and says how
many rows are in. Text without a quote character, the common case, is copied eight bytes at a time; without quotes, line ends,
backslashes and delimiters stand behind a backslash. Invariants: nothing outside the described buffers is read; bytes depend on rows, table
and settings alone; the encoding of rows in two parts is the concatenation of the parts' encodings. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.format.column_texts import text_values
from penstock.format.csv.dialect import CsvSettings, row_columns
from penstock.format.go_floats import go_floats, rewritten_texts, shortest_texts
from penstock.format.sheet_kernels import (
    EIGHT,
    LOW_BITS,
    NUMBER_CHARS_MAX,
    ONE,
    ByteSpace,
    Space,
    described,
    fill,
    has_byte,
    is_null,
    put_signed,
    put_unsigned,
    text_bounds,
)
from penstock.kernels.byte_ranges import copy_short, same_bytes
from penstock.kernels.jit import I64, U8, kernel
from penstock.kernels.memory import load_u8, load_u64, store_u8, store_u64
from penstock.model.batch import without_before
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.types import FLOAT_KINDS, TypeKind

TEXT_QUOTED = 0
TEXT_ESCAPED = 1
TEXT_BARE = 2
TEXT_FLOAT = 3
SIGNED = 4
UNSIGNED = 5
LETTER = 6
CONSTANT = 7

# One entry of the sheet: kind, width of the values or offsets in bytes, validity, offsets, values, first row, and how many delimiter
# bytes stand before the field (of a constant: its length).
_PLAIN_MIN, _PLAIN_MAX = 1e-4, 1e6
_CR, _LF, _BACKSLASH = 13, 10, 92

_LETTERS_PLAIN = np.frombuffer(b"IUDD", np.uint8)
_LETTERS_OLD = np.frombuffer(b"IIDD", np.uint8)
_IS_UPDATE = np.array([False, True, False, True])


def encode_into(table: TableSchema, records: pa.RecordBatch, settings: CsvSettings, out: Space) -> None:
    """Append the rows as CSV, without a header.

    BEFORE rows are written only with ``output_old_value``: then an update is a D row and an I row, both marked as an update.
    """
    if not settings.output_old_value:
        records = without_before(records)
    if records.num_rows == 0:
        return
    _sheet(table, row_columns(table), records, settings).render_into(out)


def _sheet(table: TableSchema, columns: Sequence[Column], records: pa.RecordBatch, settings: CsvSettings) -> RowSheet:
    ops = records.column(OP).to_numpy(zero_copy_only=True)
    quote, delimiter = settings.quote.encode(), settings.delimiter.encode()
    rows = RowSheet(records.num_rows, quote, delimiter, settings.null.encode())
    rows.constant(quote)
    rows.letters((_LETTERS_OLD if settings.output_old_value else _LETTERS_PLAIN)[ops])
    rows.constant(quote)
    rows.constant(_names(table.table, table.schema, quote, delimiter))
    if settings.include_commit_ts:
        rows.integers(records.column(COMMIT_TS))
    if settings.output_old_value:
        rows.text(pa.array(["false", "true"]).take(pa.array(_IS_UPDATE[ops].astype(np.int8))), bare=True)
    for column in columns:
        values = records.column(column.field_name)
        if column.type.kind in FLOAT_KINDS:
            rows.floats(values)
        elif pa.types.is_integer(values.type) and column.type.kind not in {TypeKind.ENUM, TypeKind.SET}:
            rows.integers(values)
        elif pa.types.is_string(values.type):
            rows.text(values)
        else:
            texts = text_values(column, values, settings.binary_encoding)
            rows.text(texts.to_arrow(compat_level=pl.CompatLevel.oldest()))
    rows.constant(settings.line_end)
    return rows


@lru_cache(maxsize=1024)
def _names(table: str, schema: str, quote: bytes, delimiter: bytes) -> bytes:
    """Return the names that stand in every row of a table, each behind its delimiter."""
    row = RowSheet(1, quote, delimiter, b"")
    for name in (table, schema):
        row.text(pa.array([name], pa.string()))
    return row.render()


@kernel
def _put_quoted(source: np.uint64, size: np.int64, quote: np.uint8, to: np.uint64) -> np.uint64:
    """Put a text between quotes, quotes inside it doubled; return the address after it."""
    store_u8(to, quote)
    to += ONE
    pattern = np.uint64(quote) * LOW_BITS
    at, end = source, source + np.uint64(size)
    whole = source + np.uint64(size & ~7)
    while at < whole:
        word = load_u64(at)
        if has_byte(word, pattern):
            break
        store_u64(to, word)
        at += EIGHT
        to += EIGHT
    while at < end:
        byte = load_u8(at)
        if byte == quote:
            store_u8(to, quote)
            to += ONE
        store_u8(to, byte)
        at += ONE
        to += ONE
    store_u8(to, quote)
    return to + ONE


@kernel
def _put_escaped(source: np.uint64, size: np.int64, delimiter: np.uint64, delimiter_size: np.int64, to: np.uint64) -> np.uint64:
    """Put a text without quotes; return the address after it."""
    at, end = source, source + np.uint64(size)
    first = load_u8(delimiter)
    while at < end:
        byte = load_u8(at)
        run = np.int64(0)
        if byte in (_CR, _LF):
            store_u8(to, np.uint8(_BACKSLASH))
            store_u8(to + ONE, np.uint8(114) if byte == _CR else np.uint8(110))
            at += ONE
            to += np.uint64(2)
            continue
        if byte == _BACKSLASH:
            run = np.int64(1)
        elif byte == first:
            # The end of a value that begins a delimiter would run into the one that follows.
            here = min(np.int64(end - at), delimiter_size)
            run = here if same_bytes(at, delimiter, here) else run
        if run == 0:
            store_u8(to, byte)
            at += ONE
            to += ONE
        for _ in range(run):
            store_u8(to, np.uint8(_BACKSLASH))
            store_u8(to + ONE, load_u8(at))
            at += ONE
            to += np.uint64(2)
    return to


@kernel
def _size_max(sheet: I64, column: int, at: np.int64, null_size: int) -> np.uint64:
    """Return how many bytes a field may take at most, its delimiter included."""
    kind = sheet[column, 0]
    if kind == CONSTANT:
        return np.uint64(sheet[column, 6])
    lead = sheet[column, 6]
    if kind <= TEXT_FLOAT:
        low, high = text_bounds(np.uint64(sheet[column, 3]), sheet[column, 1], at)
        return np.uint64(lead + 2 * (high - low) + 2 + null_size)
    return np.uint64(lead + NUMBER_CHARS_MAX + 1 + null_size)


@kernel
def _put_text(
    sheet: I64, column: int, at: np.int64, quote: np.uint8, delimiter: np.uint64, delimiter_size: np.int64, to: np.uint64
) -> np.uint64:
    low, high = text_bounds(np.uint64(sheet[column, 3]), sheet[column, 1], at)
    source, size = np.uint64(sheet[column, 4]) + np.uint64(low), high - low
    if sheet[column, 0] == TEXT_QUOTED:
        return _put_quoted(source, size, quote, to)
    if sheet[column, 0] == TEXT_ESCAPED:
        return _put_escaped(source, size, delimiter, delimiter_size, to)
    if sheet[column, 0] == TEXT_FLOAT:
        # A whole number has a ".0" that the dialect does not show.
        end = source + np.uint64(size)
        if size > 2 and load_u8(end - np.uint64(2)) == 46 and load_u8(end - ONE) == 48:
            size -= 2
    copy_short(source, to, size)
    return to + np.uint64(size)


@kernel
def _put_number(sheet: I64, column: int, at: np.int64, to: np.uint64) -> np.uint64:
    values, width = np.uint64(sheet[column, 4]), sheet[column, 1]
    if sheet[column, 0] == LETTER:
        store_u8(to, load_u8(values + np.uint64(at)))
        return to + ONE
    if sheet[column, 0] == UNSIGNED:
        return put_unsigned(values, width, at, to)
    return put_signed(values, width, at, to)


@kernel
def write_rows(
    sheet: I64,
    start: int,
    rows: int,
    quote: int,
    delimiter: U8,
    null: U8,
    out: U8,
) -> tuple[int, int]:
    """Write rows from ``start`` on; return (rows written so far, bytes used).

    Stops before a row that might not fit: rows written < rows then, and the caller goes on with a new buffer.
    """
    base = np.uint64(out.ctypes.data)
    delimiter_at, delimiter_size = np.uint64(delimiter.ctypes.data), np.int64(len(delimiter))
    limit = base + np.uint64(len(out))
    to = base
    for row in range(start, rows):
        begin = to
        for column in range(sheet.shape[0]):
            at = sheet[column, 5] + row
            if to + _size_max(sheet, column, at, len(null)) > limit:
                return row, int(begin - base)
            if sheet[column, 0] == CONSTANT:
                copy_short(np.uint64(sheet[column, 4]), to, sheet[column, 6])
                to += np.uint64(sheet[column, 6])
                continue
            for i in range(sheet[column, 6]):
                store_u8(to, delimiter[i])
                to += ONE
            if is_null(np.uint64(sheet[column, 2]), at):
                for i in range(len(null)):
                    store_u8(to, null[i])
                    to += ONE
            elif sheet[column, 0] <= TEXT_FLOAT:
                to = _put_text(sheet, column, at, np.uint8(quote), delimiter_at, delimiter_size, to)
            else:
                to = _put_number(sheet, column, at, to)
    return rows, int(to - base)


class RowSheet:
    """The columns of one batch as the kernel reads them, in the order in which they stand in a row."""

    def __init__(self, rows: int, quote: bytes, delimiter: bytes, null: bytes) -> None:
        """Without a quote, texts are escaped."""
        self._rows = rows
        self._delimiter = np.frombuffer(delimiter, np.uint8)
        self._quote = quote[0] if quote else 0
        self._encoded = TEXT_QUOTED if quote else TEXT_ESCAPED
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

    def letters(self, letters: U8) -> None:
        """Add one byte per row."""
        self._kept.append(letters)
        self._entries.append((LETTER, 1, 0, 0, letters.ctypes.data, 0, 0))
        self._estimate += self._rows

    def integers(self, values: pa.Array) -> None:
        """Add whole numbers, bare."""
        self._add(SIGNED if pa.types.is_signed_integer(values.type) else UNSIGNED, values, 12)

    def text(self, values: pa.Array, *, bare: bool = False) -> None:
        """Add texts (string or large string), between quotes or escaped, or as they are."""
        self._add(TEXT_BARE if bare else self._encoded, values, 4)

    def floats(self, values: pa.Array) -> None:
        """Add floats as Go's %v writes them, bare.

        Between 1e-4 and 1e6 that is the shortest decimal text without an exponent; other values are rewritten.
        """
        numbers = np.abs(values.fill_null(0).to_numpy(zero_copy_only=False))
        plain = bool((((numbers >= _PLAIN_MIN) & (numbers < _PLAIN_MAX)) | (numbers == 0)).all())
        if plain:
            self._add(TEXT_FLOAT, shortest_texts(values), 4)
        else:
            self._add(TEXT_BARE, rewritten_texts(values, go_floats), 4)

    def render_into(self, space: Space) -> None:
        """Append all rows."""
        sheet, rows = np.array(self._entries, np.int64), self._rows
        size = int(self._estimate * 1.05) + 4096
        fill(space, rows, size, lambda done, out: write_rows(sheet, done, rows, self._quote, self._delimiter, self._null, out))

    def render(self) -> bytes:
        """Return all rows."""
        space = ByteSpace()
        self.render_into(space)
        return space.getvalue()

    def _add(self, kind: int, values: pa.Array, row_bytes: int) -> None:
        """Add a column that takes its texts and about so many bytes a row more."""
        place, nbytes = described(values)
        self._kept.append(values)
        self._entries.append((kind, *place, len(self._delimiter)))
        self._estimate += nbytes + (row_bytes + len(self._delimiter)) * self._rows
