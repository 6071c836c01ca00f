"""The CSV decoder: the bytes of a data file and its schema back to typed columns.

The result has the representation of change batches: ``_ts``, ``_op`` (D and I rows of one update become BEFORE and UPDATE), then
``c<id>`` columns. Invariants: NULL and a quoted text that looks like it stay apart; a malformed file is an error that names file, line
and byte, never a wrong value and never a hang; memory beyond the result is bounded by a block of rows. Runs wherever a target is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format import csv_tokens as tokens
from penstock.format.csv_dialect import CsvSettings, row_columns
from penstock.format.csv_encoder import FLOAT_KINDS
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.types import BINARY_KINDS, TypeKind

BLOCK_FIELDS = 1 << 18
"""Fields that are tokenized at a time."""

_NO_OP = 255
_OP_OF_LETTER = np.full(256, _NO_OP, np.uint8)
_OP_OF_LETTER[list(b"IUD")] = [Op.INSERT, Op.UPDATE, Op.DELETE]


def decode(content: bytes, table: TableSchema, settings: CsvSettings, path: str = "CSV") -> pl.DataFrame:
    """Return the rows of a data file, in the order in which they stand in it."""
    header = settings.header(table)
    if not content.startswith(header):
        raise PenstockError("FILE_MALFORMED", f"{path}: line 1: the header does not name the columns of the schema")
    columns = row_columns(table)
    fields = len(settings.meta_fields) + len(columns)
    data = np.frombuffer(content, np.uint8)
    # A row has at least a byte for each field: its delimiters and its line end.
    rows_max = max(1, min(BLOCK_FIELDS // fields, len(content) // fields))
    starts = np.empty((fields, rows_max), np.int64)
    ends = np.empty((fields, rows_max), np.int64)
    sorts = np.empty((fields, rows_max), np.uint8)
    delimiter, terminator, null = (_bytes(t) for t in (settings.delimiter.encode(), settings.line_end, settings.null.encode()))
    quote = settings.quote.encode()[0] if settings.quote else -1
    frames = []
    at = len(header)
    while at < len(content):
        rows, at, error = tokens.tokenize(data, at, quote, delimiter, terminator, null, starts, ends, sorts)
        if error:
            raise _malformed(path, content, at, tokens.ERROR_TEXTS[error])
        block = _Block(path, content, data, quote, starts[:, :rows], ends[:, :rows], sorts[:, :rows])
        frames.append(_block_frame(block, table, columns, settings))
    return pl.concat(frames) if frames else empty_frame(table)


def empty_frame(table: TableSchema) -> pl.DataFrame:
    """Return a frame without rows that has the columns of this table version."""
    schema = table.batch_schema()
    return pl.DataFrame(
        pa.table({n: pa.array([], schema.field(n).type) for n in [COMMIT_TS, OP, *(c.field_name for c in row_columns(table))]})
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """Tokenized rows of one file."""

    path: str
    content: bytes
    data: npt.NDArray[np.uint8]
    quote: int
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    sorts: npt.NDArray[np.uint8]

    def field(self, at: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        return self.starts[at], self.ends[at], self.sorts[at]

    def fail(self, row: int, at: int, what: str) -> PenstockError:
        """Return the error of one field."""
        return _malformed(self.path, self.content, int(self.starts[at, row]), what)

    def fail_where(self, wrong: pl.Series, at: int, what: str) -> None:
        """Raise for the first row of which something is true."""
        if wrong.any():
            raise self.fail(int(wrong.arg_max() or 0), at, what)

    def text(self, at: int, name: str) -> pa.Array:
        starts, ends, sorts = self.field(at)
        offsets, data = tokens.take_text(self.data, starts, ends, sorts, self.quote)
        nulls = sorts == tokens.NULL
        validity = pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes()) if nulls.any() else None
        array = pa.LargeStringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(data), validity)
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise self.fail(_first_not_utf8(offsets, data), at, f"column {name}: not UTF-8") from error
        return array

    def integers(self, at: int, name: str, dtype: pa.DataType) -> pa.Array:
        starts, ends, sorts = self.field(at)
        magnitudes = np.empty(len(starts), np.uint64)
        negative = np.empty(len(starts), np.bool_)
        bad = tokens.take_ints(self.data, starts, ends, sorts, magnitudes, negative)
        if bad >= 0:
            raise self.fail(bad, at, f"column {name}: not a whole number")
        low, high = _integer_bounds(dtype)
        outside = np.where(negative, magnitudes > np.uint64(-low), magnitudes > np.uint64(high))
        if outside.any():
            raise self.fail(int(np.flatnonzero(outside)[0]), at, f"column {name}: a number beyond {dtype}")
        signed = np.where(negative, (~magnitudes) + np.uint64(1), magnitudes)
        values = signed.view(np.int64) if low else signed
        nulls = sorts == tokens.NULL
        return pa.array(values.astype(dtype.to_pandas_dtype()), dtype, mask=nulls if nulls.any() else None)


def _block_frame(block: _Block, table: TableSchema, columns: tuple[Column, ...], settings: CsvSettings) -> pl.DataFrame:
    _check_constant(block, 1, table.table, "table")
    _check_constant(block, 2, table.schema, "schema")
    ops = _ops(block, settings)
    at = 3
    if settings.include_commit_ts:
        commit_ts = block.integers(at, "commit-ts", pa.uint64())
        at += 1
    else:
        commit_ts = pa.array(np.zeros(block.starts.shape[1], np.uint64))
    at = len(settings.meta_fields)
    series = [pl.Series(COMMIT_TS, commit_ts), ops]
    series.extend(_column_values(block, at + n, column, settings).alias(column.field_name) for n, column in enumerate(columns))
    return pl.DataFrame(series)


def _check_constant(block: _Block, at: int, expected: str, name: str) -> None:
    other = tokens.first_other(block.data, *block.field(at), _bytes(expected.encode()))
    # Names with a quote or an escape in them are compared as texts.
    if other >= 0:
        values = pl.Series(block.text(at, name))
        block.fail_where((values != expected).fill_null(True), at, f"the {name} name is not {expected!r}")


def _ops(block: _Block, settings: CsvSettings) -> pl.Series:
    letters = np.empty(block.starts.shape[1], np.uint8)
    tokens.take_letters(block.data, *block.field(0), letters)
    codes = _OP_OF_LETTER[letters]
    wrong = np.flatnonzero(codes == _NO_OP)
    if len(wrong):
        raise block.fail(int(wrong[0]), 0, "the operation is none of I, U, D")
    ops = pl.Series(OP, codes)
    if settings.output_old_value:
        at = len(settings.meta_fields) - 1
        words = pl.Series(block.text(at, "is-update"))
        block.fail_where(~words.is_in(["true", "false"]).fill_null(False), at, "is-update is neither true nor false")
        updated = {int(Op.INSERT): int(Op.UPDATE), int(Op.DELETE): int(Op.BEFORE)}
        ops = pl.select(pl.when(words == "true").then(ops.replace(updated)).otherwise(ops)).to_series().cast(pl.UInt8)
    return ops.alias(OP)


def _column_values(block: _Block, at: int, column: Column, settings: CsvSettings) -> pl.Series:
    kind, dtype, name = column.type.kind, column.type.arrow(), column.name
    if kind in {TypeKind.ENUM, TypeKind.SET}:
        texts = pl.Series(block.text(at, name))
        values = _enum_indexes(column, texts) if kind is TypeKind.ENUM else _set_masks(column, texts)
        block.fail_where(values.is_null() & texts.is_not_null(), at, f"column {name}: not an element of {kind.value}")
        return values
    if pa.types.is_integer(dtype):
        return pl.Series(block.integers(at, name, dtype))
    texts = block.text(at, name)
    if kind in FLOAT_KINDS:
        return pl.Series(_floats(block, at, column, texts))
    series = pl.Series(texts)
    if kind in BINARY_KINDS:
        values = series.str.decode(settings.binary_encoding.value, strict=False)
        block.fail_where(values.is_null() & series.is_not_null(), at, f"column {name}: not {settings.binary_encoding.value}")
        return values
    return series


def _floats(block: _Block, at: int, column: Column, texts: pa.Array) -> pa.Array:
    # Arrow's parser rounds correctly at both widths, but knows no plus sign before infinity.
    plain = pc.replace_substring(texts, "+Inf", "inf")
    try:
        return pc.cast(plain, column.type.arrow())
    except pa.ArrowInvalid:
        what = f"column {column.name}: not a number"
        block.fail_where(pl.Series(plain).cast(pl.Float64, strict=False).is_null() & pl.Series(plain).is_not_null(), at, what)
        raise block.fail(0, at, f"{what} in this block of rows") from None


def _first_not_utf8(offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> int:
    """Return the first row whose text is not UTF-8; only called once it is known that there is one."""
    try:
        data.tobytes().decode()
    except UnicodeDecodeError as error:
        return int(np.searchsorted(offsets, error.start, side="right")) - 1
    # Each text is cut in the middle of a character, so the whole reads well: the first cut inside a character is it.
    return int(np.flatnonzero((data[np.minimum(offsets[1:-1], len(data) - 1)] & 0xC0) == 0x80)[0])


def _enum_indexes(column: Column, texts: pl.Series) -> pl.Series:
    names = ["", *column.type.elems]
    # The first element of a name wins, and an element that is itself empty wins over the error value 0.
    index = {name: at for at, name in reversed(list(enumerate(names)))}
    if "" in column.type.elems:
        index[""] = names.index("", 1)
    return texts.replace_strict(list(index), list(index.values()), default=None, return_dtype=pl.UInt16)


def _set_masks(column: Column, texts: pl.Series) -> pl.Series:
    distinct = texts.drop_nulls().unique()
    bits: dict[str, int] = {name: 1 << at for at, name in reversed(list(enumerate(column.type.elems)))}
    masks: dict[str, Any] = {}
    # One step per distinct combination, of which a SET column has few, never per row.
    for text in distinct.to_list():
        parts = [bits.get(part) for part in text.split(",")] if text else []
        masks[text] = None if None in parts else sum(p for p in parts if p is not None)
    return texts.replace_strict(
        pl.Series(list(masks), dtype=pl.String), pl.Series(list(masks.values()), dtype=pl.UInt64), default=None, return_dtype=pl.UInt64
    )


def _integer_bounds(dtype: pa.DataType) -> tuple[int, int]:
    info = np.iinfo(dtype.to_pandas_dtype())
    return int(info.min), int(info.max)


def _malformed(path: str, content: bytes, at: int, what: str) -> PenstockError:
    line = content.count(b"\n", 0, at) + 1
    return PenstockError("FILE_MALFORMED", f"{path}: line {line}, byte {at}: {what}")


def _bytes(text: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text, np.uint8)
