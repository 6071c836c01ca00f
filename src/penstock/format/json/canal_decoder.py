"""The Canal-JSON decoder: the messages of a data file and its schema back to typed columns.

The result has the representation of change batches: ``_ts``, ``_op``, then ``c<id>`` columns; an update with old values is a BEFORE row
and an UPDATE row. Keys may stand in any order and unknown ones are passed over, so files of other writers are read too. Invariants: a
column that ``data`` lacks is an error, except the columns that a delete with handle keys only leaves out; a column that ``old`` lacks
did not change; a malformed file is an error that names file, line and byte. Runs wherever a target is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.format.csv.decoder import empty_frame
from penstock.format.csv.dialect import row_columns
from penstock.format.csv.tokens import NULL
from penstock.format.field_block import FieldBlock, malformed
from penstock.format.json import strings, tokens
from penstock.format.old_values import OLD, expand_updates, old_name
from penstock.kernels.jit import I64, U8
from penstock.model.batch import Op
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.types import BINARY_KINDS, FLOAT_KINDS

BLOCK_FIELDS = 1 << 18
"""Fields that are tokenized at a time."""

_OPS = {"INSERT": int(Op.INSERT), "UPDATE": int(Op.UPDATE), "DELETE": int(Op.DELETE)}


def decode(content: bytes, table: TableSchema, path: str = "Canal-JSON") -> pl.DataFrame:
    """Return the rows of a data file, in the order in which they stand in it."""
    columns = row_columns(table)
    head = [("database",), ("table",), ("type",), ("_tidb", "commitTs")]
    keys = tokens.KeyTable.of([*head, *(("data", c.name) for c in columns), *(("old", c.name) for c in columns)])
    frames = [_frame(block, keys, table, columns) for block in json_blocks(content, keys, path)]
    return expand_updates(pl.concat(frames), table) if frames else empty_frame(table)


@dataclass(frozen=True, slots=True)
class JsonBlock(FieldBlock):
    """Tokenized JSON messages."""

    def take_text(self, starts: I64, ends: I64, sorts: U8) -> tuple[I64, U8]:
        """Return offsets and bytes of one slot's texts, with escapes undone."""
        offsets, data, bad = strings.take_text(self.data, starts, ends, sorts)
        if bad >= 0:
            raise malformed(self.path, self.content, int(starts[bad]), tokens.ERROR_TEXTS[tokens.BAD_STRING])
        return offsets, data

    def latin1(self, at: int, name: str) -> pa.Array:
        """Return one slot as bytes that stand as characters of ISO-8859-1."""
        starts, ends, sorts = self.field(at)
        offsets, data, bad = strings.latin1_bytes(*self.take_text(starts, ends, sorts))
        if bad >= 0:
            raise self.fail(bad, at, f"column {name}: a character beyond ISO-8859-1 in binary data")
        nulls = sorts == NULL
        validity = pa.py_buffer(np.packbits(~nulls, bitorder="little").tobytes()) if nulls.any() else None
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(starts), [validity, pa.py_buffer(offsets), pa.py_buffer(data)])

    def take_slot(self, at: int, sorts: U8) -> JsonBlock:
        """Return a block of one slot with other sorts, so that what is missing counts as null."""
        return JsonBlock(self.path, self.content, self.data, self.starts[at : at + 1], self.ends[at : at + 1], sorts[None, :], self.plain)

    def constant(self, at: int, expected: str, name: str) -> None:
        """Raise unless every message has this text in a slot."""
        values = pl.Series(self.take_slot(at, valued(self.sorts[at])).text(0, name))
        self.fail_where((values != expected).fill_null(True), at, f"the {name} name is not {expected!r}")


