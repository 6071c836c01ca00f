"""Values as people read them: the names of ENUM and SET, binary values as text.

Invariant: an index or a bit beyond the elements of its column is an error. Runs on executors and wherever a target is read.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from penstock.format.csv.dialect import BinaryEncoding
from penstock.model.errors import PenstockError
from penstock.model.table import Column
from penstock.model.types import BINARY_KINDS, TypeKind


def text_values(column: Column, values: pa.Array, binary_encoding: BinaryEncoding = BinaryEncoding.BASE64) -> pl.Series:
    """Return a column as polars has to write it: names of ENUM and SET, text of binary values, everything else as it is."""
    series = pl.Series(values)
    kind = column.type.kind
    if kind is TypeKind.ENUM:
        return _enum_names(column, series)
    if kind is TypeKind.SET:
        return _set_names(column, series)
    if kind in BINARY_KINDS:
        return series.bin.encode(binary_encoding.value)
    return series


def _enum_names(column: Column, indexes: pl.Series) -> pl.Series:
    # MySQL shows the error value 0 as an empty text.
    names = pl.Series(["", *column.type.elems], dtype=pl.String)
    if (indexes.max() or 0) >= len(names):  # type: ignore[operator]
        raise PenstockError("DECODE_FAILED", f"column {column.name}: an ENUM index beyond its {len(column.type.elems)} elements")
    return names.gather(indexes)


def _set_names(column: Column, masks: pl.Series) -> pl.Series:
    elems = column.type.elems
    if len(elems) < 64 and (masks.max() or 0) >= 1 << len(elems):  # type: ignore[operator]
        raise PenstockError("DECODE_FAILED", f"column {column.name}: a SET bit beyond its {len(elems)} elements")
    if not elems:
        return masks.cast(pl.String).replace("0", "")
    mask = pl.col("mask")
    parts = [pl.when(mask.and_(pl.lit(1 << at, dtype=pl.UInt64)) != 0).then(pl.lit(name)) for at, name in enumerate(elems)]
    joined = pl.concat_str(parts, separator=",", ignore_nulls=True)
    return pl.DataFrame({"mask": masks}).select(pl.when(mask.is_not_null()).then(joined).alias("names")).to_series()
