"""Whether columns of a table that somebody made or altered take values as they are: databases change some of them without a word.

What is too long or too large a strict server refuses by itself; digits behind the point, fractions of a second and times of a day it may
drop; blanks and zeros are added or taken off, and texts become numbers. Runs on executors and beside the driver.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.format.csv.dialect import row_columns
from penstock.model.table import Column, TableSchema
from penstock.model.types import BINARY_KINDS, FLOAT_KINDS, INTEGER_KINDS, TEXT_KINDS, TypeKind

_FLOATS = frozenset({"float", "real", "float4", "double", "double precision", "float8"})
_DOUBLES = frozenset({"double", "double precision", "float8"})
_DECIMALS = frozenset({"decimal", "numeric"})
_WHOLE = frozenset({"tinyint", "smallint", "mediumint", "int", "integer", "bigint", "int2", "int4", "int8", "year", "bit"})
_POINTS = frozenset({"date", "datetime", "timestamp", "timestamptz"})
_ELEMENTS = frozenset({"enum", "set"})
_UNBOUND = 1000
"""The digits behind the point of a PostgreSQL numeric that keeps all of them."""
_TIMED = frozenset({"datetime", "timestamp", "timestamptz", "time", "timetz"})


def bent_columns(table: TableSchema, present: Sequence[tuple[str, str, int, int, int]], fractions: int) -> list[str]:
    """Return the names of columns that would change values.

    ``present`` is what ``TableTraits.shapes`` has; ``fractions`` is how many digits of a second a column has upstream that names none.
    """
    found = {name.lower(): (kind.lower(), scale, precision) for name, kind, scale, precision, _ in present}
    return [c.name for c in row_columns(table) if c.name.lower() in found and _bends(c, *found[c.name.lower()], fractions)]


def _bends(column: Column, kind: str, scale: int, precision: int, fractions: int) -> bool:
    wanted, digits = column.type.kind, column.type.scale
    if wanted in INTEGER_KINDS or wanted is TypeKind.BIT:
        return kind in _FLOATS | _TIMED | _POINTS or kind == "year"
    if wanted is TypeKind.DECIMAL:
        return kind in _FLOATS | _WHOLE or (kind in _DECIMALS and scale < (digits or 0))
    if wanted in FLOAT_KINDS:
        return kind in _WHOLE | _DECIMALS or (wanted is TypeKind.DOUBLE and kind in _FLOATS - _DOUBLES)
    if wanted in {TypeKind.DATETIME, TypeKind.TIMESTAMP, TypeKind.TIME}:
        other = kind in _POINTS if wanted is TypeKind.TIME else kind in {"date", "time"}
        return other or (kind in _TIMED and precision < (fractions if digits is None else digits))
    if wanted in TEXT_KINDS:
        return _bends_text(wanted, kind, scale)
    return wanted in BINARY_KINDS and wanted is not TypeKind.BINARY and kind == "binary"


def _bends_text(wanted: TypeKind, kind: str, scale: int) -> bool:
    if kind in {"char", "bpchar"}:
        return wanted is not TypeKind.CHAR
    return kind in _WHOLE | _FLOATS | _POINTS | _ELEMENTS | {"time"} or (kind in _DECIMALS and scale < _UNBOUND)
