"""System-versioned tables of MariaDB: rows of the past stand in the log beside those of the present.

Such a table has two columns that say from when to when a row was, mostly hidden from everybody who does not ask for them, and its
deletes are updates that end a row. Only rows without an end are rows of the table. Runs in the log service.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.table import Column
from penstock.model.types import ColumnType, TypeKind
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire.tablemap import MapColumn, TableMap

HIDDEN = ("row_start", "row_end")
_FRACTION_DIGITS = 6
_NEVER = ("2038-01-19 03:14:07.999999", "2106-02-07 06:28:15.999999")
"""What the end of a row that is still there shows, up to MariaDB 11.4 and later."""
_NEVER_NUMBER = (1 << 64) - 1
"""The same where rows are told apart by transactions."""


def hidden_columns(mapped: TableMap, known: int | None) -> int:
    """Return how many columns at the end of a map nobody sees; ``known`` is how many the table shows, None where that is not known."""
    last = mapped.columns[-2:]
    if len(mapped.columns) <= len(HIDDEN) or not all(_is_moment(c) for c in last):
        return 0
    if known is not None and known != len(mapped.columns) - len(HIDDEN):
        return 0
    named = tuple((c.name or "").lower() for c in last)
    return len(HIDDEN) if named == HIDDEN or (known is not None and not any(named)) else 0


def shown_part(mapped: TableMap, known: int | None, row_end: str) -> TableMap:
    """Return a map as the table shows itself: without hidden columns, and without its end in the key."""
    count = len(mapped.columns) - hidden_columns(mapped, known)
    ends = {p for p, c in enumerate(mapped.columns) if row_end and (c.name or "").lower() == row_end.lower()}
    if count == len(mapped.columns) and not ends:
        return mapped
    key = None if mapped.key is None else tuple(p for p in mapped.key if p < count and p not in ends)
    return msgspec.structs.replace(mapped, columns=mapped.columns[:count], key=key)


def may_show_end(mapped: TableMap) -> bool:
    """Return whether a table may show when its rows began and ended: two moments that are never NULL, one in the key, if one is told."""
    moments = {p for p, c in enumerate(mapped.columns) if _is_moment(c) and not c.nullable}
    return len(moments) >= len(HIDDEN) and (not mapped.key or not moments.isdisjoint(mapped.key))


def walked_columns(mapped: TableMap, shown: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return all columns that stand in the log's rows: those of the table and the hidden ones behind them."""
    highest = max((c.id for c in shown), default=0)
    hidden = mapped.columns[len(shown) :]
    kinds = [
        ColumnType(TypeKind.BIGINT, unsigned=True)
        if c.type == wire.TYPE_LONGLONG
        else ColumnType(TypeKind.TIMESTAMP, scale=_FRACTION_DIGITS)
        for c in hidden
    ]
    return (*shown, *(Column(highest + n, HIDDEN[n - 1], kind, False) for n, kind in enumerate(kinds, 1)))


def is_present(row_ends: pa.Array) -> pa.Array:
    """Return which rows have no end."""
    if pa.types.is_string(row_ends.type):
        return pc.is_in(row_ends, value_set=pa.array(_NEVER))
    return pc.equal(row_ends, pa.scalar(_NEVER_NUMBER, pa.uint64()))


def _is_moment(column: MapColumn) -> bool:
    return (column.type == wire.TYPE_TIMESTAMP2 and column.meta == _FRACTION_DIGITS) or column.type == wire.TYPE_LONGLONG
