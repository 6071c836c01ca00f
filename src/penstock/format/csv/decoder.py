"""The CSV decoder: the bytes of a data file and its schema back to typed columns.

The result has the representation of change batches: ``_ts``, ``_op`` (D and I rows of one update become BEFORE and UPDATE), then
``c<id>`` columns. Invariants: NULL and a quoted text that looks like it stay apart; a malformed file is an error that names file, line
and byte, never a wrong value and never a hang; memory beyond the result is bounded by a block of rows. Runs wherever a target is read.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.format.csv import tokens
from penstock.format.csv.dialect import CsvSettings, row_columns
from penstock.format.field_block import FieldBlock, malformed
from penstock.kernels.jit import I64, U8, byte_view
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.rows.elements import ELEMENT_KINDS
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.types import BINARY_KINDS, FLOAT_KINDS

BLOCK_FIELDS = 1 << 18
"""Fields that are tokenized at a time."""

_READERS = 2
_BLOCKS_WAITING_MAX = 3
_NO_OP = 255
_OP_OF_LETTER = np.full(256, _NO_OP, np.uint8)
_OP_OF_LETTER[list(b"IUD")] = [Op.INSERT, Op.UPDATE, Op.DELETE]


def decode(content: bytes, table: TableSchema, settings: CsvSettings, path: str = "CSV") -> pl.DataFrame:
    """Return the rows of a data file, in the order in which they stand in it."""
    header = settings.header(table)
    if not content.startswith(header):
        raise PenstockError("FILE_MALFORMED", f"{path}: line 1, byte 0: the header does not name the columns of the schema")
    columns = row_columns(table)
    fields = len(settings.meta_fields) + len(columns)
    data = np.frombuffer(content, np.uint8)
    # A row has at least a byte for each field: its delimiters and its line end.
    rows_max = max(1, min(BLOCK_FIELDS // fields, len(content) // fields))
    delimiter, terminator, null = (byte_view(t) for t in (settings.delimiter.encode(), settings.line_end, settings.null.encode()))
    quote = settings.quote.encode()[0] if settings.quote else -1
    plain = content.isascii()
    frames: list[pl.DataFrame] = []
    waiting: deque[Future[pl.DataFrame]] = deque()
    at = len(header)
    # One thread finds the fields of a block while others read those of the blocks before; the kernels of all release the lock.
    with ThreadPoolExecutor(_READERS, "csv-decoder") as pool:
        while at < len(content):
            starts, ends = np.empty((fields, rows_max), np.int64), np.empty((fields, rows_max), np.int64)
            sorts = np.empty((fields, rows_max), np.uint8)
            rows, at, error = tokens.tokenize(data, at, quote, delimiter, terminator, null, starts, ends, sorts)
            if error:
                # A fault in an earlier block is the one to tell.
                frames += [future.result() for future in waiting]
                raise malformed(path, content, at, tokens.ERROR_TEXTS[error])
            block = _Block(path, content, data, starts[:, :rows], ends[:, :rows], sorts[:, :rows], plain, quote)
            if at == len(content) and not waiting:
                frames.append(_block_frame(block, table, columns, settings))
                continue
            waiting.append(pool.submit(_block_frame, block, table, columns, settings))
            if len(waiting) > _BLOCKS_WAITING_MAX:
                frames.append(waiting.popleft().result())
        frames += [future.result() for future in waiting]
    return pl.concat(frames) if frames else empty_frame(table)


def empty_frame(table: TableSchema) -> pl.DataFrame:
    """Return a frame without rows that has the columns of this table version."""
    schema = table.batch_schema()
    return pl.DataFrame(
        pa.table({n: pa.array([], schema.field(n).type) for n in [COMMIT_TS, OP, *(c.field_name for c in row_columns(table))]})
    )


@dataclass(frozen=True, slots=True)
class _Block(FieldBlock):
    """Tokenized CSV rows; ``quote`` is -1 in escape mode."""

    quote: int

    def take_text(self, starts: I64, ends: I64, sorts: U8) -> tuple[I64, U8]:
        """Return offsets and bytes of one column's texts, with doubled quotes and escapes undone."""
        return tokens.take_text(self.data, starts, ends, sorts, self.quote)


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
    other = tokens.first_other(block.data, *block.field(at), byte_view(expected.encode()))
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
    if kind in ELEMENT_KINDS:
        return block.elements(at, column)
    if pa.types.is_integer(dtype):
        return pl.Series(block.integers(at, name, dtype))
    if kind in FLOAT_KINDS:
        return pl.Series(block.floats(at, column))
    series = pl.Series(block.text(at, name))
    if kind in BINARY_KINDS:
        values = series.str.decode(settings.binary_encoding.value, strict=False)
        block.fail_where(values.is_null() & series.is_not_null(), at, f"column {name}: not {settings.binary_encoding.value}")
        return values
    return series
