"""Batches of a frame's partitions through a Python function, in Arrow: Spark's ``mapInArrow``, without pandas.

PySpark asks for pandas wherever a frame meets Arrow, although what carries batches needs none. Runs in the driver; the function, on
executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

Through = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_batches(frame: DataFrame, through: Through, schema: StructType) -> DataFrame:
    """Return the frame of what a function makes of each partition's batches; partitions stay apart and rows in order."""
    function = UserDefinedFunction(through, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = function(*(frame[name] for name in frame.columns))
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)
