"""How each database that a storage target can be replayed into writes names, types and values.

Invariant: a column gets the nearest type that keeps every value exactly, text where there is none. Runs wherever ``penstock replay`` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import polars as pl

from penstock.ddl.type_names import statement_type
from penstock.format.column_texts import text_values
from penstock.model.table import Column
from penstock.model.types import BINARY_KINDS, INTEGER_KINDS, TypeKind

_NEAREST = {
    TypeKind.FLOAT: "REAL",
    TypeKind.DOUBLE: "DOUBLE PRECISION",
    TypeKind.DATE: "DATE",
    TypeKind.DATETIME: "TIMESTAMP",
    TypeKind.TIMESTAMP: "TIMESTAMP",
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one kind of database writes things.

    Attributes:
        text, binary, wide: the types of texts, of bytes, and of whole numbers that need more than 63 bits.
        types: the types of other kinds; those without one are texts.
        decimal_digits_max: how many digits its DECIMAL holds; 0 where it is not used.
        ddl_commits: whether a DDL ends the transaction, so that one that was done before a stop must be recognised.
        null: what a column that may be NULL says.
        casts: whether a value must be cast to another type.
        note_key: the type of a text that is a key, compared byte by byte whatever the database does elsewhere.
        insert_first: how an INSERT begins and ends that takes one of several rows with one key.
        exists: the query that tells whether a table is there, given its schema and name.
        system: the schemas that are the server's own.
        nan: what stands for a number that is none where the driver would take it for NULL.
    """

    name: str
    text: str
    binary: str
    wide: str
    types: dict[TypeKind, str]
    quote: str = '"'
    mark: str = "?"
    has_schemas: bool = True
    decimal_digits_max: int = 0
    begin: str = "BEGIN"
    schema_word: str = "SCHEMA"
    ddl_commits: bool = False
    table_options: str = ""
    null: str = ""
    casts: bool = True
    note_key: str = ""
    insert_first: tuple[str, str] = ("INSERT INTO", " ON CONFLICT DO NOTHING")
    exists: str = ""
    system: frozenset[str] = frozenset()
    nan: str | None = None

    def identifier(self, name: str) -> str:
        """Return a quoted name."""
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    def table(self, schema: str, table: str) -> str:
        """Return a table's full name."""
        name = self.identifier(self.own_name(schema, table))
        return f"{self.identifier(schema)}.{name}" if self.has_schemas else name

    def own_name(self, schema: str, table: str) -> str:
        """Return a table's name in its schema; without schemas ``schema.table`` is one name, in which the first dot divides."""
        return table if self.has_schemas else f"{schema.replace('%', '%25').replace('.', '%2E')}.{table}"

    def is_system(self, schema: str) -> bool:
        """Return whether a schema is the server's own."""
        return schema.lower() in self.system or (self.name == "postgresql" and schema.lower().startswith("pg_"))

    def with_marks(self, text: str) -> str:
        """Return a part of a statement that has values, where a driver would take its percent signs for marks."""
        return text.replace("%", "%%") if self.mark == "%s" else text

    def bound(self, value: Any) -> Any:
        """Return a value as the driver keeps it."""
        return self.nan if self.nan is not None and isinstance(value, float) and math.isnan(value) else value

    def column_type(self, column: Column, *, in_key: bool = False) -> str:
        """Return a column's type: the nearest that keeps every value exactly, text where there is none."""
        del in_key
        ctype, kind = column.type, column.type.kind
        if kind in BINARY_KINDS:
            return self.binary
        if kind in INTEGER_KINDS or kind in {TypeKind.BIT, TypeKind.YEAR}:
            return self.wide if kind is TypeKind.BIT or (kind is TypeKind.BIGINT and ctype.unsigned) else "BIGINT"
        if kind is TypeKind.DECIMAL and (ctype.length or 10) <= self.decimal_digits_max:
            return f"DECIMAL({ctype.length or 10},{ctype.scale or 0})"
        return self.types.get(kind, self.text)


class MySqlDialect(Dialect):
    """MySQL and MariaDB: types are the upstream's own."""

    def column_type(self, column: Column, *, in_key: bool = False) -> str:
        """Return the type that the column has upstream."""
        ctype = column.type
        if ctype.kind is TypeKind.VARCHAR and ctype.length is None:
            return "VARCHAR(255)" if in_key or column.primary_key else "LONGTEXT"
        return "LONGBLOB" if ctype.kind is TypeKind.GEOMETRY else statement_type(ctype)


_INFORMATION = "information_schema"
DIALECTS = {
    "sqlite": Dialect(
        "sqlite",
        "TEXT",
        "BLOB",
        "TEXT",
        {TypeKind.FLOAT: "REAL", TypeKind.DOUBLE: "REAL"},
        has_schemas=False,
        exists="SELECT 1 FROM sqlite_master WHERE ? IS NOT NULL AND lower(name) = lower(?)",
        nan="NaN",
    ),
    "duckdb": Dialect(
        "duckdb",
        "VARCHAR",
        "BLOB",
        "UBIGINT",
        _NEAREST | {TypeKind.FLOAT: "FLOAT", TypeKind.DOUBLE: "DOUBLE"},
        decimal_digits_max=38,
        exists="SELECT 1 FROM information_schema.tables WHERE lower(table_schema) = lower(?) AND lower(table_name) = lower(?)",
        system=frozenset({_INFORMATION, "pg_catalog", "temp"}),
    ),
    "postgresql": Dialect(
        "postgresql",
        "TEXT",
        "BYTEA",
        "NUMERIC(20,0)",
        _NEAREST | {TypeKind.DECIMAL: "NUMERIC"},
        mark="%s",
        exists="SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
        system=frozenset({_INFORMATION}),
    ),
    "mysql": MySqlDialect(
        "mysql",
        "LONGTEXT",
        "LONGBLOB",
        "BIGINT UNSIGNED",
        {},
        quote="`",
        mark="%s",
        begin="START TRANSACTION",
        schema_word="DATABASE",
        ddl_commits=True,
        # Texts are compared byte by byte there, as keys must be here.
        table_options=" CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        null=" NULL",
        casts=False,
        note_key="VARCHAR(700) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        # The server's own tables compare names without case.
        exists="SELECT 1 FROM information_schema.tables WHERE BINARY table_schema = %s AND BINARY table_name = %s",
        system=frozenset({_INFORMATION, "mysql", "performance_schema", "sys"}),
        # IGNORE would let values through that do not fit as well.
        insert_first=("REPLACE INTO", ""),
    ),
}


def shown(rows: pl.DataFrame, columns: Iterable[Column], dialect: Dialect) -> pl.DataFrame:
    """Return rows as drivers take them: names of ENUM and SET, text where the database's number is too small."""
    series = []
    for column in columns:
        values = rows[column.field_name]
        if column.type.kind in {TypeKind.ENUM, TypeKind.SET}:
            values = text_values(column, values.to_arrow())
        elif dialect.wide == dialect.text and values.dtype == pl.UInt64:
            values = values.cast(pl.String)
        series.append(values.alias(column.field_name))
    return pl.DataFrame(series)
