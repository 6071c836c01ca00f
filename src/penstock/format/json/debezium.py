"""The encoder of Debezium-style JSON: paired change rows to one change event per row.

An event is the payload of a Debezium envelope without its schema: ``before``, ``after``, ``source`` (db, table, commit ts, ``ts_ms``),
``op`` (c, u, d) and ``ts_ms``. Whole numbers and floats are bare, everything else is text: decimals and times as MySQL prints them,
binary data as base64, ENUM and SET by their names. ``ts_ms`` is the commit time, so that a repeated window gives the same bytes. Rows that
know their place in their transaction have a ``transaction`` block. Runs on executors.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format.column_texts import text_values
from penstock.format.csv.dialect import row_columns
from penstock.format.json.escaping import escape_text
from penstock.format.json.rows import ALL_OPS, MessageSheet, Surrounded
from penstock.format.old_values import OLD, old_name
from penstock.format.protocols import DebeziumSettings
from penstock.format.sheet_kernels import Space
from penstock.kernels.jit import U8
from penstock.model.batch import Op
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.timestamp import LOGICAL_BITS
from penstock.model.types import BINARY_KINDS, FLOAT_KINDS, TypeKind

_INSERTS, _UPDATES, _DELETES = 1 << Op.INSERT, 1 << Op.UPDATE, 1 << Op.DELETE
_LETTERS = [b"c", b"u", b"d"]
_NAMED = frozenset({TypeKind.ENUM, TypeKind.SET})

TOTAL_ORDER, COLLECTION_ORDER = "_total_order", "_collection_order"
"""Columns of rows that know which event of their transaction they are, from 1: among all, and among those of their table."""


def encode_into(
    table: TableSchema, records: pa.RecordBatch, settings: DebeziumSettings, out: Space, around: Surrounded | None = None
) -> None:
    """Append paired rows as events, each with its line end, inside of something larger where that is given."""
    if records.num_rows == 0:
        return
    ops = records.column(OP).to_numpy(zero_copy_only=True)
    sheet = MessageSheet(ops)
    if around is not None:
        around.lead(sheet)
    columns = row_columns(table)
    has_old = np.ascontiguousarray(records.column(OLD).to_numpy(zero_copy_only=True))
    if not settings.output_old_value:
        has_old = np.zeros_like(has_old)
    sheet.constant(b'{"before":')
    sheet.constant(b"null", _INSERTS)
    if has_old.any():
        sheet.constant(b"null", _UPDATES, (1 - has_old).astype(np.uint8))
        _row(sheet, columns, [records.column(old_name(c)) for c in columns], _UPDATES, has_old)
    else:
        sheet.constant(b"null", _UPDATES)
    values = [records.column(c.field_name) for c in columns]
    if (ops == Op.DELETE).any():
        _row(sheet, columns, values, _DELETES, None)
    sheet.constant(b',"after":')
    sheet.constant(b"null", _DELETES)
    _row(sheet, columns, values, ALL_OPS & ~_DELETES, None)
    moments = pa.array(records.column(COMMIT_TS).to_numpy(zero_copy_only=True) >> np.uint64(LOGICAL_BITS))
    sheet.constant(b',"source":{"connector":"penstock","db":%s,"table":%s,' % (escape_text(table.schema), escape_text(table.table)))
    sheet.constant(b'"commit_ts":')
    sheet.integers(records.column(COMMIT_TS), quoted=False)
    sheet.constant(b',"ts_ms":')
    sheet.integers(moments, quoted=False)
    sheet.constant(b'},"op":"')
    sheet.choice(ops, _LETTERS)
    sheet.constant(b'","ts_ms":')
    sheet.integers(moments, quoted=False)
    if TOTAL_ORDER in records.schema.names:
        sheet.constant(b',"transaction":{"id":"')
        sheet.integers(records.column(COMMIT_TS), quoted=False)
        sheet.constant(b'","total_order":')
        sheet.integers(records.column(TOTAL_ORDER), quoted=False)
        sheet.constant(b',"data_collection_order":')
        sheet.integers(records.column(COLLECTION_ORDER), quoted=False)
        sheet.constant(b"}")
    sheet.constant(b"}" + (b"" if around is None else around.tail) + settings.line_end)
    sheet.render_into(out)


def encode_keys(columns: tuple[Column, ...], records: pa.RecordBatch, out: Space, around: bytes = b"") -> None:
    """Append an object of some columns for each row, values as events have them, each followed by a line feed."""
    if records.num_rows == 0:
        return
    sheet = MessageSheet(np.zeros(records.num_rows, np.uint8))
    sheet.constant(around)
    _row(sheet, columns, [records.column(c.field_name) for c in columns], ALL_OPS, None)
    sheet.constant(b"}\n" if around else b"\n")
    sheet.render_into(out)


def _row(sheet: MessageSheet, columns: tuple[Column, ...], values: list[pa.Array], ops: int, flags: U8 | None) -> None:
    for at, (column, array) in enumerate(zip(columns, values, strict=True)):
        sheet.constant((b"," if at else b"{") + escape_text(column.name) + b":", ops, flags)
        _put_value(sheet, column, array, ops, flags)
    sheet.constant(b"}" if columns else b"{}", ops, flags)


def _put_value(sheet: MessageSheet, column: Column, values: pa.Array, ops: int, flags: U8 | None) -> None:
    kind = column.type.kind
    if kind in FLOAT_KINDS:
        # JSON has no number for what is not finite, nor has MySQL; from elsewhere it comes as text. The other rows of a batch, which
        # another attempt may cut elsewhere, decide on nothing.
        bare = pc.fill_null(pc.is_finite(values), True).to_numpy(zero_copy_only=False).astype(np.uint8)
        if bare.all():
            sheet.floats(values, ops, flags, quoted=False)
            return
        given = np.ones_like(bare) if flags is None else flags
        sheet.floats(values, ops, given & bare, quoted=False)
        sheet.floats(values, ops, given & (1 - bare), quoted=True)
    elif kind in _NAMED or kind in BINARY_KINDS:
        texts = text_values(column, values).cast(pl.String).to_arrow(compat_level=pl.CompatLevel.oldest())
        sheet.text(texts, ops, flags)
    elif pa.types.is_integer(values.type):
        sheet.integers(values, ops, flags, quoted=False)
    else:
        sheet.text(values, ops, flags)
