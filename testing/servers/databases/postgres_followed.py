"""A reader of what the PostgreSQL source tells, event by event, that knows tables by name as readers of files do.

DDLs are applied one after the other, and one that cannot be applied (a name that is taken, a table that is not there) fails at once. Rows
that were there before a column show its initial default. What doubts were told is kept beside: rows of those tables need not be right. The
oracle is the server's own answer. Runs in tests.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.span import Span
from penstock.model.table import Column, TableSchema
from penstock.source.postgres.log_reader import LogReaderSettings
from penstock.source.postgres.rows.cells import CellForm
from penstock.source.postgres.tables.catalog import read_tables
from penstock.source.postgres.upstream import PostgresSettings, PostgresUpstream
from penstock.source.postgres.wire.connection import quote_ident
from penstock.source.single_log import LogPosition, LogStep, TableDoubt
from testing.servers.databases.postgres_answers import comparable, expected_value
from testing.servers.databases.postgres_lab import PostgresLab

Values = dict[str, Any]
QUICK = PostgresSettings(LogReaderSettings(mark_interval_s=0.02, look_interval_s=0.02, poll_s=0.02, linger_s=0.01), reader_wait_s=0.0)
_LOOKS = 2
_STEPS_MAX = 2000


class FollowedTable:
    """A table of the reader: its newest version, and rows by key, values by column id."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.rows: dict[bytes, dict[int, Any]] = {}

    def alter(self, after: TableSchema) -> None:
        """Go over to another version."""
        known = {c.id for c in self.schema.columns}
        for row in self.rows.values():
            row.update((c.id, initial_value(c)) for c in after.columns if c.id not in known)
        self.schema = after


