"""Rows of a data file whose fields have been found: where each begins and ends and of which sort it is, and the way to typed columns.

Tokenizers of text protocols fill a block; what a column's type makes of its fields is the same for all of them. Invariant: a field that
does not hold a value of its column is an error that names file, line and byte. Runs wherever a target is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format.csv import tokens
from penstock.kernels.jit import I64, U8
from penstock.model.errors import PenstockError
from penstock.model.rows.elements import element_values
from penstock.model.table import Column


@dataclass(frozen=True, slots=True)
class FieldBlock:
    """Tokenized rows of one file; (fields, rows) arrays. Subclasses say how a text is written in their protocol."""

    path: str
    content: bytes
    data: U8
    starts: I64
    ends: I64
    sorts: U8
    plain: bool
    """Whether the whole file is ASCII, so that no text has to be looked at for UTF-8."""

    @property
    def rows(self) -> int:
        """Return how many rows the block has."""
        return int(self.starts.shape[1])

    def field(self, at: int) -> tuple[I64, I64, U8]:
        """Return where the fields of one column lie."""
        return self.starts[at], self.ends[at], self.sorts[at]

    def fail(self, row: int, at: int, what: str) -> PenstockError:
        """Return the error of one field."""
        return malformed(self.path, self.content, int(self.starts[at, row]), what)

    def fail_where(self, wrong: pl.Series, at: int, what: str) -> None:
        """Raise for the first row of which something is true."""
        if wrong.any():
            raise self.fail(int(wrong.arg_max() or 0), at, what)

    def take_text(self, starts: I64, ends: I64, sorts: U8) -> tuple[I64, U8]:
        """Return offsets and bytes of one column's texts; every protocol has its own way."""
        raise AssertionError(f"{type(self).__name__} takes no text")

    def text(self, at: int, name: str) -> pa.Array:
        """Return one column as texts."""
        starts, ends, sorts = self.field(at)
        offsets, data = self.take_text(starts, ends, sorts)
        array = pa.LargeStringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(data), _validity(sorts))
        if self.plain:
            return array
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise self.fail(_first_not_utf8(offsets, data), at, f"column {name}: not UTF-8") from error
        return array

    def integers(self, at: int, name: str, dtype: pa.DataType) -> pa.Array:
        """Return one column as whole numbers of an Arrow type."""
        starts, ends, sorts = self.field(at)
        magnitudes = np.empty(len(starts), np.uint64)
        negative = np.empty(len(starts), np.bool_)
        bad = tokens.take_ints(self.data, starts, ends, sorts, magnitudes, negative)
        if bad >= 0:
            raise self.fail(bad, at, f"column {name}: not a whole number")
        low, high = _integer_bounds(dtype)
        nulls = sorts == tokens.NULL
        mask = nulls if nulls.any() else None
        if not negative.any() and int(magnitudes.max(initial=0)) <= high:
            return pa.array(magnitudes.astype(dtype.to_pandas_dtype()), dtype, mask=mask)
        outside = np.where(negative, magnitudes > np.uint64(-low), magnitudes > np.uint64(high))
        if outside.any():
            raise self.fail(int(np.flatnonzero(outside)[0]), at, f"column {name}: a number beyond {dtype}")
        signed = np.where(negative, (~magnitudes) + np.uint64(1), magnitudes)
        values = signed.view(np.int64) if low else signed
        return pa.array(values.astype(dtype.to_pandas_dtype()), dtype, mask=mask)

    def floats(self, at: int, column: Column) -> pa.Array:
        """Return one column as floats."""
        # Arrow's parser rounds correctly at both widths, but knows no plus sign before infinity.
        plain = pc.replace_substring(self.text(at, column.name), "+Inf", "inf")
        try:
            return pc.cast(plain, column.type.arrow())
        except pa.ArrowInvalid:
            what = f"column {column.name}: not a number"
            self.fail_where(pl.Series(plain).cast(pl.Float64, strict=False).is_null() & pl.Series(plain).is_not_null(), at, what)
            raise self.fail(0, at, f"{what} in this block of rows") from None

    def elements(self, at: int, column: Column) -> pl.Series:
        """Return the numbers of an ENUM or SET whose names stand in the file."""
        texts = pl.Series(self.text(at, column.name))
        values = element_values(column, texts)
        self.fail_where(values.is_null() & texts.is_not_null(), at, f"column {column.name}: not an element of {column.type.kind}")
        return values


def malformed(path: str, content: bytes, at: int, what: str) -> PenstockError:
    """Return the error of a file that does not parse at one byte."""
    line = content.count(b"\n", 0, at) + 1
    return PenstockError("FILE_MALFORMED", f"{path}: line {line}, byte {at}: {what}")


def _validity(sorts: U8) -> pa.Buffer | None:
    nulls = sorts == tokens.NULL
    return pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes()) if nulls.any() else None


def _first_not_utf8(offsets: I64, data: U8) -> int:
    """Return the first row whose text is not UTF-8; only called once it is known that there is one."""
    try:
        data.tobytes().decode()
    except UnicodeDecodeError as error:
        return int(np.searchsorted(offsets, error.start, side="right")) - 1
    # Each text is cut in the middle of a character, so the whole reads well: the first cut inside a character is it.
    return int(np.flatnonzero((data[np.minimum(offsets[1:-1], len(data) - 1)] & 0xC0) == 0x80)[0])


def _integer_bounds(dtype: pa.DataType) -> tuple[int, int]:
    info = np.iinfo(dtype.to_pandas_dtype())
    return int(info.min), int(info.max)
