"""CREATE TABLE text of a table version, for a table that has none of its own: it came into a feed by another DDL. Runs anywhere."""

from __future__ import annotations

from penstock.format.type_names import mysql_type
from penstock.model.table import Column, TableSchema

_BARE_DEFAULTS = ("NULL", "CURRENT_TIMESTAMP")


def create_text(table: TableSchema) -> str:
    """Return the statement that makes an empty table of this structure."""
    ids = {c.id: c for c in table.columns}
    keys = [("PRIMARY KEY", table.key_columns)] if table.key_columns else []
    keys += [("UNIQUE KEY", tuple(ids[i] for i in key)) for key in table.unique_keys]
    parts = [_column_text(c) for c in table.columns]
    parts += [f"{kind} ({', '.join(_quoted(c.name) for c in columns)})" for kind, columns in keys]
    return f"CREATE TABLE {_quoted(table.schema)}.{_quoted(table.table)} ({', '.join(parts)})"


def _column_text(column: Column) -> str:
    text = f"{_quoted(column.name)} {mysql_type(column.type, full=True)}"
    if not column.nullable:
        text += " NOT NULL"
    if column.default is None:
        return text
    bare = column.default.upper().startswith(_BARE_DEFAULTS)
    return f"{text} DEFAULT {column.default if bare else _literal(column.default)}"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