def json_blocks(content: bytes, keys: tokens.KeyTable, path: str) -> list[JsonBlock]:
    """Return the tokenized messages of a file, in blocks."""
    data = np.frombuffer(content, np.uint8)
    slots = len(keys.parents)
    # A message has at least its brackets and a line end.
    rows_max = max(1, min(BLOCK_FIELDS // slots, len(content) // 2))
    # An escape may stand for any character, but only for whole ones.
    plain = content.isascii()
    blocks = []
    at = 0
    while at < len(content):
        starts, ends = np.empty((slots, rows_max), np.int64), np.empty((slots, rows_max), np.int64)
        sorts = np.empty((slots, rows_max), np.uint8)
        rows, at, error = tokens.tokenize(data, at, keys.first, keys.counts, keys.offsets, keys.names, starts, ends, sorts)
        if error:
            raise malformed(path, content, min(at, len(content)), tokens.ERROR_TEXTS[error])
        if rows:
            blocks.append(JsonBlock(path, content, data, starts[:, :rows], ends[:, :rows], sorts[:, :rows], plain))
    return blocks


def _frame(block: JsonBlock, keys: tokens.KeyTable, table: TableSchema, columns: tuple[Column, ...]) -> pl.DataFrame:
    places = keys.places
    block.constant(places["database",], table.schema, "database")
    block.constant(places["table",], table.table, "table")
    at = places["type",]
    words = pl.Series(block.take_slot(at, valued(block.sorts[at])).text(0, "type"))
    block.fail_where(~words.is_in(list(_OPS)).fill_null(False), at, "the type is none of INSERT, UPDATE, DELETE")
    ops = words.replace_strict(list(_OPS), list(_OPS.values()), return_dtype=pl.UInt8)
    at = places["_tidb", "commitTs"]
    has_ts = block.sorts[at] != tokens.MISSING
    commit_ts = block.integers(at, "commitTs", pa.uint64()) if has_ts.all() else pa.array(np.zeros(block.rows, np.uint64))
    if has_ts.any() and not has_ts.all():
        raise block.fail(int(np.flatnonzero(~has_ts)[0]), at, "a message without commitTs among messages that have it")
    has_old = block.sorts[places["old",]] == tokens.ENTERED
    series = [pl.Series(COMMIT_TS, commit_ts), ops.alias(OP), pl.Series(OLD, (has_old & (ops.to_numpy() == Op.UPDATE)).astype(np.uint8))]
    is_delete, handle = ops.to_numpy() == Op.DELETE, table.handle_columns
    news = []
    for column in columns:
        at = places["data", column.name]
        missing = block.sorts[at] == tokens.MISSING
        if (missing & ~(is_delete & (column not in handle))).any():
            raise block.fail(int(np.flatnonzero(missing)[0]), at, f"column {column.name} is missing")
        news.append(_values(block, at, column, valued(block.sorts[at])).alias(column.field_name))
    olds = []
    for column, new in zip(columns, news, strict=True):
        at = places["old", column.name]
        missing = block.sorts[at] == tokens.MISSING
        if not has_old.any():
            olds.append(new.clear(block.rows).alias(old_name(column)))
            continue
        old = _values(block, at, column, valued(block.sorts[at]))
        unchanged = pl.Series(missing & has_old)
        olds.append((new.zip_with(unchanged, old) if unchanged.any() else old).alias(old_name(column)))
    return pl.DataFrame([*series, *news, *olds])


def _values(block: JsonBlock, at: int, column: Column, sorts: U8) -> pl.Series:
    one = block.take_slot(at, sorts)
    kind, dtype = column.type.kind, column.type.arrow()
    if pa.types.is_integer(dtype):
        return pl.Series(one.integers(0, column.name, dtype))
    if kind in FLOAT_KINDS:
        return pl.Series(one.floats(0, column))
    if kind in BINARY_KINDS:
        return pl.Series(one.latin1(0, column.name))
    return pl.Series(one.text(0, column.name))


def valued(sorts: U8) -> U8:
    """Return the sorts with everything that is no value as NULL."""
    return np.where((sorts == tokens.MISSING) | (sorts == tokens.ENTERED), np.uint8(NULL), sorts)


__all__ = ["JsonBlock", "decode", "json_blocks", "valued"]
