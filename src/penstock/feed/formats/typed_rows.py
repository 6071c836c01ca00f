"""Change rows with the types that Spark has for them: what users of the ``penstock`` format see.

Every MySQL type has one Spark type. Values that it cannot hold, such as a date of zeros, are null; a DECIMAL beyond 38 digits, a TIME
(which may exceed a day) and a VECTOR stay text. Works on columns. Runs on the driver (types) and on executors (values).
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from penstock.model.rows.elements import ELEMENT_KINDS, element_names
from penstock.model.table import Column, TableSchema
from penstock.model.types import BINARY_KINDS, INTEGER_KINDS, ColumnType, TypeKind

COMMIT_TS_COLUMN, OP_COLUMN = "_commit_ts", "_op"
CHANGE_FIELDS = (pa.field(COMMIT_TS_COLUMN, pa.int64(), False), pa.field(OP_COLUMN, pa.string(), False))
OP_NAMES = ("insert", "update", "delete", "before")
_DECIMAL_DIGITS_MAX = 38
_U64 = pa.decimal128(20, 0)
_LONG_BITS = 63


def typed_schema(table: TableSchema, with_ops: bool) -> st.StructType:
    """Return the Spark schema of a table's rows, with commit ts and operation before them where they are changes."""
    fields = [st.StructField(c.name, _spark_type(c.type), nullable=True) for c in table.columns]
    if with_ops:
        fields = [st.StructField(COMMIT_TS_COLUMN, st.LongType(), False), st.StructField(OP_COLUMN, st.StringType(), False), *fields]
    return st.StructType(fields)


def typed_columns(stored: pa.RecordBatch, table: TableSchema) -> list[pa.Array]:
    """Return the columns of rows, named as in change batches of this table version, with their Arrow types for Spark."""
    return [_typed(stored.column(c.field_name), c) for c in table.columns]


def op_names(ops: pa.Array) -> pa.Array:
    """Return operations by their names."""
    return pa.DictionaryArray.from_arrays(ops.cast(pa.int8()), pa.array(OP_NAMES)).cast(pa.string())


def _arrow_type(type_: ColumnType) -> pa.DataType:
    """Return the Arrow type that a column has for Spark, which knows no unsigned numbers."""
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


def _spark_type(type_: ColumnType) -> st.DataType:
    arrow = _arrow_type(type_)
    if type_.kind in BINARY_KINDS:
        return st.BinaryType()
    if pa.types.is_decimal(arrow):
        return st.DecimalType(arrow.precision, arrow.scale)
    known: dict[pa.DataType, st.DataType] = {
        pa.int8(): st.ByteType(),
        pa.int16(): st.ShortType(),
        pa.int32(): st.IntegerType(),
        pa.int64(): st.LongType(),
        pa.float32(): st.FloatType(),
        pa.float64(): st.DoubleType(),
        pa.date32(): st.DateType(),
        pa.timestamp("us"): st.TimestampNTZType(),
        pa.timestamp("us", "UTC"): st.TimestampType(),
    }
    return known.get(arrow, st.StringType())


def _typed(values: pa.Array, column: Column) -> pa.Array:
    wanted, kind = _arrow_type(column.type), column.type.kind
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
