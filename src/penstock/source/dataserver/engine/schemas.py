"""Schemas: every version of every table of the data server, and what each DDL does to them.

A DDL is planned without side effects (``plan`` raises, or returns the event it would log), then applied. A version's number is the commit
ts of its DDL. A column keeps its id for ever, a table keeps its id through a rename and gets a new one when truncated. Dropped tables
keep their history: a reader that is behind still needs it. Not thread safe: the engine calls it under its lock. Runs in the data server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import sqlglot
from sqlglot import exp

from penstock.ddl.column_definition import build_column, check_modify, has_clock_default, is_first
from penstock.ddl.partition_statement import PartitionChange, PartitionDdl, parse_partition_ddl, take_clause
from penstock.ddl.tokens import TableName as Name
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.projection import constant
from penstock.model.row_key import check_key_column
from penstock.model.span import DDL_TABLE_ID
from penstock.model.table import Column, SchemaHistory, TableSchema
from penstock.source.dataserver.engine.partitions import check_partitions
from penstock.source.dataserver.engine.renames import follow_renames, parse_renames

_ACTION_TYPES: list[tuple[type, DdlType]] = [
    (exp.ColumnDef, DdlType.ADD_COLUMN),
    (exp.Drop, DdlType.DROP_COLUMN),
    (exp.ModifyColumn, DdlType.MODIFY_COLUMN),
    (exp.RenameColumn, DdlType.MODIFY_COLUMN),
    (exp.AddConstraint, DdlType.ADD_INDEX),
]


class Schemas:
    """The databases, the tables that live, and the histories of all tables that ever lived."""

    def __init__(self) -> None:
        self._databases: set[str] = set()
        self._live: dict[tuple[str, str], TableSchema] = {}
        self._by_id: dict[int, TableSchema] = {}
        self._histories: dict[int, SchemaHistory] = {}
        self._column_ids: dict[int, int] = {}
        self._lifetimes: dict[int, tuple[int, int | None]] = {}
        self._labels: dict[int, str] = {}
        """The name of the partition that a physical table is; empty for an ordinary table."""
        self._next_table_id = DDL_TABLE_ID + 1

    def live(self, table_id: int) -> TableSchema | None:
        """Return the newest version of a table that is not dropped."""
        return self._by_id.get(table_id)

    def table(self, schema: str, table: str) -> TableSchema:
        """Return a live table by name."""
        found = self._live.get((schema.lower(), table.lower()))
        if found is None:
            raise PenstockError("TABLE_UNKNOWN", f"table {schema}.{table} does not exist")
        return found

    def physical(self, schema: str, table: str) -> list[TableSchema]:
        """Return the physical tables of a name: one, or one per partition."""
        name = _name(self.table(schema, table))
        return sorted((t for t in self._by_id.values() if _name(t) == name), key=lambda t: t.table_id)

    def tables_at(self, ts: int | None) -> list[TableSchema]:
        """Return the tables that live now, or lived at a ts, in the version of that time."""
        if ts is None:
            return sorted(self._by_id.values(), key=lambda t: t.table_id)
        lived = [i for i, (born, died) in sorted(self._lifetimes.items()) if born <= ts and (died is None or died > ts)]
        return [self._histories[i].at(ts) for i in lived]

    def history(self, table_id: int) -> tuple[TableSchema, ...]:
        """Return all versions of a table, oldest first; also of a dropped one."""
        found = self._histories.get(table_id)
        if found is None:
            raise PenstockError("TABLE_UNKNOWN", f"no table has id {table_id}")
        return found.versions()

    def plan(self, query: str) -> Callable[[int], DdlEvent | None]:
        """Parse and check a DDL; return what makes its event at a commit ts, or None from it where IF [NOT] EXISTS makes it a no-op."""
        renames = parse_renames(query)
        if renames is not None:
            return self._plan_renames(renames, query)
        partition_ddl = parse_partition_ddl(query)
        if partition_ddl is not None:
            return self._plan_partitions(partition_ddl, query)
        return self._plan_statement(query)

    def _plan_statement(self, query: str) -> Callable[[int], DdlEvent | None]:
        text, partitions = take_clause(query)
        try:
            statements = sqlglot.parse(text, dialect="mysql")
        except sqlglot.errors.SqlglotError as error:
            raise PenstockError("UPSTREAM_REFUSED", f"the DDL does not parse: {str(error).splitlines()[0]}") from error
        found = [s for s in statements if s is not None]
        if len(found) > 1 and all(isinstance(s, exp.Create) and s.kind == "TABLE" for s in found):
            return self._plan_create_tables([s for s in found if isinstance(s, exp.Create)], query)
        if len(found) != 1:
            raise PenstockError("UPSTREAM_REFUSED", "exactly one DDL statement is expected, or several CREATE TABLE")
        statement = found[0]
        if isinstance(statement, exp.Create):
            return self._plan_create(statement, query, partitions)
        if isinstance(statement, exp.Drop):
            return self._plan_drop(statement, query)
        if isinstance(statement, exp.TruncateTable):
            return self._plan_truncate(statement, query)
        if isinstance(statement, exp.Alter):
            return self._plan_alter(statement, query)
        raise PenstockError("UPSTREAM_REFUSED", f"the embedded data server does not execute {type(statement).__name__.upper()} statements")

    def apply(self, event: DdlEvent) -> None:
        """Make a planned event true."""
        if event.type == DdlType.CREATE_SCHEMA:
            self._databases.add(event.schema.lower())
        if event.type == DdlType.DROP_SCHEMA:
            self._databases.discard(event.schema.lower())
        for table_id in event.dropped_table_ids:
            gone = self._by_id.pop(table_id)
            self._live.pop(_name(gone), None)
            self._lifetimes[table_id] = (self._lifetimes[table_id][0], event.commit_ts)
        for before in [self._by_id[t.table_id] for t in event.tables if t.table_id in self._by_id]:
            self._live.pop(_name(before), None)
        if event.type == DdlType.REORGANIZE_PARTITION:
            self._inherit(event)
        for table in event.tables:
            self._live[_name(table)] = self._by_id[table.table_id] = table
            self._histories.setdefault(table.table_id, SchemaHistory(table.table_id)).add(table)
            self._lifetimes.setdefault(table.table_id, (event.commit_ts, None))
            self._next_table_id = max(self._next_table_id, table.table_id + 1)
            newest = max((c.id for c in table.columns), default=0)
            self._column_ids[table.table_id] = max(self._column_ids.get(table.table_id, 0), newest)

    def _inherit(self, event: DdlEvent) -> None:
        """Let a partition that others were put together in know the versions of their rows."""
        for made in [t for t in event.tables if t.table_id not in self._by_id]:
            history = self._histories.setdefault(made.table_id, SchemaHistory(made.table_id))
            for version in (v for i in event.dropped_table_ids for v in self._histories[i].versions()):
                history.add(msgspec.structs.replace(version, table_id=made.table_id, partition_id=made.table_id))

    def _plan_create(self, statement: exp.Create, query: str, partitions: tuple[str, ...]) -> Callable[[int], DdlEvent | None]:
        exists = bool(statement.args.get("exists"))
        if statement.kind in ("DATABASE", "SCHEMA"):
            name = statement.this.name
            if name.lower() in self._databases:
                return _no_op(exists, f"database {name} exists")
            return lambda ts: DdlEvent(ts, DdlType.CREATE_SCHEMA, query, name)
        made = self._plan_table(statement, self._next_table_id)
        if made is None:
            return lambda ts: None
        parts = self._made(made, partitions) if partitions else [made]
        return lambda ts: DdlEvent(
            ts, DdlType.CREATE_TABLE, query, made.schema, tuple(msgspec.structs.replace(t, version=ts) for t in parts)
        )

    def _made(self, model: TableSchema, names: Sequence[str]) -> list[TableSchema]:
        """Return new partitions like a table, with ids of their own."""
        ids = range(self._next_table_id, self._next_table_id + len(names))
        self._labels.update(zip(ids, names, strict=True))
        return [msgspec.structs.replace(model, table_id=i, partition_id=i if name else 0) for i, name in zip(ids, names, strict=True)]

    def _plan_partitions(self, ddl: PartitionDdl, query: str) -> Callable[[int], DdlEvent | None]:
        parts = self.physical(ddl.schema, ddl.table)
        labels = {self._labels.get(t.table_id, ""): t for t in parts if t.partition_id}
        check_partitions({name: t.table_id for name, t in labels.items()}, ddl)
        if ddl.change is PartitionChange.EXCHANGE:
            return self._plan_exchange(ddl, labels, query)
        gone = tuple(labels[name].table_id for name in ddl.names)
        made = self._made(parts[0], ddl.names if ddl.change is PartitionChange.TRUNCATE else ddl.made)
        after = [*(t for t in parts if t.table_id not in gone), *made]

        def build(ts: int) -> DdlEvent:
            tables = tuple(msgspec.structs.replace(t, version=ts) for t in after)
            kind, ids = DdlType[f"{ddl.change.value}_PARTITION"], tuple(t.table_id for t in made)
            return DdlEvent(ts, kind, query, parts[0].schema, tables, gone, made_table_ids=ids)

        return build

    def _plan_exchange(self, ddl: PartitionDdl, labels: dict[str, TableSchema], query: str) -> Callable[[int], DdlEvent | None]:
        assert ddl.other is not None
        inside, outside = labels[ddl.names[0]], self.table(*ddl.other)
        shapes = [[(c.name, c.type, c.nullable, c.primary_key) for c in t.columns] for t in (inside, outside)]
        if outside.partition_id or shapes[0] != shapes[1] or [c.id for c in inside.columns] != [c.id for c in outside.columns]:
            raise PenstockError("UPSTREAM_REFUSED", "a partition is exchanged with an ordinary table of the same structure")
        left = msgspec.structs.replace(outside, table_id=inside.table_id)
        came = msgspec.structs.replace(inside, table_id=outside.table_id, partition_id=outside.table_id)
        others = [t for t in labels.values() if t is not inside]

        def build(ts: int) -> DdlEvent:
            self._labels |= {inside.table_id: "", outside.table_id: ddl.names[0]}
            # The table that is exchanged comes first: the target is told of the DDL under its name.
            tables = tuple(msgspec.structs.replace(t, version=ts) for t in (left, came, *others))
            return DdlEvent(ts, DdlType.EXCHANGE_PARTITION, query, inside.schema, tables)

        return build

    def _plan_create_tables(self, statements: list[exp.Create], query: str) -> Callable[[int], DdlEvent | None]:
        planned = [self._plan_table(s, self._next_table_id + at) for at, s in enumerate(statements)]
        made = [table for table in planned if table is not None]
        if len(made) != len(planned) or len({_name(t) for t in made}) != len(made):
            raise PenstockError("UPSTREAM_REFUSED", "several tables are made together only where none of them exists")

        def build(ts: int) -> DdlEvent:
            return DdlEvent(ts, DdlType.CREATE_TABLES, query, made[0].schema, tuple(msgspec.structs.replace(t, version=ts) for t in made))

        return build

    def _plan_table(self, statement: exp.Create, table_id: int) -> TableSchema | None:
        """Return the table that a statement makes, its version still open; None where IF NOT EXISTS makes it a no-op."""
        if statement.kind != "TABLE" or not isinstance(statement.this, exp.Schema):
            raise PenstockError("UPSTREAM_REFUSED", f"CREATE {statement.kind} is not supported by the embedded data server")
        schema, table = self._target(statement.this.this)
        if schema.lower() not in self._databases:
            raise PenstockError("UPSTREAM_REFUSED", f"database {schema} does not exist", f"CREATE DATABASE {schema} first.")
        if (schema.lower(), table.lower()) in self._live:
            _no_op(bool(statement.args.get("exists")), f"table {schema}.{table} exists")
            return None
        columns = _columns_of(statement.this)
        return TableSchema(table_id, schema, table, 0, columns, unique_keys=_unique_keys(statement.this.expressions, columns))

    def _plan_drop(self, statement: exp.Drop, query: str) -> Callable[[int], DdlEvent | None]:
        targets = statement.args.get("tables") or [statement.this]
        exists = bool(statement.args.get("exists"))
        if statement.kind in ("DATABASE", "SCHEMA"):
            name = targets[0].name
            if name.lower() not in self._databases:
                return _no_op(exists, f"database {name} does not exist")
            dropped = tuple(t.table_id for t in self._by_id.values() if t.schema.lower() == name.lower())
            return lambda ts: DdlEvent(ts, DdlType.DROP_SCHEMA, query, name, dropped_table_ids=dropped)
        if statement.kind != "TABLE":
            raise PenstockError("UPSTREAM_REFUSED", f"DROP {statement.kind} is not supported by the embedded data server")
        names = [self._target(target) for target in targets]
        unknown = [f"{schema}.{table}" for schema, table in names if (schema.lower(), table.lower()) not in self._live]
        if unknown and not exists:
            raise PenstockError("TABLE_UNKNOWN", f"table {', '.join(unknown)} does not exist")
        gone = [t for schema, table in names if f"{schema}.{table}" not in unknown for t in self.physical(schema, table)]
        if not gone:
            return lambda ts: None
        ids = tuple(dict.fromkeys(t.table_id for t in gone))
        old = tuple((t.table_id, t.schema, t.table) for t in gone)
        return lambda ts: DdlEvent(ts, DdlType.DROP_TABLE, query, gone[0].schema, dropped_table_ids=ids, old_names=old)

    def _plan_truncate(self, statement: exp.TruncateTable, query: str) -> Callable[[int], DdlEvent | None]:
        old = self.physical(*self._target(statement.expressions[0]))
        made = self._made(old[0], [self._labels.get(t.table_id, "") for t in old])

        def build(ts: int) -> DdlEvent:
            new = tuple(msgspec.structs.replace(t, version=ts) for t in made)
            return DdlEvent(ts, DdlType.TRUNCATE_TABLE, query, old[0].schema, new, tuple(t.table_id for t in old))

        return build

    def _plan_alter(self, statement: exp.Alter, query: str) -> Callable[[int], DdlEvent | None]:
        old = self.table(*self._target(statement.this))
        actions = statement.args.get("actions") or []
        if len(actions) == 1 and isinstance(actions[0], exp.AlterRename):
            new_name = self._target(actions[0].this, old.schema)
            return self._plan_renames([((old.schema, old.table), new_name)], query)
        columns = list(old.columns)
        types = []
        next_id = self._column_ids[old.table_id] + 1
        for action in actions:
            types.append(_action_type(action))
            columns = _apply_action(old, columns, action, next_id)
            next_id = max(next_id, max(c.id for c in columns) + 1)
        if not types:
            raise PenstockError("UPSTREAM_REFUSED", "this ALTER TABLE is not supported by the embedded data server")
        ddl_type = types[0] if len(set(types)) == 1 else DdlType.MULTI_SCHEMA_CHANGE
        changed = tuple(columns)
        left = {c.id for c in changed}
        kept = tuple(key for key in (tuple(i for i in k if i in left) for k in old.unique_keys) if key)
        keys = tuple(dict.fromkeys((*kept, *_unique_keys(actions, changed))))

        parts = self.physical(old.schema, old.table)

        def build(ts: int) -> DdlEvent:
            tables = tuple(msgspec.structs.replace(t, version=ts, columns=changed, unique_keys=keys) for t in parts)
            return DdlEvent(ts, ddl_type, query, old.schema, tables)

        return build

    def _plan_renames(self, steps: list[tuple[Name, Name]], query: str) -> Callable[[int], DdlEvent | None]:
        missing = [schema for _, (schema, _table) in steps if schema.lower() not in self._databases]
        if missing:
            raise PenstockError("UPSTREAM_REFUSED", f"database {missing[0]} does not exist")
        moves = follow_renames(steps, lambda name: name in self._live)
        renamed = [(part, new) for old, new in moves.items() for part in self.physical(*old)]
        kind = DdlType.RENAME_TABLE if len(moves) == 1 else DdlType.RENAME_TABLES
        if not renamed:
            return lambda ts: None
        names = tuple((old.table_id, old.schema, old.table) for old, _ in renamed)

        def build(ts: int) -> DdlEvent:
            tables = tuple(msgspec.structs.replace(old, schema=new[0], table=new[1], version=ts) for old, new in renamed)
            return DdlEvent(ts, kind, query, tables[0].schema, tables, old_names=names)

        return build

    def _target(self, table: exp.Expression, schema: str = "") -> tuple[str, str]:
        database = table.args.get("db")
        name = database.name if database is not None else schema
        if not name:
            raise PenstockError("UPSTREAM_REFUSED", f"write the database before the table: <database>.{table.name}")
        return name, table.name


def _name(table: TableSchema) -> tuple[str, str]:
    return table.schema.lower(), table.table.lower()


def _no_op(allowed: bool, why: str) -> Callable[[int], None]:
    if not allowed:
        raise PenstockError("UPSTREAM_REFUSED", why)
    return lambda ts: None


def _columns_of(schema: exp.Schema) -> tuple[Column, ...]:
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


def _unique_keys(items: Sequence[exp.Expression], columns: Sequence[Column]) -> tuple[tuple[int, ...], ...]:
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


def _action_type(action: exp.Expression) -> DdlType:
    for kind, ddl_type in _ACTION_TYPES:
        if isinstance(action, kind):
            return ddl_type
    raise PenstockError("UPSTREAM_REFUSED", f"ALTER TABLE ... {type(action).__name__} is not supported by the embedded data server")


def _apply_action(table: TableSchema, columns: list[Column], action: exp.Expression, next_id: int) -> list[Column]:
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