class FollowedTables:
    """All tables of one schema, as a reader of snapshot and log has them."""

    def __init__(self, lab: PostgresLab, upstream: PostgresUpstream, schema: str = "shop") -> None:
        self._lab = lab
        self._upstream = upstream
        self._schema = schema
        self.tables: dict[str, FollowedTable] = {}
        self.ddls: list[DdlEvent] = []
        self.doubts: list[TableDoubt] = []
        self.position: LogPosition
        self._told_ts = 0
        self._handed: dict[int, int] = {}

    def begin(self) -> None:
        """Take the state of all tables."""
        self._upstream.first_position()
        ticket = self._upstream.begin_snapshot()
        for table in self._upstream.list_tables():
            if table.schema == self._schema:
                followed = self.tables[table.table] = FollowedTable(table)
                for batch in self._upstream.read_snapshot(ticket, Span(table.table_id), table, 1000):
                    self._apply_batch(followed, batch)
        self._upstream.end_snapshot(ticket)
        self.position = ticket.start
        self._told_ts = ticket.start.ts
        self._handed = {t.schema.table_id: ticket.start.ts for t in self.tables.values()}

    def resume(self, other: FollowedTables) -> None:
        """Go on with what another reader has, as a process that comes back."""
        self.tables, self.position = other.tables, other.position
        self._told_ts, self._handed = other._told_ts, other._handed

    def follow(self) -> None:
        """Read the log to its end, and on until the catalog was looked at."""
        for _ in range(_LOOKS):
            end = self._upstream.log_end()
            while not self._read_to(end):
                pass

    def _read_to(self, end: str) -> bool:
        """Read up to a place; return False where a table was made whose rows must be read again from before it."""
        reading = self._upstream.read_log(self.position, [], self._is_wanted, threading.Event())
        with contextlib.closing(reading):  # type: ignore[type-var]
            for number, step in enumerate(reading):
                before = self.position
                if self.apply(step):
                    self.position = before
                    return False
                if step.position is not None and self._upstream.reached(step.position.text, end) and step.mark:
                    return True
                assert number < _STEPS_MAX, "the end of the log is not reached"
        raise AssertionError("the log ended")

    def _is_wanted(self, table_id: int) -> bool:
        return any(t.schema.table_id == table_id for t in self.tables.values())

    def apply(self, step: LogStep) -> bool:
        """Apply a step, DDLs and rows in the order of their ts, without what was applied; return whether a table began in it."""
        self.doubts += step.doubts
        ddls = [d for d in step.ddls if d.commit_ts > self._told_ts]
        known = set(self._handed)
        stamps = sorted({ts for c in step.changes for ts in c.records.column("_ts").to_pylist()})
        for ts in stamps:
            while ddls and ddls[0].commit_ts < ts:
                self._apply_ddl(ddls.pop(0))
            for change in sorted(step.changes, key=lambda c: c.header.kind is BatchKind.DATA):
                table = next((t for t in self.tables.values() if t.schema.table_id == change.header.table_id), None)
                if table is not None and ts > self._handed.setdefault(table.schema.table_id, 0):
                    self._apply_batch(table, change, ts)
        for ddl in ddls:
            self._apply_ddl(ddl)
        if step.position is not None:
            self.position = step.position
            self._told_ts = step.position.ts
            fresh = [t.schema.table_id for t in self.tables.values() if t.schema.table_id not in known]
            self._handed = {t.schema.table_id: step.position.ts for t in self.tables.values()}
            self._handed.update(dict.fromkeys(fresh, 0))
            # Generations of a truncated table are captured from where they begin; what the log has of them came with this step.
            return bool(fresh)
        return False

    def doubted(self) -> set[str]:
        """Return the names of the tables that are in doubt, as they are called now."""
        ids = {d.table_id for d in self.doubts}
        oids = {i & 0xFFFFFFFF for i in ids}
        return {name for name, table in self.tables.items() if table.schema.table_id & 0xFFFFFFFF in oids}

    def wrong(self) -> dict[str, tuple[Any, Any]]:
        """Return the tables that differ from the server's, each with what is here and what is there; those in doubt as well."""
        with self._lab.session() as session:
            shown = {t.table: t for t in read_tables(session) if t.schema == self._schema}
        found: dict[str, tuple[Any, Any]] = {}
        for name in shown.keys() | self.tables.keys():
            mine, theirs = self._mine(name), self._theirs(shown[name]) if name in shown else None
            if mine != theirs:
                found[name] = (mine, theirs)
        return found

    def _mine(self, name: str) -> list[str] | None:
        table = self.tables.get(name)
        if table is None:
            return None
        float4 = {c.name for c in table.schema.columns if c.type.kind == "FLOAT"}
        rows = [{c.name: row.get(c.id) for c in table.schema.columns} for row in table.rows.values()]
        return sorted(repr(sorted((k, comparable(v, k in float4)) for k, v in row.items())) for row in rows)

    def _theirs(self, shown: Any) -> list[str]:
        float4 = {c.column.name for c in shown.columns if c.column.type.kind == "FLOAT"}
        names = ", ".join(quote_ident(c.column.name) for c in shown.columns)
        rows = self._lab.sql(f"SELECT {names} FROM {quote_ident(shown.schema)}.{quote_ident(shown.table)}")
        read = [{c.column.name: expected_value(CellForm(c.form), v) for c, v in zip(shown.columns, row, strict=True)} for row in rows]
        return sorted(repr(sorted((k, comparable(v, k in float4)) for k, v in row.items())) for row in read)

    def _apply_ddl(self, ddl: DdlEvent) -> None:
        self.ddls.append(ddl)
        if ddl.type in {DdlType.RENAME_TABLE, DdlType.RENAME_TABLES}:
            parked = [self._named(table_id, schema, name) for table_id, schema, name in ddl.old_names]
            for _, _, name in ddl.old_names:
                self.tables.pop(name, None)
            for table, after in zip(parked, ddl.tables, strict=True):
                assert after.table not in self.tables, f"{ddl.query}: the name is taken"
                table.alter(after)
                if after.schema == self._schema:
                    self.tables[after.table] = table
            return
        for table_id in ddl.dropped_table_ids:
            held = [n for n, t in self.tables.items() if t.schema.table_id == table_id]
            assert held, f"{ddl.query}: no table {table_id}"
            del self.tables[held[0]]
        for after in ddl.tables:
            if ddl.type in {DdlType.CREATE_TABLE, DdlType.TRUNCATE_TABLE}:
                assert after.table not in self.tables, f"{ddl.query}: the name is taken"
                self.tables[after.table] = FollowedTable(after)
            else:
                self._named(after.table_id, after.schema, after.table).alter(after)

    def _named(self, table_id: int, schema: str, name: str) -> FollowedTable:
        table = self.tables.get(name)
        assert table is not None and table.schema.table_id == table_id, f"{schema}.{name} is not table {table_id}"  # noqa: PT018
        return table

    @staticmethod
    def _apply_batch(table: FollowedTable, batch: ChangeBatch, ts: int | None = None) -> None:
        for row in batch.records.to_pylist():
            if ts is not None and row["_ts"] != ts:
                continue
            if batch.header.kind is BatchKind.TOMBSTONE:
                if row["_op"] == Op.DELETE or row["_key"] in table.rows:
                    table.rows.pop(row["_key"], None)
            else:
                table.rows[row["_key"]] = {int(k[1:]): v for k, v in row.items() if not k.startswith("_")}


def initial_value(column: Column) -> Any:
    """Return what a row from before a column has in it."""
    text = column.default if column.initial_default is msgspec.UNSET else column.initial_default
    if text is None:
        return None
    kind = column.type.arrow()
    if str(kind).startswith(("int", "uint")):
        return int(text)
    if str(kind) in {"float", "double"}:
        return float(text)
    return text.encode() if str(kind) == "binary" else text


def run_both_ways(lab: PostgresLab, options: str, setup: str, statements: Sequence[str], live: bool) -> FollowedTables:
    """Follow tables while statements run: reading after each, or only behind all of them."""
    lab.sql(setup)
    upstream = PostgresUpstream(f"{lab.uri}{options}", QUICK)
    try:
        followed = FollowedTables(lab, upstream)
        followed.begin()
        for statement in statements:
            lab.sql(statement)
            if live:
                followed.follow()
        followed.follow()
        return followed
    finally:
        upstream.close()
