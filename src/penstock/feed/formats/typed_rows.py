"""The Spark types of change rows: what users of the Spark formats see. The values are those of ``model/rows/typed_columns.py``.

Runs on the driver.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as st

from penstock.model.rows.typed_columns import COMMIT_TS_COLUMN, OP_COLUMN, arrow_type
from penstock.model.table import TableSchema
from penstock.model.types import BINARY_KINDS, ColumnType


def typed_schema(table: TableSchema, with_ops: bool) -> st.StructType:
    """Return the Spark schema of a table's rows, with commit ts and operation before them where they are changes."""
    fields = [st.StructField(c.name, _spark_type(c.type), nullable=True) for c in table.columns]
    if with_ops:
        fields = [st.StructField(COMMIT_TS_COLUMN, st.LongType(), False), st.StructField(OP_COLUMN, st.StringType(), False), *fields]
    return st.StructType(fields)


def _spark_type(type_: ColumnType) -> st.DataType:
    arrow = arrow_type(type_)
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
