"""Columns of a table as a statement writes them, and what one action of an ALTER does to them.

Pure: columns in, columns out; what cannot be done is ``UPSTREAM_REFUSED``. Invariant: a column that stays keeps its id. Runs in the data
server.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlglot import exp

from penstock.ddl.column_definition import build_column, check_modify, has_clock_default, is_first
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.rows.projection import constant
from penstock.model.rows.row_key import check_key_column
from penstock.model.table import Column, TableSchema

_ACTION_TYPES: list[tuple[type, DdlType]] = [
    (exp.ColumnDef, DdlType.ADD_COLUMN),
    (exp.Drop, DdlType.DROP_COLUMN),
    (exp.ModifyColumn, DdlType.MODIFY_COLUMN),
    (exp.RenameColumn, DdlType.MODIFY_COLUMN),
    (exp.AddConstraint, DdlType.ADD_INDEX),
]


def columns_of(schema: exp.Schema) -> tuple[Column, ...]:
    """Return the columns that a CREATE TABLE defines, with ids from 1 on."""
    columns: list[Column] = []
    keys: list[str] = []
    for item in schema.expressions:
        if isinstance(item, exp.ColumnDef):
            columns.append(build_column(item, len(columns) + 1))
        elif isinstance(item, exp.PrimaryKey):
            keys.extend(part.name.lower() for part in item.expressions)
    names = [c.name.lower() for c in columns]
    unknown = [k for k in keys if k not in names]
    if unknown or len(set(names)) != len(names) or not columns:
        raise PenstockError("UPSTREAM_REFUSED", f"unknown key columns {unknown}, or a column name stands twice, or there are no columns")
    done = [msgspec.structs.replace(c, primary_key=True, nullable=False) if c.name.lower() in keys else c for c in columns]
    for column in done:
        _check_default(column)
        if column.primary_key:
            check_key_column(column)
    return tuple(done)


def unique_keys(items: Sequence[exp.Expression], columns: Sequence[Column]) -> tuple[tuple[int, ...], ...]:
    """Return the unique keys that definitions and constraints declare, as column ids. They are declared only: rows are not checked."""
    ids = {c.name.lower(): c.id for c in columns}
    keys = []
    for item in items:
        names = [item.name] if isinstance(item, exp.ColumnDef) else []
        for unique in item.find_all(exp.UniqueColumnConstraint):
            parts = [part.name for part in unique.this.expressions] if isinstance(unique.this, exp.Schema) else names
            unknown = [part for part in parts if part.lower() not in ids]
            if unknown or not parts:
                raise PenstockError("UPSTREAM_REFUSED", f"a unique key names columns that do not exist: {', '.join(unknown)}")
            keys.append(tuple(ids[part.lower()] for part in parts))
    return tuple(dict.fromkeys(keys))


def action_type(action: exp.Expression) -> DdlType:
    """Return what kind of DDL an action of an ALTER is."""
    for kind, ddl_type in _ACTION_TYPES:
        if isinstance(action, kind):
            return ddl_type
    raise PenstockError("UPSTREAM_REFUSED", f"ALTER TABLE ... {type(action).__name__} is not supported by the embedded data server")


def apply_action(table: TableSchema, columns: list[Column], action: exp.Expression, next_id: int) -> list[Column]:
    """Return the columns after an action; one that is added gets the next id."""
    if isinstance(action, exp.AddConstraint):
        return columns
    if isinstance(action, exp.ColumnDef):
        return _add(columns, action, next_id)
    if isinstance(action, exp.Drop):
        names = [t.name for t in action.args.get("tables") or [action.this]]
        gone = [columns[_find(table, columns, name)] for name in names]
        if any(c.primary_key for c in gone) or len(gone) == len(columns):
            raise PenstockError("UPSTREAM_REFUSED", f"column {gone[0].name} cannot be dropped: it is in the primary key or the last one")
        return [c for c in columns if c not in gone]
    if isinstance(action, exp.RenameColumn):
        at = _find(table, columns, action.this.name)
        _check_free(columns, action.args["to"].name)
        columns[at] = msgspec.structs.replace(columns[at], name=action.args["to"].name)
        return columns
    renamed = action.args.get("rename_from")
    at = _find(table, columns, renamed.name if renamed is not None else action.this.name)
    new = build_column(action.this, columns[at].id)
    check_modify(columns[at], new)
    _check_default(new)
    if new.name.lower() != columns[at].name.lower():
        _check_free(columns, new.name)
    columns[at] = new
    return columns


def _add(columns: list[Column], definition: exp.ColumnDef, next_id: int) -> list[Column]:
    new = build_column(definition, next_id)
    _check_free(columns, new.name)
    _check_default(new)
    if new.primary_key or (not new.nullable and new.default is None) or has_clock_default(new):
        raise PenstockError(
            "UPSTREAM_REFUSED", f"column {new.name} cannot be added: stored rows need a constant DEFAULT or NULL, and the key is fixed"
        )
    position = definition.args.get("position")
    if position is None:
        return [*columns, new]
    if is_first(position):
        return [new, *columns]
    after = position.this.name.lower()
    names = [c.name.lower() for c in columns]
    if after not in names:
        raise PenstockError("UPSTREAM_REFUSED", f"column {position.this.name} does not exist")
    at = names.index(after) + 1
    return [*columns[:at], new, *columns[at:]]


def _check_default(column: Column) -> None:
    if has_clock_default(column):
        return
    try:
        if column.default is not None:
            constant(column, column.default)
    except ValueError as error:
        raise PenstockError("UPSTREAM_REFUSED", f"column {column.name}: its DEFAULT is not a value of type {column.type.kind}") from error


def _find(table: TableSchema, columns: list[Column], name: str) -> int:
    for at, column in enumerate(columns):
        if column.name.lower() == name.lower():
            return at
    raise PenstockError("UPSTREAM_REFUSED", f"column {name} does not exist in {table.full_name}")


def _check_free(columns: list[Column], name: str) -> None:
    if any(c.name.lower() == name.lower() for c in columns):
        raise PenstockError("UPSTREAM_REFUSED", f"column {name} exists")
