"""The CSV encoder: ordered change rows of one table version to the bytes of a data file, columns at a time.

Invariants: bytes depend on rows, table and settings alone; the encoding of rows in two parts is the concatenation of the parts'
encodings. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.format.column_texts import text_values
from penstock.format.csv.dialect import CsvSettings, row_columns
from penstock.format.csv.rows import RowSheet
from penstock.format.sheet_kernels import Space
from penstock.model.batch import without_before
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.types import FLOAT_KINDS, TypeKind

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
