"""How each database that a storage target can be replayed into writes names, types and values.

Invariant: a column gets the nearest type that keeps every value exactly, text where there is none. Runs wherever ``penstock replay`` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from penstock.format.column_texts import text_values
from penstock.format.type_names import mysql_type
from penstock.model.table import Column
from penstock.model.types import BINARY_KINDS, INTEGER_KINDS, TypeKind

_TYPES: dict[str, dict[TypeKind, str]] = {
    "sqlite": {TypeKind.FLOAT: "REAL", TypeKind.DOUBLE: "REAL"},
    "duckdb": {
        TypeKind.FLOAT: "FLOAT",
        TypeKind.DOUBLE: "DOUBLE",
        TypeKind.DATE: "DATE",
        TypeKind.DATETIME: "TIMESTAMP",
        TypeKind.TIMESTAMP: "TIMESTAMP",
    },
    "postgresql": {
        TypeKind.FLOAT: "REAL",
        TypeKind.DOUBLE: "DOUBLE PRECISION",
        TypeKind.DECIMAL: "NUMERIC",
        TypeKind.DATE: "DATE",
        TypeKind.DATETIME: "TIMESTAMP",
        TypeKind.TIMESTAMP: "TIMESTAMP",
    },
}
_BINARY = {"sqlite": "BLOB", "duckdb": "BLOB", "postgresql": "BYTEA"}
TEXT_TYPES = {"sqlite": "TEXT", "duckdb": "VARCHAR", "postgresql": "TEXT"}
_WIDE = {"sqlite": "TEXT", "duckdb": "UBIGINT", "postgresql": "NUMERIC(20,0)"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one kind of database writes things."""

    name: str
    quote: str
    mark: str
    has_schemas: bool

    def identifier(self, name: str) -> str:
        """Return a quoted name."""
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    def table(self, schema: str, table: str) -> str:
        """Return a table's full name; without schemas, ``schema.table`` is one name."""
        if not self.has_schemas:
            return self.identifier(f"{schema}.{table}")
        return f"{self.identifier(schema)}.{self.identifier(table)}"

    def column_type(self, column: Column, *, in_key: bool = False) -> str:
        """Return a column's type: the nearest that keeps every value exactly, text where there is none."""
        ctype, kind = column.type, column.type.kind
        if self.name == "mysql":
            return _mysql_type(column, in_key=in_key or column.primary_key)
        if kind in BINARY_KINDS:
            return _BINARY[self.name]
        if kind in INTEGER_KINDS or kind in {TypeKind.BIT, TypeKind.YEAR}:
            wide = kind is TypeKind.BIT or (kind is TypeKind.BIGINT and ctype.unsigned)
            return _WIDE[self.name] if wide else "BIGINT"
        if kind is TypeKind.DECIMAL and self.name == "duckdb" and (ctype.length or 10) <= 38:
            return f"DECIMAL({ctype.length or 10},{ctype.scale or 0})"
        return _TYPES[self.name].get(kind, TEXT_TYPES[self.name])


def _mysql_type(column: Column, *, in_key: bool) -> str:
    ctype = column.type
    if ctype.kind is TypeKind.VARCHAR and ctype.length is None:
        return "VARCHAR(255)" if in_key else "LONGTEXT"
    return "LONGBLOB" if ctype.kind is TypeKind.GEOMETRY else mysql_type(ctype, full=True)


DIALECTS = {
    "sqlite": Dialect("sqlite", '"', "?", has_schemas=False),
    "duckdb": Dialect("duckdb", '"', "?", has_schemas=True),
    "mysql": Dialect("mysql", "`", "%s", has_schemas=True),
    "postgresql": Dialect("postgresql", '"', "%s", has_schemas=True),
}


def shown(rows: pl.DataFrame, columns: Iterable[Column], dialect: Dialect) -> pl.DataFrame:
    """Return rows as drivers take them: names of ENUM and SET, text where the database's number is too small."""
    series = []
    for column in columns:
        values = rows[column.field_name]
        if column.type.kind in {TypeKind.ENUM, TypeKind.SET}:
            values = text_values(column, values.to_arrow())
        elif dialect.name == "sqlite" and values.dtype == pl.UInt64:
            values = values.cast(pl.String)
        series.append(values.alias(column.field_name))
    return pl.DataFrame(series)
