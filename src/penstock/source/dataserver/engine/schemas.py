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

from penstock.ddl.partition_statement import PartitionChange, PartitionDdl, parse_partition_ddl, take_clause
from penstock.ddl.tokens import TableName as Name
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_TABLE_ID
from penstock.model.table import SchemaHistory, TableSchema
from penstock.source.dataserver.engine.column_changes import action_type, apply_action, columns_of, unique_keys
from penstock.source.dataserver.engine.partitions import check_partitions
from penstock.source.dataserver.engine.renames import follow_renames, parse_renames


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
        columns = columns_of(statement.this)
        return TableSchema(table_id, schema, table, 0, columns, unique_keys=unique_keys(statement.this.expressions, columns))

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
            types.append(action_type(action))
            columns = apply_action(old, columns, action, next_id)
            next_id = max(next_id, max(c.id for c in columns) + 1)
        if not types:
            raise PenstockError("UPSTREAM_REFUSED", "this ALTER TABLE is not supported by the embedded data server")
        ddl_type = types[0] if len(set(types)) == 1 else DdlType.MULTI_SCHEMA_CHANGE
        changed = tuple(columns)
        left = {c.id for c in changed}
        kept = tuple(key for key in (tuple(i for i in k if i in left) for k in old.unique_keys) if key)
        keys = tuple(dict.fromkeys((*kept, *unique_keys(actions, changed))))

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
