"""What a query asks for in its WHERE, as far as reading less follows from it: a window, a range of keys, rows that are left out at once.

Spark evaluates every filter again, so leaving out too little is never wrong; leaving out too much would be. So only what certainly means
the same here is used: comparisons of whole numbers, texts and dates with values of their own type. A range of keys is told only for
tables with one whole number as their key, whatever version. Works on columns. Runs in the driver (ranges) and on executors (rows).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from penstock.model.rows.row_key import encode_row_keys
from penstock.model.rows.typed_columns import COMMIT_TS_COLUMN
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_MAX
from penstock.model.types import INTEGER_KINDS

NO_KEYS = (b"\xff", b"\xff")
_COMPARED = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}


def numbers_of(filters: Iterable[Filter], column: str) -> tuple[int | None, int | None]:
    """Return the smallest and the largest whole number that a column may have; None where nothing bounds it."""
    low: int | None = None
    high: int | None = None
    for one in filters:
        first, last = _bounds(one) if getattr(one, "attribute", None) == (column,) else (None, None)
        low = first if low is None else low if first is None else max(low, first)
        high = last if high is None else high if last is None else min(high, last)
    return low, high


def _bounds(one: Filter) -> tuple[int | None, int | None]:
    value: Any = getattr(one, "value", None)
    if isinstance(one, In):
        return (min(value), max(value)) if value and all(_is_number(v) for v in value) else (None, None)
    if not _is_number(value):
        return None, None
    low, high = value + isinstance(one, GreaterThan), value - isinstance(one, LessThan)
    above = isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual)
    below = isinstance(one, EqualTo | LessThan | LessThanOrEqual)
    return low if above else None, high if below else None


def window_of(filters: Iterable[Filter], from_ts: int, to_ts: int) -> tuple[int, int]:
    """Return the part of a window of changes that filters on the commit ts leave; from and to are equal where they leave nothing."""
    low, high = numbers_of(filters, COMMIT_TS_COLUMN)
    start = max(from_ts, (low or 0) - 1)
    end = to_ts if high is None else min(to_ts, max(high, 0))
    return min(start, TS_MAX), max(min(start, TS_MAX), end)


def keys_of(filters: Iterable[Filter], table: TableSchema, versions: Sequence[TableSchema]) -> tuple[bytes, bytes] | None:
    """Return which keys rows may have, from one on and up to another; None where nothing bounds them, ``NO_KEYS`` where there are none."""
    keys = {tuple((c.id, c.type.arrow()) for c in version.key_columns) for version in versions}
    if len(keys) != 1 or len(table.key_columns) != 1 or table.key_columns[0].type.kind not in INTEGER_KINDS:
        return None
    (column,) = table.key_columns
    low, high = numbers_of(filters, column.name)
    kind = column.type.arrow()
    bits, signed = kind.bit_width, pa.types.is_signed_integer(kind)
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    first, last = least if low is None else low, most if high is None else high
    if first > most or last < least or first > last:
        return NO_KEYS
    if low is None and high is None:
        return None
    ends = encode_row_keys(table, {column.field_name: pa.array([max(first, least), min(last, most)], kind)})
    return ends[0].as_py(), ends[1].as_py() + b"\0"


def kept_rows(filters: Iterable[Filter], records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that may pass the filters."""
    for one in filters:
        mask = _mask(one, records)
        if mask is not None:
            records = records.filter(mask)
    return records


def _mask(one: Filter, records: pa.RecordBatch) -> pa.Array | None:
    """Return for which rows a filter holds, null where it is not known; None where this filter is Spark's alone."""
    if isinstance(one, Not):
        inner = _mask(one.child, records)
        return None if inner is None else pc.invert(inner)
    path: tuple[str, ...] = getattr(one, "attribute", ())
    if len(path) != 1 or path[0] not in records.schema.names:
        return None
    values = records.column(path[0])
    if isinstance(one, IsNull | IsNotNull):
        return pc.is_null(values) if isinstance(one, IsNull) else pc.is_valid(values)
    return _compared(one, values)


def _compared(one: Filter, values: pa.Array) -> pa.Array | None:
    asked: Any = getattr(one, "value", None)
    if not all(_fits(value, values.type) for value in (asked if isinstance(one, In) else [asked])):
        return None
    if isinstance(one, In):
        # A null is in no list, nor outside of one.
        return pc.if_else(pc.is_valid(values), pc.is_in(values, pa.array(list(asked), values.type)), None)
    if isinstance(one, StringStartsWith):
        return pc.starts_with(values, asked) if isinstance(asked, str) else None
    compare = _COMPARED.get(type(one))
    return None if compare is None else compare(values, pa.scalar(asked, values.type))


def _fits(value: Any, kind: pa.DataType) -> bool:
    if pa.types.is_integer(kind):
        half = 1 << (kind.bit_width - 1)
        return _is_number(value) and -half <= value < half
    if pa.types.is_string(kind):
        return isinstance(value, str)
    return pa.types.is_date32(kind) and isinstance(value, dt.date) and not isinstance(value, dt.datetime)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
