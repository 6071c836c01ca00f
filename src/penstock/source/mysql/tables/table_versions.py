"""Table versions: which tables exist at the reader's place in the log, in which version, under which id.

The server knows only the present, so versions are kept here: those that the store remembers from earlier runs, those that the server showed
when capture began, and one more for every DDL in the log. A version's number is the commit ts of its DDL. A table's id is made of its
name and the ts of its creation, so that the same log gives the same ids; it stays through renames and changes with TRUNCATE. A DDL that
is read again after a restart gives the versions that it gave before. Safe for many threads; one of them reads the log.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence

import msgspec

from penstock.ddl.statement import Statement
from penstock.ddl.tokens import TableName
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, SchemaHistory, TableSchema
from penstock.source.mysql.tables.columns import ServerTable
from penstock.source.mysql.tables.ddl_columns import altered_columns, created_columns

ID_BITS = 48
ReadTable = Callable[[str, str], ServerTable | None]
"""Returns a table as the server has it now."""


def table_id(schema: str, table: str, created_ts: int) -> int:
    """Return the id of a table: the same in every process, never the DDL span's 0."""
    text = f"{schema}\x00{table}\x00{created_ts}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> (64 - ID_BITS) or 1


class TableVersions:
    """All versions of all tables, and those that live at the reader's place."""

    def __init__(self, read_table: ReadTable) -> None:
        self._read_table = read_table
        self._lock = threading.RLock()
        self._histories: dict[int, SchemaHistory] = {}
        self._live: dict[TableName, TableSchema] = {}
        self._charsets: dict[TableName, dict[str, str]] = {}
        self._problems: dict[TableName, str] = {}
        self._loaded = False
        self._is_newest: Callable[[], bool] = lambda: True

    @property
    def loaded(self) -> bool:
        """Return whether the server's tables are known."""
        return self._loaded

    def adopt(self, versions: Sequence[TableSchema]) -> None:
        """Take over versions from earlier runs."""
        with self._lock:
            for version in versions:
                self._add(version)

    def load(self, tables: Sequence[ServerTable], ts: int) -> None:
        """Take over what the server shows now: tables that nobody remembers are known from ``ts`` on."""
        with self._lock:
            remembered = self._by_name(None)
            for table in tables:
                name = (table.schema, table.table)
                self._note(table)
                if table.problem or name in remembered:
                    continue
                keys = table.unique_ids(table.columns)
                self._add(TableSchema(table_id(*name, 0), table.schema, table.table, ts, table.columns, unique_keys=keys))
            self._loaded = True
            self._live = self._by_name(None)

    def rewind(self, ts: int) -> None:
        """Let the tables live that lived at a ts, where the log is read from next."""
        with self._lock:
            self._live = self._by_name(ts)

    def list(self) -> list[TableSchema]:
        """Return the newest version of every table that lives."""
        with self._lock:
            return [self._live[name] for name in sorted(self._live)]

    def history(self, wanted: int) -> tuple[TableSchema, ...]:
        """Return every version of a table, oldest first."""
        with self._lock:
            found = self._histories.get(wanted)
            if found is None:
                raise PenstockError("TABLE_UNKNOWN", f"no table has id {wanted}")
            return found.versions()

    def live(self, name: TableName) -> TableSchema | None:
        """Return the version of a table at the reader's place; None for one that is not known there."""
        with self._lock:
            return self._live.get(name)

    def problem(self, name: TableName) -> str:
        """Return why a table cannot be captured, or nothing."""
        return self._problems.get(name, "")

    def charset(self, name: TableName, column: str) -> str:
        """Return the charset of a column, empty where it has none."""
        with self._lock:
            if name not in self._charsets:
                found = self._read_table(*name)
                self._charsets[name] = {} if found is None else _charsets(found)
            return self._charsets[name].get(column.lower(), "utf8mb4")

    def apply(self, statement: Statement, query: str, ts: int, is_newest: Callable[[], bool] = lambda: True) -> DdlEvent | None:
        """Make a statement of the log true at its commit ts; return its event, None where no known table is concerned.

        ``is_newest`` tells whether the log ends behind the statement. Then the server shows the table as the statement left it; otherwise
        the text of the statement decides as far as it can be understood.
        """
        with self._lock:
            self._is_newest = is_newest
            if statement.type in {DdlType.CREATE_SCHEMA, DdlType.DROP_SCHEMA}:
                return self._apply_schema(statement, query, ts)
            if statement.type is DdlType.DROP_TABLE:
                gone = [self._live.pop(n) for n in statement.tables if n in self._live]
                return DdlEvent(ts, DdlType.DROP_TABLE, query, statement.schema, (), tuple(t.table_id for t in gone)) if gone else None
            if statement.type is DdlType.TRUNCATE_TABLE:
                return self._truncate(statement.tables[0], query, ts)
            if statement.type is DdlType.CREATE_TABLE:
                return self._create(statement, query, ts)
            return self._change(statement, query, ts)

    # -- parts; all under the lock

    def _apply_schema(self, statement: Statement, query: str, ts: int) -> DdlEvent:
        gone = [n for n in self._live if statement.type is DdlType.DROP_SCHEMA and n[0] == statement.schema]
        ids = tuple(self._live.pop(n).table_id for n in sorted(gone))
        return DdlEvent(ts, statement.type, query, statement.schema, (), ids)

    def _truncate(self, name: TableName, query: str, ts: int) -> DdlEvent | None:
        old = self._live.get(name)
        if old is None:
            return None
        new = self._known(table_id(*name, ts), ts) or msgspec.structs.replace(old, table_id=table_id(*name, ts), version=ts)
        self._install(new)
        return DdlEvent(ts, DdlType.TRUNCATE_TABLE, query, old.schema, (new,), (old.table_id,))

    def _create(self, statement: Statement, query: str, ts: int) -> DdlEvent | None:
        name = statement.tables[0]
        old = self._live.get(name)
        replaced = bool(statement.renamed)
        if old is not None and not replaced:
            return None
        new_id = table_id(*name, ts)
        new = self._known(new_id, ts)
        if new is None:
            new = self._created(name, statement, query, new_id, ts)
        if new is None:
            return None
        self._install(new)
        return DdlEvent(ts, DdlType.CREATE_TABLE, query, name[0], (new,), (old.table_id,) if old is not None else ())

    def _change(self, statement: Statement, query: str, ts: int) -> DdlEvent | None:
        pairs = statement.renamed or tuple((name, name) for name in statement.tables)
        olds = [(self._live.get(old), old, new) for old, new in pairs]
        changed: list[TableSchema] = []
        names: list[tuple[int, str, str]] = []
        for old, old_name, _ in olds:
            if old is not None:
                self._live.pop(old_name, None)
        for old, old_name, new_name in olds:
            if old is None:
                continue
            new = self._known(old.table_id, ts) or self._changed(old, new_name, statement, query, ts)
            self._install(new)
            changed.append(new)
            if new_name != old_name:
                names.append((old.table_id, *old_name))
        if not changed:
            return None
        return DdlEvent(ts, statement.type, query, statement.schema, tuple(changed), (), tuple(names))

    def _created(self, name: TableName, statement: Statement, query: str, new_id: int, ts: int) -> TableSchema | None:
        like = self._live.get(statement.like) if statement.like is not None else None
        told = like.columns if like is not None else created_columns(query)
        keys = like.unique_keys if like is not None else ()
        shown = self._shown(name)
        if shown is not None and (told is None or self._is_newest()):
            told, keys = shown.columns, shown.unique_ids(shown.columns)
        if told is None:
            return None
        columns = told if like is not None else tuple(msgspec.structs.replace(c, id=n) for n, c in enumerate(told, 1))
        return TableSchema(new_id, name[0], name[1], ts, columns, unique_keys=keys)

    def _changed(self, old: TableSchema, name: TableName, statement: Statement, query: str, ts: int) -> TableSchema:
        columns, keys = old.columns, old.unique_keys
        if statement.type not in {DdlType.RENAME_TABLE, DdlType.RENAME_TABLES, DdlType.TABLE_COMMENT}:
            told = altered_columns(old.columns, query)
            shown = self._shown(name)
            is_shown = shown is not None and (told is None or self._is_newest())
            if shown is not None and is_shown:
                told = shown.columns
            if told is not None:
                columns = self._numbered(old, told, dict(statement.columns))
            if shown is not None and is_shown:
                keys = shown.unique_ids(columns)
        return TableSchema(old.table_id, name[0], name[1], ts, columns, unique_keys=keys)

    def _numbered(self, old: TableSchema, columns: tuple[Column, ...], renamed: dict[str, str]) -> tuple[Column, ...]:
        """Give columns the ids that they had under their old names, and new ids to new ones."""
        before = {renamed.get(c.name, c.name).lower(): c.id for c in old.columns}
        highest = max((c.id for v in self._histories[old.table_id].versions() for c in v.columns), default=0)
        numbered = []
        for column in columns:
            known = before.get(column.name.lower())
            if known is None:
                highest += 1
                known = highest
            numbered.append(msgspec.structs.replace(column, id=known))
        return tuple(numbered)

    def _shown(self, name: TableName) -> ServerTable | None:
        shown = self._read_table(*name)
        if shown is None:
            return None
        self._note(shown)
        return None if shown.problem else shown

    def _note(self, table: ServerTable) -> None:
        name = (table.schema, table.table)
        self._charsets[name] = _charsets(table)
        if table.problem:
            self._problems[name] = table.problem
        else:
            self._problems.pop(name, None)

    def _install(self, version: TableSchema) -> None:
        self._add(version)
        self._live[version.schema, version.table] = version

    def _add(self, version: TableSchema) -> None:
        history = self._histories.setdefault(version.table_id, SchemaHistory(version.table_id))
        if history.get(version.version) is None:
            history.add(version)

    def _known(self, wanted: int, ts: int) -> TableSchema | None:
        history = self._histories.get(wanted)
        return history.get(ts) if history is not None else None

    def _by_name(self, ts: int | None) -> dict[TableName, TableSchema]:
        found: dict[TableName, TableSchema] = {}
        for history in self._histories.values():
            versions = history.versions()
            before = [v for v in versions if ts is None or v.version <= ts]
            # A table whose first version is later than the place was not known there, but it may well have existed.
            newest = before[-1] if before else versions[0]
            name = (newest.schema, newest.table)
            if name not in found or found[name].version < newest.version:
                found[name] = newest
        return found


def _charsets(table: ServerTable) -> dict[str, str]:
    return {column.name.lower(): charset for column, charset in zip(table.columns, table.charsets, strict=True)}
