"""Change rows with types that programs have for them: what readers of changes see, in Spark, Arrow and polars.

Every MySQL type has one type. Values that it cannot hold, such as a date of zeros, are null; a DECIMAL beyond 38 digits, a TIME
(which may exceed a day) and a VECTOR stay text. Works on columns. Runs anywhere.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import COMMIT_TS, OP
from penstock.model.rows.elements import ELEMENT_KINDS, element_names
from penstock.model.table import Column, TableSchema
from penstock.model.types import INTEGER_KINDS, ColumnType, TypeKind

COMMIT_TS_COLUMN, OP_COLUMN = "_commit_ts", "_op"
CHANGE_FIELDS = (pa.field(COMMIT_TS_COLUMN, pa.int64(), False), pa.field(OP_COLUMN, pa.string(), False))
OP_NAMES = ("insert", "update", "delete", "before")
_DECIMAL_DIGITS_MAX = 38
_U64 = pa.decimal128(20, 0)
_LONG_BITS = 63


def typed_changes(records: pa.RecordBatch, table: TableSchema) -> pa.RecordBatch:
    """Return change rows of a table version: commit ts, operation, then the columns under their names."""
    columns = [records.column(COMMIT_TS).cast(pa.int64()), op_names(records.column(OP)), *typed_columns(records, table)]
    fields = [*CHANGE_FIELDS, *(pa.field(c.name, values.type) for c, values in zip(table.columns, columns[2:], strict=True))]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def typed_columns(stored: pa.RecordBatch, table: TableSchema) -> list[pa.Array]:
    """Return the columns of rows, named as in change batches of this table version, with their types."""
    return [_typed(stored.column(c.field_name), c) for c in table.columns]


def op_names(ops: pa.Array) -> pa.Array:
    """Return operations by their names."""
    return pa.DictionaryArray.from_arrays(ops.cast(pa.int8()), pa.array(OP_NAMES)).cast(pa.string())


def arrow_type(type_: ColumnType) -> pa.DataType:
    """Return the Arrow type that a column has; numbers are signed, because Spark knows no others."""
    kind, stored = type_.kind, type_.arrow()
    if kind in INTEGER_KINDS and type_.unsigned:
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: _U64}[stored.bit_width]
    if kind is TypeKind.BIT:
        return _U64 if (type_.length or 1) > _LONG_BITS else pa.int64()
    if kind is TypeKind.DECIMAL and (type_.length or 10) <= _DECIMAL_DIGITS_MAX:
        return pa.decimal128(type_.length or 10, type_.scale or 0)
    special = {
        TypeKind.YEAR: pa.int32(),
        TypeKind.DATE: pa.date32(),
        TypeKind.DATETIME: pa.timestamp("us"),
        TypeKind.TIMESTAMP: pa.timestamp("us", "UTC"),
        TypeKind.ENUM: pa.string(),
        TypeKind.SET: pa.string(),
    }
    return special.get(kind, stored)


def _typed(values: pa.Array, column: Column) -> pa.Array:
    wanted, kind = arrow_type(column.type), column.type.kind
    if kind in ELEMENT_KINDS:
        return element_names(column, pl.Series(values)).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(wanted)
    if kind in (TypeKind.DATE, TypeKind.DATETIME, TypeKind.TIMESTAMP):
        return _moments(values, kind).cast(wanted)
    return values if values.type == wanted else pc.cast(values, wanted)


def _moments(values: pa.Array, kind: TypeKind) -> pa.Array:
    text = pl.Series(values)
    if kind is TypeKind.DATE:
        return text.str.to_date("%Y-%m-%d", strict=False).to_arrow()
    parsed = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    return parsed.to_arrow().cast(pa.timestamp("us"))
