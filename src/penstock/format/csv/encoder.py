"""The CSV encoder: ordered change rows of one table version to the bytes of a data file, columns at a time.

Quoted dialects go through the fused kernel of ``csv_rows``, the escaped one through the column kernels of ``csv_kernels`` (which are
only imported then). Invariants: bytes depend on rows, table and settings alone; the encoding
of rows in two parts is the concatenation of the parts' encodings. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format.csv.dialect import BinaryEncoding, CsvSettings, row_columns
from penstock.format.csv.rows import ByteSpace, RowSheet, Space
from penstock.model.batch import without_before
from penstock.model.elements import ELEMENT_KINDS, element_names
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.types import BINARY_KINDS, TypeKind

if TYPE_CHECKING:
    from penstock.format.csv.kernels import Bytes

FLOAT_KINDS = frozenset({TypeKind.FLOAT, TypeKind.DOUBLE})
_NO_FLAGS: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
_LETTERS_PLAIN = np.frombuffer(b"IUDD", np.uint8)
_LETTERS_OLD = np.frombuffer(b"IIDD", np.uint8)
_IS_UPDATE = np.array([False, True, False, True])


def encode(table: TableSchema, records: pa.RecordBatch, settings: CsvSettings) -> bytes:
    """Return the rows as CSV, without a header."""
    out = ByteSpace()
    encode_into(table, records, settings, out)
    return out.getvalue()


def encode_into(table: TableSchema, records: pa.RecordBatch, settings: CsvSettings, out: Space) -> None:
    """Append the rows as CSV, without a header.

    BEFORE rows are written only with ``output_old_value``: then an update is a D row and an I row, both marked as an update.
    """
    if not settings.output_old_value:
        records = without_before(records)
    if records.num_rows == 0:
        return
    columns = row_columns(table)
    if settings.quote:
        _quoted_rows(table, columns, records, settings).render_into(out)
    else:
        encoded = np.frombuffer(_encode_kernels(table, columns, records, settings), np.uint8)
        out.reserve(len(encoded))[: len(encoded)] = encoded
        out.advance(len(encoded))


def _quoted_rows(table: TableSchema, columns: Sequence[Column], records: pa.RecordBatch, settings: CsvSettings) -> RowSheet:
    ops = records.column(OP).to_numpy(zero_copy_only=True)
    quote, delimiter = settings.quote.encode(), settings.delimiter.encode()
    rows = RowSheet(records.num_rows, quote, delimiter, settings.null.encode())
    rows.constant(quote)
    rows.letters((_LETTERS_OLD if settings.output_old_value else _LETTERS_PLAIN)[ops])
    rows.constant(quote)
    for name in (table.table, table.schema):
        rows.constant(delimiter + quote + name.encode().replace(quote, quote * 2) + quote)
    if settings.include_commit_ts:
        rows.integers(records.column(COMMIT_TS))
    if settings.output_old_value:
        rows.text(pa.array(["false", "true"]).take(pa.array(_IS_UPDATE[ops].astype(np.int8))), quoted=False)
    for column in columns:
        values = records.column(column.field_name)
        if column.type.kind in FLOAT_KINDS:
            rows.floats(values)
        elif pa.types.is_integer(values.type) and column.type.kind not in {TypeKind.ENUM, TypeKind.SET}:
            rows.integers(values)
        elif pa.types.is_string(values.type):
            rows.text(values, quoted=True)
        else:
            texts = text_values(column, values, settings.binary_encoding)
            rows.text(texts.to_arrow(compat_level=pl.CompatLevel.oldest()), quoted=True)
    rows.constant(settings.line_end)
    return rows


def text_values(column: Column, values: pa.Array, binary_encoding: BinaryEncoding) -> pl.Series:
    """Return a column as polars has to write it: names of ENUM and SET, text of binary values, everything else as it is."""
    series = pl.Series(values)
    kind = column.type.kind
    if kind in ELEMENT_KINDS:
        return element_names(column, series)
    if kind in BINARY_KINDS:
        return series.bin.encode(binary_encoding.value)
    return series


def _encode_kernels(table: TableSchema, columns: Sequence[Column], records: pa.RecordBatch, settings: CsvSettings) -> bytes:
    sheet = _Sheet(records.num_rows, settings)
    ops = records.column(OP).to_numpy(zero_copy_only=True)
    quote = settings.quote.encode()
    sheet.constant(quote)
    sheet.letters((_LETTERS_OLD if settings.output_old_value else _LETTERS_PLAIN)[ops])
    sheet.constant(quote + sheet.delimiter + sheet.text_constant(table.table) + sheet.delimiter + sheet.text_constant(table.schema))
    if settings.include_commit_ts:
        sheet.constant(sheet.delimiter)
        sheet.integers(records.column(COMMIT_TS))
    if settings.output_old_value:
        sheet.constant(sheet.delimiter)
        sheet.text(pa.array(["false", "true"]).take(pa.array(_IS_UPDATE[ops].astype(np.int8))), bare=True)
    for column in columns:
        sheet.constant(sheet.delimiter)
        sheet.column(column, records.column(column.field_name))
    sheet.constant(settings.line_end)
    return sheet.render()


class _Sheet:
    """Fields of all rows, first measured, then put in place."""

    def __init__(self, rows: int, settings: CsvSettings) -> None:
        from penstock.format import go_floats
        from penstock.format.csv import kernels as csv_kernels

        self._kernels = csv_kernels
        self._go_floats = go_floats.go_floats
        self._lengths = np.zeros(rows, np.int64)
        self._constant_length = 0
        self._puts: list[tuple[str, tuple[object, ...]]] = []
        self._quote = settings.quote.encode()
        self.delimiter = settings.delimiter.encode()
        self._delimiter_bytes = _bytes(self.delimiter)
        self._null = _bytes(settings.null.encode())
        self._binary_encoding = settings.binary_encoding
        self._mode = csv_kernels.QUOTED if self._quote else csv_kernels.ESCAPED

    def constant(self, text: bytes) -> None:
        """Add the same bytes to every row."""
        if text:
            self._constant_length += len(text)
            self._puts.append(("put_constant", (_bytes(text),)))

    def text_constant(self, text: str) -> bytes:
        """Return one text as a field of this dialect."""
        if self._quote:
            return self._quote + text.encode().replace(self._quote, self._quote * 2) + self._quote
        one = _Sheet.__new__(_Sheet)
        one.__dict__.update(self.__dict__, _lengths=np.zeros(1, np.int64), _constant_length=0, _puts=[])
        one.text(pa.array([text]))
        return one.render()

    def letters(self, letters: Bytes) -> None:
        """Add one byte per row."""
        self._constant_length += 1
        self._puts.append(("put_letters", (letters,)))

    def column(self, column: Column, values: pa.Array) -> None:
        """Add a table column."""
        if column.type.kind in FLOAT_KINDS:
            self.floats(values)
        elif pa.types.is_integer(values.type) and column.type.kind not in {TypeKind.ENUM, TypeKind.SET}:
            self.integers(values)
        elif pa.types.is_string(values.type):
            self.text(values)
        else:
            series = text_values(column, values, self._binary_encoding)
            self.text(pc.cast(series.to_arrow(), pa.large_string()))

    def integers(self, values: pa.Array) -> None:
        """Add whole numbers, bare."""
        valid = _validity(values)
        numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
        if numbers.dtype.kind == "i":
            wide = numbers.astype(np.int64)
            negative = wide < 0
            magnitudes = np.where(negative, (~wide).view(np.uint64) + np.uint64(1), wide.view(np.uint64))
        else:
            negative, magnitudes = _NO_FLAGS, numbers.astype(np.uint64)
        self._kernels.add_int_lengths(magnitudes, negative, valid, len(self._null), self._lengths)
        self._puts.append(("put_ints", (magnitudes, negative, valid, self._null)))

    def floats(self, values: pa.Array) -> None:
        """Add floats as Go's %v writes them, bare."""
        valid = _validity(values)
        offsets, data = _text_buffers(pc.cast(values.fill_null(0), pa.large_string()))
        self._text(*self._go_floats(offsets, data), valid, self._kernels.BARE)

    def text(self, values: pa.Array, *, bare: bool = False) -> None:
        """Add texts, quoted or escaped as the dialect has it, or as they are."""
        offsets, data = _text_buffers(values)
        self._text(offsets, data, _validity(values), self._kernels.BARE if bare else self._mode)

    def _text(self, offsets: npt.NDArray[np.int64], data: Bytes, valid: npt.NDArray[np.bool_], mode: int) -> None:
        quote = self._quote[0] if self._quote else 0
        self._kernels.add_text_lengths(offsets, data, valid, mode, quote, self._delimiter_bytes, len(self._null), self._lengths)
        self._puts.append(("put_text", (offsets, data, valid, mode, quote, self._delimiter_bytes, self._null)))

    def render(self) -> bytes:
        """Return all rows."""
        ends = np.cumsum(self._lengths + self._constant_length)
        out = np.empty(int(ends[-1]), np.uint8)
        positions = ends - self._lengths - self._constant_length
        for kernel, arguments in self._puts:
            getattr(self._kernels, kernel)(*arguments, out, positions)
        return out.tobytes()


def _bytes(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)


def _validity(values: pa.Array) -> npt.NDArray[np.bool_]:
    if values.null_count == 0:
        return _NO_FLAGS
    flags: npt.NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    return flags


def _text_buffers(values: pa.Array) -> tuple[npt.NDArray[np.int64], Bytes]:
    """Return offsets and bytes of a string array, whatever slice it is."""
    _, offsets, data = values.buffers()
    width = np.int64 if pa.types.is_large_string(values.type) else np.int32
    starts = np.frombuffer(offsets, width)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return starts, np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
