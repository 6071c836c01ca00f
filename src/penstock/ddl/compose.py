"""DDLs written as text, in MySQL's dialect, in which schema files show them: for tables and changes that have no statement of their own.

Owns how a column, a table and its parts stand in a statement. Names are quoted always; a constant default is a text in quotes, a computed
one and a string of bits stand as they are, unless more than one expression is in them: no name, element or default of an upstream ends
the part of the statement that it stands in. The same table always gives the same text. Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.ddl.tokens import TableName, is_one_expression, literal, quoted
from penstock.ddl.type_names import statement_type
from penstock.model.rows.projection import constant
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

TypeText = Callable[[ColumnType], str]


def full_type(kind: ColumnType) -> str:
    """Return a type as ``SHOW CREATE TABLE`` does."""
    return statement_type(kind)


def short_type(kind: ColumnType) -> str:
    """Return a type as one writes it: with sizes where they were given."""
    sizes = [str(n) for n in (kind.length, kind.scale) if n is not None]
    return kind.kind.value + (f"({','.join(sizes)})" if sizes else "") + (" UNSIGNED" if kind.unsigned else "")


def create_text(table: TableSchema, type_text: TypeText = full_type) -> str:
    """Return the statement that makes an empty table of this structure."""
    ids = {c.id: c for c in table.columns}
    keys = [("PRIMARY KEY", table.key_columns)] if table.key_columns else []
    keys += [("UNIQUE KEY", tuple(ids[i] for i in key)) for key in table.unique_keys]
    parts = [column_text(c, type_text) for c in table.columns]
    parts += [f"{kind} ({names_text(c.name for c in columns)})" for kind, columns in keys]
    return f"CREATE TABLE {table_text((table.schema, table.table))} ({', '.join(parts)})"


def rename_text(old: TableName, new: TableName) -> str:
    """Return the statement that gives a table another name."""
    return f"RENAME TABLE {table_text(old)} TO {table_text(new)}"


def column_text(column: Column, type_text: TypeText = full_type) -> str:
    """Return the definition of a column."""
    null = "" if column.nullable else " NOT NULL"
    default = "" if column.default is None else f" DEFAULT {_default_text(column, column.default)}"
    return f"{quoted(column.name)} {type_text(column.type)}{null}{default}"


def table_text(name: TableName) -> str:
    """Return a table's whole name."""
    return f"{quoted(name[0])}.{quoted(name[1])}"


def names_text(names: Iterable[str]) -> str:
    """Return a list of names."""
    return ", ".join(quoted(name) for name in names)


def _default_text(column: Column, text: str) -> str:
    bits = column.type.kind is TypeKind.BIT and not text.isdigit()
    if not bits and text != "NULL":
        try:
            constant(column, text)
        except ValueError:
            pass
        else:
            return literal(text)
    return text if is_one_expression(text) else literal(text)
