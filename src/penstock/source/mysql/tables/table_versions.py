"""Table versions: which tables exist at the reader's place in the log, in which version, under which id.

The server knows only the present, so versions are kept here: those that the store remembers from earlier runs, those that the server showed
when capture began, and one more for every DDL in the log and every table map that tells another table. A version's number is the commit ts
of what made it. A table is known by its id, which stays through renames and changes with TRUNCATE. What is read again after a restart
gives the versions that it gave before. Safe for many threads; one of them reads the log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import msgspec

from penstock.ddl.kept_values import is_made_anew
from penstock.ddl.statement import Statement
from penstock.ddl.tokens import TableName, tokens, unquoted
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.source.mysql.doubt_book import reasoned_doubts
from penstock.source.mysql.tables.columns import ServerTable
from penstock.source.mysql.tables.composed import compose_alter, compose_create, compose_rename, compose_replace, in_lower_case
from penstock.source.mysql.tables.ddl_columns import is_filled
from penstock.source.mysql.tables.log_hole import Crossed, cross_hole
from penstock.source.mysql.tables.map_columns import agrees, renumbered
from penstock.source.mysql.tables.rewrites import (
    changed_reasons,
    converted_reasons,
    read_alteration,
)
from penstock.source.mysql.tables.shown_tables import ReadTable, ShownTables
from penstock.source.mysql.tables.table_book import FOREVER, TableBook, table_id
from penstock.source.mysql.tables.version_columns import IsNewest, VersionColumns
from penstock.source.mysql.wire.tablemap import TableMap
from penstock.source.single_log import GoneName, TableDoubt

_NAMES_ONLY = frozenset({DdlType.RENAME_TABLE, DdlType.RENAME_TABLES})
_OTHER_COLUMNS = ("the log describes it with other columns than its statements told",)
_UNTOLD_HINT = "Set binlog_row_metadata=FULL, or exclude the table."


class Told(msgspec.Struct, frozen=True):
    """What a statement or a table map of the log changes."""

    event: DdlEvent | None = None
    ended: tuple[TableSchema, ...] = ()
    """Versions without columns: tables that are no more."""
    doubts: tuple[TableDoubt, ...] = ()
    gone: tuple[GoneName, ...] = ()


class TableVersions:
    """All versions of all tables, and those that live at the reader's place."""

    def __init__(self, read_table: ReadTable, collations: Callable[[], dict[int, str]] = dict, lower_case: bool = False) -> None:
        """``collations`` gives the charset of each collation by its number; ``lower_case`` where tables are called so, however written."""
        self._lower_case = lower_case
        self._lock = threading.RLock()
        self._shown = ShownTables(read_table, collations)
        self._book = TableBook()
        self._columns = VersionColumns(self._book, self._shown)
        self._live: dict[TableName, TableSchema] = {}
        self._untold: dict[TableName, bool] = {}
        """Tables that neither their CREATE nor the server told, and whether rows may be in them that the log does not hold."""
        self._empty: set[int] = set()
        """Tables that were made since the log is read and whose first rows are still to come: no statement can change rows of them."""
        self._told_charsets: dict[int, dict[str, str]] = {}
        """The charsets of columns, by their ids, that the log told last."""
        self._foreign: set[TableName] = set()
        """Names in table maps that are no tables of users, or none that we may see."""
        self._is_newest: IsNewest = lambda: True

    def adopt(self, versions: Sequence[TableSchema]) -> None:
        """Take over versions from earlier runs; those without columns are ends."""
        with self._lock:
            self._book.adopt(versions)
            self._live = self._book.living(FOREVER)

    def load(self, tables: Sequence[ServerTable], ts: int) -> None:
        """Take over what the server shows now as what there is at ``ts``, where capture begins; nothing where tables are known."""
        with self._lock:
            shown = self._noted(tables)
            if self._book.living(FOREVER):
                return
            for name, table in shown.items():
                keys = table.unique_ids(table.columns)
                self._book.add(TableSchema(table_id(*name, 0), *name, ts, table.columns, unique_keys=keys))
            self._live = self._book.living(FOREVER)

    def cross_hole(self, tables: Sequence[ServerTable], told_ts: int, from_ts: int) -> Crossed:
        """Take over what the server shows now where the log is lost behind a ts up to which everyone was told."""
        with self._lock:
            return cross_hole(self._book, self._columns, self._noted(tables), told_ts, from_ts)

    def _noted(self, tables: Sequence[ServerTable]) -> dict[TableName, ServerTable]:
        for table in tables:
            self._shown.note(table)
        return {(t.schema, t.table): t for t in tables if not t.problem}

    def named(self, words: Sequence[str], schema: str, others: bool = False) -> list[TableSchema]:
        """Return the living tables that the words of a statement name; where it names none, or with ``others``, all that it may mean."""
        if self._lower_case:
            words, schema = [w.lower() for w in words], schema.lower()
        with self._lock:
            plain = [unquoted(w) for w in words]
            qualified = [(plain[at - 1], plain[at + 1]) for at, w in enumerate(words) if w == "." and 0 < at < len(words) - 1]
            found = [self._live[n] for n in dict.fromkeys([*qualified, *((schema, w) for w in plain)]) if n in self._live]
            self._empty.difference_update(t.table_id for t in found)
            if found and not others:
                return found
            self._empty.clear()
            schemas = {schema, *(first for first, _ in qualified), *(t.schema for t in found)}
            return [t for t in self.list() if t.schema in schemas or not schema]

    def rewind(self, ts: int) -> None:
        """Let the tables live that lived at a ts, where the log is read from next."""
        with self._lock:
            self._live = self._book.living(ts)
            self._untold = dict.fromkeys(self._book.untold(ts) - self._live.keys(), True)
            self._empty.clear()
            self._told_charsets.clear()
            self._foreign.clear()

    def list(self) -> list[TableSchema]:
        """Return the version of every table that lives at the reader's place."""
        with self._lock:
            return [self._live[name] for name in sorted(self._live)]

    def newest(self) -> tuple[TableSchema, ...]:
        """Return the version of every table that lives behind everything that was ever read, wherever the reader is now."""
        with self._lock:
            living = self._book.living(FOREVER)
            return tuple(living[name] for name in sorted(living))

    def history(self, wanted: int) -> tuple[TableSchema, ...]:
        """Return every version of a table, oldest first."""
        with self._lock:
            found = self._book.versions(wanted)
            if not found:
                raise PenstockError("TABLE_UNKNOWN", f"no table has id {wanted}")
            return found

    def live(self, name: TableName) -> TableSchema | None:
        """Return the version of a table at the reader's place; None for one that is not known there."""
        with self._lock:
            return self._live.get(name)

    def charset(self, name: TableName, column: str) -> str:
        """Return the charset that a column has on the server now, empty where it has none; for logs that do not tell it."""
        with self._lock:
            return self._shown.charset(name, column)

    def map_charsets(self, mapped: TableMap) -> tuple[str | None, ...]:
        """Return the charset of each column of a table map, None where it does not tell."""
        with self._lock:
            return self._shown.map_charsets(mapped)

    def collation_charset(self, number: int) -> str:
        """Return the charset of a collation, empty where the server knows none of its number."""
        with self._lock:
            return self._shown.collations().get(number, "")

    def row_end(self, mapped: TableMap) -> str:
        """Return the name of the shown column that ends rows of a system-versioned table, empty for others."""
        with self._lock:
            return self._shown.row_end(mapped)

    def apply(self, statement: Statement, query: str, ts: int, is_newest: IsNewest = lambda: True) -> Told:
        """Make a statement of the log true at its commit ts; the event is None where no known table is concerned.

        ``is_newest`` tells whether the log ends behind the statement: then the server shows the table as the statement left it.
        """
        with self._lock:
            self._is_newest = is_newest
            if self._lower_case:
                statement, query = in_lower_case(statement, query)
            self._foreign.difference_update(statement.tables)
            if statement.type in {DdlType.CREATE_SCHEMA, DdlType.DROP_SCHEMA}:
                gone = [t for n, t in sorted(self._live.items()) if statement.type is DdlType.DROP_SCHEMA and n[0] == statement.schema]
                return self._drop(statement, query, ts, gone, always=True)
            if statement.type is DdlType.DROP_TABLE:
                gone = [self._live[n] for n in dict.fromkeys(statement.tables) if n in self._live]
                return self._drop(statement, query, ts, gone, always=False)
            if statement.type is DdlType.TRUNCATE_TABLE:
                return self._truncate(statement.tables[0], query, ts)
            if statement.type is DdlType.CREATE_TABLE:
                return self._create(statement, query, ts)
            if statement.type in _NAMES_ONLY:
                return self._rename(statement, query, ts)
            return self._change(statement, query, ts)

    def revise(self, mapped: TableMap, ts: int) -> Told:
        """Compare a table map with the version that lives at the reader's place; where it tells another table, that lives from ``ts`` on.

        Nothing changes where the map agrees, or where it does not tell enough; then its rows fit no version.
        """
        name = (mapped.schema, mapped.table)
        with self._lock:
            old = self._live.get(name)
            if old is None:
                return self._found(name, mapped, ts)
            part = self._shown.shown_part(mapped, len(old.columns))
            charsets = self._shown.map_charsets(part)
            was_empty = old.table_id in self._empty
            self._empty.discard(old.table_id)
            if len(old.columns) == len(part.columns) and agrees(old.columns, part, charsets):
                told = {str(c.id): charset for c, charset in zip(old.columns, charsets, strict=True) if charset}
                reasons = converted_reasons(self._told_charsets.get(old.table_id, {}), told)
                self._told_charsets[old.table_id] = told
                return Told(doubts=reasoned_doubts(old, ts, [] if was_empty else reasons))
            return self._corrected(old, part, charsets, ts, was_empty)

    # -- parts; all under the lock

    def _drop(self, statement: Statement, query: str, ts: int, gone: Sequence[TableSchema], always: bool) -> Told:
        ended = tuple(self._book.end(t, ts) for t in gone)
        for table in gone:
            self._live.pop((table.schema, table.table), None)
        self._untold = {
            n: v for n, v in self._untold.items() if n not in statement.tables and (statement.tables or n[0] != statement.schema)
        }
        known = {(t.schema, t.table) for t in gone}
        names = tuple((*n, ts) for n in statement.tables if n not in known) if statement.tables else ((statement.schema, "", ts),)
        if not gone and not always:
            return Told(gone=names)
        return Told(DdlEvent(ts, statement.type, query, statement.schema, (), tuple(t.table_id for t in gone)), ended, gone=names)

    def _truncate(self, name: TableName, query: str, ts: int) -> Told:
        old = self._live.get(name)
        if old is None:
            return Told()
        new_id = table_id(*name, ts)
        new = self._book.known(new_id, ts)
        if new is None:
            shape = self._columns.emptied(old, self._is_newest)
            new = TableSchema(new_id, *name, ts, shape.columns, unique_keys=shape.unique_keys)
        ended = self._book.end(old, ts)
        self._install(new)
        self._empty.add(new_id)
        return Told(DdlEvent(ts, DdlType.TRUNCATE_TABLE, query, old.schema, (new,), (old.table_id,)), (ended,))

    def _create(self, statement: Statement, query: str, ts: int) -> Told:
        name = statement.tables[0]
        old = self._live.get(name)
        upper = [w.upper() for w in tokens(query)]
        # A statement that would have failed is not in the log: without IF NOT EXISTS there was no such table any more.
        if old is not None and not statement.renamed and "EXISTS" in upper[: upper.index("TABLE") + 4]:
            return Told()
        new_id = table_id(*name, ts)
        filled = is_filled(upper[upper.index("TABLE") + 1 :])
        new = self._book.known(new_id, ts)
        if new is None and not self._book.is_untold(new_id):
            like = self._live.get(statement.like) if statement.like is not None else None
            shape = self._columns.first(name, like, statement, query, filled, self._is_newest)
            new = TableSchema(new_id, *name, ts, shape.columns, unique_keys=shape.unique_keys) if shape is not None else None
        ended = (self._book.end(old, ts),) if old is not None else ()
        self._live.pop(name, None)
        self._untold.pop(name, None)
        if new is None:
            event = None if old is None else DdlEvent(ts, DdlType.DROP_TABLE, query, name[0], (), (old.table_id,))
            return Told(event, (*ended, self._untell(name, ts, filled)))
        self._install(new)
        event = DdlEvent(ts, DdlType.CREATE_TABLE, query, name[0], (new,), (old.table_id,) if old is not None else ())
        if not filled:
            self._empty.add(new_id)
        return Told(event, ended, reasoned_doubts(new, ts, ["it was filled by the statement that made it"] if filled else []))

    def _untell(self, name: TableName, ts: int, has_rows: bool) -> TableSchema:
        """Note that a table has a name and nobody tells its columns, so that whoever reads the log again does not find other ones."""
        self._untold[name] = has_rows
        return self._book.end(TableSchema(table_id(*name, ts), *name, ts, ()), ts)

    def _rename(self, statement: Statement, query: str, ts: int) -> Told:
        """Give tables other names, one pair after the other, as the server does."""
        before: dict[int, TableSchema] = {}
        ended: list[TableSchema] = []
        gone: list[GoneName] = []
        for old_name, new_name in statement.renamed:
            table = self._live.pop(old_name, None)
            taken = self._live.pop(new_name, None)
            if taken is not None:
                ended.append(self._book.end(taken, ts))
            rows_untold = self._untold.pop(old_name, None)
            self._untold.pop(new_name, None)
            if table is None:
                gone.append((*old_name, ts))
                ended += [self._untell(new_name, ts, rows_untold)] if rows_untold is not None else []
                continue
            before.setdefault(table.table_id, table)
            self._live[new_name] = msgspec.structs.replace(table, schema=new_name[0], table=new_name[1], version=ts)
        changed, names = [], []
        for number, old in before.items():
            now = next((t for t in self._live.values() if t.table_id == number), None)
            if now is None:
                continue
            if (now.schema, now.table) == (old.schema, old.table):
                self._live[old.schema, old.table] = old
                continue
            self._install(self._book.known(number, ts) or now)
            changed.append(self._live[now.schema, now.table])
            names.append((number, old.schema, old.table))
        if not changed:
            return Told(None, tuple(ended), gone=tuple(gone))
        if any(schema != t.schema for (_, schema, _), t in zip(names, changed, strict=True)):
            # A statement names tables of its own database by half, and whoever reads it later does not know which that was.
            query = compose_rename(statement.renamed)
        dropped = tuple(t.table_id for t in ended)
        return Told(
            DdlEvent(ts, statement.type, query, statement.schema, tuple(changed), dropped, tuple(names)), tuple(ended), gone=tuple(gone)
        )

    def _change(self, statement: Statement, query: str, ts: int) -> Told:
        name = statement.tables[0]
        old = self._live.get(name)
        alteration = read_alteration(query.lower() if self._lower_case else query, statement.schema)
        others = [self._live[n] for n in alteration.others if n in self._live]
        self._empty.difference_update(t.table_id for t in others)
        doubts = tuple(d for t in others for d in reasoned_doubts(t, ts, alteration.reasons or ["its rows were moved"]))
        if old is None:
            return Told(doubts=doubts)
        reasons = list(alteration.reasons)
        before = self._shown.noted_charsets(name)
        shape = self._columns.altered(old, name, statement, query, alteration.changes_columns, self._is_newest)
        reasons += [*shape.reasons, *converted_reasons(before, self._shown.noted_charsets(name))]
        known = self._book.known(old.table_id, ts)
        columns, added = self._columns.with_initials(old, known.columns if known is not None else shape.columns)
        reasons += [*changed_reasons(old.columns, columns), *added]
        is_empty = old.table_id in self._empty
        new = known or TableSchema(old.table_id, *name, ts, columns, unique_keys=shape.unique_keys)
        if self._begins_again(old, new, known, is_empty):
            return self._made_anew(old, new, reasons, doubts)
        self._install(new)
        # To readers of the files an exchange gives both tables again; here what differs is told.
        kind = DdlType.MULTI_SCHEMA_CHANGE if statement.type is DdlType.EXCHANGE_PARTITION else statement.type
        event = DdlEvent(ts, kind, query, statement.schema, (new,))
        return Told(event, (), (*reasoned_doubts(new, ts, [] if is_empty else reasons), *doubts))

    def _begins_again(self, old: TableSchema, new: TableSchema, known: TableSchema | None, is_empty: bool) -> bool:
        """Return whether a change makes a table begin again; what an earlier reading made of it holds, whatever was known then."""
        if known is not None or self._book.known(table_id(old.schema, old.table, new.version), new.version) is not None:
            return known is None
        earlier = [v for v in self._book.versions(old.table_id) if v.version < old.version]
        return not is_empty and is_made_anew(old, new.columns, earlier)

    def _made_anew(self, old: TableSchema, altered: TableSchema, reasons: Sequence[str], doubts: tuple[TableDoubt, ...] = ()) -> Told:
        """Let a table begin again with the columns that a change gave it: it is read again into an empty table."""
        ts = altered.version
        number = table_id(old.schema, old.table, ts)
        fresh = tuple(msgspec.structs.replace(c, initial_default=msgspec.UNSET) for c in altered.columns)
        new = self._book.known(number, ts) or msgspec.structs.replace(altered, table_id=number, columns=fresh)
        ended = self._book.end(old, ts)
        self._install(new)
        event = DdlEvent(ts, DdlType.CREATE_TABLE, compose_replace(new), new.schema, (new,), (old.table_id,))
        return Told(event, (ended,), (*reasoned_doubts(new, ts, reasons, "TABLE_REWRITTEN"), *doubts))

    def _corrected(self, old: TableSchema, mapped: TableMap, charsets: tuple[str | None, ...], ts: int, was_empty: bool) -> Told:
        """Take a table's columns from a map that tells others than the version that lives."""
        known = self._book.known(old.table_id, ts)
        found = known.columns if known is not None else self._columns.mapped(old, mapped, charsets)
        if found is None:
            return Told()
        columns, _ = self._columns.with_initials(old, found)
        new = known or TableSchema(old.table_id, old.schema, old.table, ts, columns, unique_keys=old.unique_keys)
        if self._begins_again(old, new, known, was_empty):
            return self._made_anew(old, new, _OTHER_COLUMNS)
        self._install(new)
        event = DdlEvent(ts, DdlType.MULTI_SCHEMA_CHANGE, compose_alter(old, new), new.schema, (new,))
        return Told(event, (), reasoned_doubts(new, ts, [] if was_empty else _OTHER_COLUMNS))

    def _found(self, name: TableName, mapped: TableMap, ts: int) -> Told:
        """Begin with a table that no statement explained: one whose CREATE was not understood, or that was not seen before."""
        new_id = table_id(*name, ts)
        new = self._book.known(new_id, ts)
        if new is None:
            if name in self._foreign:
                return Told()
            shown = self._shown.read(name)
            if shown is None and name not in self._untold:
                self._foreign.add(name)
                return Told()
            part = self._shown.shown_part(mapped, len(shown.columns) if shown is not None else None)
            problem = mapped.problem or self._shown.problem(name)
            told = None if problem else self._columns.told(part, self._shown.map_charsets(part), shown)
            if told is None:
                self._foreign.add(name)
                code = "TYPE_UNSUPPORTED" if problem else "SCHEMA_UNKNOWN"
                return Told(doubts=(TableDoubt(0, *name, ts, problem or "no version of it is known", code, _UNTOLD_HINT),))
            new = TableSchema(new_id, *name, ts, renumbered(told, {}, 0))
        self._install(new)
        doubted = self._untold.pop(name, True)
        event = DdlEvent(ts, DdlType.CREATE_TABLE, compose_create(new), new.schema, (new,))
        return Told(event, (), reasoned_doubts(new, ts, ["rows of it may be older than the first that the log showed"] if doubted else []))

    def _install(self, version: TableSchema) -> None:
        self._book.add(version)
        self._live[version.schema, version.table] = version
