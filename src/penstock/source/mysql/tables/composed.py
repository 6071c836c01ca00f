"""DDLs that the log holds in other words, or in none: a table or a change that only a table map told, a rename with all of its names.

The text is in the dialect of the schema files. The same versions always give the same text. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.ddl.compose import column_text, create_text, names_text, table_text
from penstock.ddl.statement import Statement
from penstock.ddl.tokens import TableName, quoted
from penstock.model.ddl import DdlType
from penstock.model.table import TableSchema


def compose_rename(pairs: Sequence[tuple[TableName, TableName]]) -> str:
    """Return a rename that names the database of every table."""
    return "RENAME TABLE " + ", ".join(f"{table_text(old)} TO {table_text(new)}" for old, new in pairs)


def compose_drop(names: Sequence[TableName]) -> str:
    """Return the statement that ends tables."""
    return "DROP TABLE IF EXISTS " + ", ".join(table_text(name) for name in names)


def compose_like(name: TableName, other: TableName) -> str:
    """Return the statement that makes a table with the columns of another."""
    return f"CREATE TABLE {table_text(name)} LIKE {table_text(other)}"


def in_lower_case(statement: Statement, query: str) -> tuple[Statement, str]:
    """Return a statement with the names that a server gives to tables which it calls in lower case, and a text that has them as well.

    A text that is only about columns stays as it was written.
    """
    tables = tuple(_lower(name) for name in statement.tables)
    renamed = tuple((_lower(old), _lower(new)) for old, new in statement.renamed)
    like = _lower(statement.like) if statement.like is not None else None
    folded = msgspec.structs.replace(statement, schema=statement.schema.lower(), tables=tables, renamed=renamed, like=like)
    if folded == statement:
        return statement, query
    if folded.type in {DdlType.RENAME_TABLE, DdlType.RENAME_TABLES}:
        query = compose_rename(renamed)
    elif folded.type is DdlType.DROP_TABLE:
        query = compose_drop(tables)
    elif folded.type is DdlType.TRUNCATE_TABLE:
        query = f"TRUNCATE TABLE {table_text(tables[0])}"
    return folded, query


def compose_replace(table: TableSchema) -> str:
    """Return the statement that makes a table in the place of the one that has its name."""
    return compose_create(table).replace("CREATE", "CREATE OR REPLACE", 1)


def compose_create(table: TableSchema) -> str:
    """Return the statement that makes a table, without the keys that do not name its rows: a map does not tell how long they are."""
    return create_text(msgspec.structs.replace(table, unique_keys=()))


def compose_alter(before: TableSchema, after: TableSchema) -> str:
    """Return the statement that makes one version of another."""
    old, new = {c.id: c for c in before.columns}, {c.id for c in after.columns}
    actions = [f"DROP COLUMN {quoted(c.name)}" for c in before.columns if c.id not in new]
    place = " FIRST"
    for column in after.columns:
        known = old.get(column.id)
        if known is None:
            actions.append(f"ADD COLUMN {column_text(column)}{place}")
        elif known.name != column.name:
            actions.append(f"CHANGE COLUMN {quoted(known.name)} {column_text(column)}")
        elif (known.type, known.nullable) != (column.type, column.nullable):
            actions.append(f"MODIFY COLUMN {column_text(column)}")
        place = f" AFTER {quoted(column.name)}"
    if [c.id for c in before.key_columns] != [c.id for c in after.key_columns]:
        actions += ["DROP PRIMARY KEY"] if before.key_columns else []
        actions += [f"ADD PRIMARY KEY ({names_text(c.name for c in after.key_columns)})"] if after.key_columns else []
    return f"ALTER TABLE {table_text((after.schema, after.table))} {', '.join(actions) or 'FORCE'}"


def _lower(name: TableName) -> TableName:
    return name[0].lower(), name[1].lower()
