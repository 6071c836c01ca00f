"""Values as people read them: the names of ENUM and SET, binary values as text. Runs on executors and wherever a target is read."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from penstock.format.csv.dialect import BinaryEncoding
from penstock.model.rows.elements import ELEMENT_KINDS, element_names
from penstock.model.table import Column
from penstock.model.types import BINARY_KINDS


def text_values(column: Column, values: pa.Array, binary_encoding: BinaryEncoding = BinaryEncoding.BASE64) -> pl.Series:
    """Return a column as polars has to write it: names of ENUM and SET, text of binary values, everything else as it is."""
    series = pl.Series(values)
    if column.type.kind in ELEMENT_KINDS:
        return element_names(column, series)
    if column.type.kind in BINARY_KINDS:
        return series.bin.encode(binary_encoding.value)
    return series
