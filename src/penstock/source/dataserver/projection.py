"""Projection: rows of one table version read as rows of another.

Columns are matched by id. A column that the stored row does not have takes the default with which the column was first added, else NULL;
one whose type was widened since is cast. So a row written before a DDL looks as the database shows it after the DDL. Runs in the log
service and on executors.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence

import pyarrow as pa

from penstock.model.errors import PenstockError
from penstock.model.table import Column, SchemaHistory, TableSchema
from penstock.model.types import BINARY_KINDS, TIME_KINDS, TypeKind


def project(arrays: Sequence[pa.Array], source: TableSchema, target: TableSchema, history: SchemaHistory) -> list[pa.Array]:
    """Return columns of ``target``'s row schema for rows that were decoded as ``source``."""
    if source.version == target.version:
        return list(arrays)
    rows = len(arrays[0]) if arrays else 0
    stored = {column.id: array for column, array in zip(source.columns, arrays, strict=True)}
    projected = []
    for column in target.columns:
        array = stored.get(column.id)
        if array is None:
            born = introduced(history, column.id)
            array = pa.repeat(default_scalar(born), rows)
        projected.append(array if array.type == column.type.arrow() else array.cast(column.type.arrow()))
    return projected


def introduced(history: SchemaHistory, column_id: int) -> Column:
    """Return a column as its first version had it: later changes of the default do not touch rows that were stored before."""
    for version in history.versions():
        for column in version.columns:
            if column.id == column_id:
                return column
    raise PenstockError("SCHEMA_UNKNOWN", f"no version of table {history.table_id} has column {column_id}")


def default_scalar(column: Column) -> pa.Scalar:
    """Return a column's default as a value of its Arrow type; null where there is none."""
    data_type = column.type.arrow()
    if column.default is None:
        return pa.scalar(None, data_type)
    return pa.scalar(_default_value(column, column.default), data_type)


def _default_value(column: Column, text: str) -> object:  # noqa: PLR0911 - one return per family of types
    kind = column.type.kind
    data_type = column.type.arrow()
    if kind == TypeKind.ENUM:
        return _element(column, text) + 1
    if kind == TypeKind.SET:
        return sum(1 << _element(column, part) for part in text.split(",") if part)
    if kind == TypeKind.BIT and text.startswith("b'"):
        return int(text[2:-1], 2)
    if pa.types.is_integer(data_type):
        return int(decimal.Decimal(text))
    if pa.types.is_floating(data_type):
        return float(text)
    if kind == TypeKind.DECIMAL:
        return f"{decimal.Decimal(text):.{column.type.scale or 0}f}"
    if kind in TIME_KINDS:
        return _with_fraction(text, column.type.scale or 0)
    return text.encode() if kind in BINARY_KINDS else text


def _element(column: Column, text: str) -> int:
    for at, element in enumerate(column.type.elems):
        if element.lower() == text.lower():
            return at
    raise PenstockError("CONFIG_INVALID", f"default of column {column.name} is not one of its elements")


def _with_fraction(text: str, digits: int) -> str:
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction[:digits]:0<{digits}}" if digits else whole
