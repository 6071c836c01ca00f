"""The DDL between two versions of a table, composed: PostgreSQL's log has no statement, and a schema file shows one.

The text is in MySQL's dialect, in which schema files are written and read, with the model's types. Its kind is that of the only difference,
or MULTI_SCHEMA_CHANGE. The same two versions always give the same text. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ddl.compose import column_text, create_text, names_text, rename_text, short_type, table_text
from penstock.ddl.tokens import quoted
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table import Column, TableSchema


def compose_ddl(before: TableSchema, after: TableSchema) -> DdlEvent:
    """Return the event that turns one version into the next."""
    if (before.schema, before.table) != (after.schema, after.table):
        return _renamed(before, after)
    actions = _actions(before, after)
    kinds = {kind for kind, _ in actions}
    kind = kinds.pop() if len(kinds) == 1 else DdlType.MULTI_SCHEMA_CHANGE
    text = ", ".join(action for _, action in actions) or "COMMENT ''"
    return DdlEvent(after.version, kind, f"ALTER TABLE {_table(after)} {text}", after.schema, (after,))


def compose_truncate(before: TableSchema, after: TableSchema) -> DdlEvent:
    """Return the event that empties a table, which goes on under another id."""
    query = f"TRUNCATE TABLE {_table(before)}"
    return DdlEvent(after.version, DdlType.TRUNCATE_TABLE, query, after.schema, (after,), (before.table_id,))


def compose_drop(table: TableSchema, commit_ts: int) -> DdlEvent:
    """Return the event that ends a table."""
    return DdlEvent(commit_ts, DdlType.DROP_TABLE, f"DROP TABLE {_table(table)}", table.schema, (), (table.table_id,))


def compose_renames(pairs: Sequence[tuple[TableSchema, TableSchema]]) -> DdlEvent:
    """Return the event by which several tables get other names at once, each before and after; through names that nobody has."""
    if len(pairs) == 1:
        return _renamed(*pairs[0])
    pairs = sorted(pairs, key=lambda pair: pair[0].table_id)
    spots = [f"{quoted(before.schema)}.{quoted(f'{before.table}~{before.table_id}')}" for before, _ in pairs]
    away = [f"{_table(before)} TO {spot}" for (before, _), spot in zip(pairs, spots, strict=True)]
    back = [f"{spot} TO {_table(after)}" for (_, after), spot in zip(pairs, spots, strict=True)]
    old_names = tuple((before.table_id, before.schema, before.table) for before, _ in pairs)
    after = tuple(after for _, after in pairs)
    query = f"RENAME TABLE {', '.join([*away, *back])}"
    return DdlEvent(after[0].version, DdlType.RENAME_TABLES, query, after[0].schema, after, old_names=old_names)


def compose_create(table: TableSchema, commit_ts: int, replaced: tuple[int, ...] = ()) -> DdlEvent:
    """Return the event that makes a table, in the place of others that had its name."""
    query = create_text(table, short_type)
    return DdlEvent(commit_ts, DdlType.CREATE_TABLE, query, table.schema, (table,), replaced)


def compose_change(before: TableSchema, after: TableSchema) -> DdlEvent:
    """Return the event that turns one version into the next, or makes the table anew where that is another generation."""
    if before.table_id == after.table_id:
        return compose_ddl(before, after)
    return compose_create(after, after.version, (before.table_id,))


def _renamed(before: TableSchema, after: TableSchema) -> DdlEvent:
    query = rename_text((before.schema, before.table), (after.schema, after.table))
    old_names = ((before.table_id, before.schema, before.table),)
    return DdlEvent(after.version, DdlType.RENAME_TABLE, query, after.schema, (after,), old_names=old_names)


def _actions(before: TableSchema, after: TableSchema) -> list[tuple[DdlType, str]]:
    old = {c.id: c for c in before.columns}
    new = {c.id: c for c in after.columns}
    actions = [(DdlType.DROP_COLUMN, f"DROP COLUMN {quoted(c.name)}") for c in before.columns if c.id not in new]
    for column in after.columns:
        known = old.get(column.id)
        if known is None:
            actions.append((DdlType.ADD_COLUMN, f"ADD COLUMN {_definition(column)}"))
        elif known.name != column.name and known.type == column.type:
            actions.append((DdlType.MODIFY_COLUMN, f"RENAME COLUMN {quoted(known.name)} TO {quoted(column.name)}"))
        elif known.name != column.name:
            actions.append((DdlType.MODIFY_COLUMN, f"CHANGE COLUMN {quoted(known.name)} {_definition(column)}"))
        elif (known.type, known.nullable) != (column.type, column.nullable):
            actions.append((DdlType.MODIFY_COLUMN, f"MODIFY COLUMN {_definition(column)}"))
    keys = [[c.id for c in t.columns if c.primary_key] for t in (before, after)]
    if keys[0] != keys[1]:
        names = names_text(c.name for c in after.columns if c.primary_key)
        drop = "DROP PRIMARY KEY" if keys[0] else ""
        add = f"ADD PRIMARY KEY ({names})" if names else ""
        actions.append((DdlType.MULTI_SCHEMA_CHANGE, ", ".join(part for part in (drop, add) if part)))
    return actions


def _definition(column: Column) -> str:
    return column_text(column, short_type)


def _table(table: TableSchema) -> str:
    return table_text((table.schema, table.table))
