"""The structure of the target's tables: made where they are missing, and changed as DDLs say.

Structures come from the versions of the model, not from the text of a DDL, so any source's DDL works on any database. What the feed made is
in its books; a table that is in none of them is somebody's, and is used only as the settings allow. Invariants: everything here leaves
the same when it is done again, also where a database commits each DDL and the books were not written any more; a DDL older than what
the books say of a table is done already. Runs on executors and beside the driver.
"""

from __future__ import annotations

import msgspec

from penstock.ddl.statement import dropped_tables
from penstock.format.csv.dialect import row_columns
from penstock.model.ddl import IN_PLACE, DdlEvent, DdlType
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.rows.projection import default_of
from penstock.model.table import TableSchema
from penstock.sink.tables.bending import bent_columns
from penstock.sink.tables.books import Books, MadeTable
from penstock.sink.tables.database import Database, Session, TableTraits
from penstock.sink.tables.settings import ExistingRows, TableSinkSettings

_CREATES = frozenset({DdlType.CREATE_TABLE, DdlType.CREATE_TABLES})
_RENAMES = frozenset({DdlType.RENAME_TABLE, DdlType.RENAME_TABLES})
_PARTITIONS = frozenset(
    {
        DdlType.ADD_PARTITION,
        DdlType.DROP_PARTITION,
        DdlType.TRUNCATE_PARTITION,
        DdlType.REORGANIZE_PARTITION,
        DdlType.EXCHANGE_PARTITION,
    }
)
"""Tables of the target are not divided: rows that go with a partition are told as changes, or as what differs afterwards."""


class Structure:
    """Makes and changes tables of one target. Each call is given a session, in whose transaction a database that can keeps all of it."""

    def __init__(self, database: Database, settings: TableSinkSettings, books: Books) -> None:
        self._database = database
        self._dialect = database.dialect
        self._settings = settings
        self._books = books

    def _name_of(self, schema: str, table: str) -> tuple[str, str]:
        return self._database.stored_name(self._settings.name_of(schema, table))

    def prepare(self, session: Session, table: TableSchema, state_ts: int = 0, *, again: bool = False) -> None:
        """Make sure of an upstream's table; where a first state comes (``state_ts``), of one that has no rows from before it.

        ``again``: all of its rows are compared, so one that was dropped is made, and one that changed unseen gets its columns.
        """
        name = self._name_of(table.schema, table.table)
        if self._books.are(*name) or self._books.are(table.schema, table.table):
            raise PenstockError(
                "SINK_OCCUPIED",
                f"{table.full_name} is where feeds keep books, perhaps this one: source and target may be the same server",
                f"Leave it out of the feed, as by the pattern !{table.schema}.*, and what the feed itself writes.",
            )
        made = self._made(session, table, lock=True)
        if made is not None:
            if again or (state_ts and made.state_ts < state_ts):
                self._renew(session, name, MadeTable(made.table, max(state_ts, made.state_ts)), table, clear=not again)
            return
        present = self._database.traits(session, *name)
        if not present.columns:
            self._create(session, table)
        else:
            self._take_over(session, table, present)
        self._books.note(session, name, MadeTable(table, state_ts))

    def is_made(self, session: Session, table: TableSchema) -> bool:
        """Return whether the books have an upstream's table, so that there is nothing to prepare for changes of it."""
        return self._made(session, table) is not None

    def _made(self, session: Session, table: TableSchema, *, lock: bool = False) -> MadeTable | None:
        """Return what the books have of a table that may have rows here; raise where it may not."""
        if table.partition_id and not self._settings.indexes_transactions:
            raise PenstockError(
                "DDL_UNSUPPORTED",
                f"{table.full_name}: rows move between its partitions, which are apart in this source, and would come in no order",
                "Set atomicity to transaction.",
            )
        name = self._name_of(table.schema, table.table)
        made = self._books.made(session, *name, lock=lock)
        if made is not None:
            self._check_same(name, made, table)
        return made

    def _renew(self, session: Session, name: tuple[str, str], made: MadeTable, table: TableSchema, *, clear: bool) -> None:
        """Have a table of the feed as it is now, whatever became of it while the feed did not look."""
        if not self._database.traits(session, *name).columns:
            self._create(session, table)
            made = MadeTable(table, made.state_ts)
        elif clear:
            self._check_emptied(session, name, "a new first state")
            self._clear(session, table)
        self._books.note(session, name, made)
        self._alter(session, table, table.version)

    def apply(self, session: Session, event: DdlEvent) -> list[str]:
        """Apply a DDL; return what it was about."""
        if self._dialect.is_system(event.schema):
            raise PenstockError("DDL_UNSUPPORTED", f"{event.schema} is a schema of the target's own")
        if event.type is DdlType.CREATE_SCHEMA:
            return self._create_schema(session, event.schema)
        if event.type is DdlType.DROP_SCHEMA:
            return self._drop_schema(session, event)
        if event.type in _RENAMES:
            return self._rename(session, event)
        if not event.tables:
            named = [(schema, table) for _, schema, table in event.old_names] or dropped_tables(event.query, event.schema)
            return [self._drop(session, schema, table, event.commit_ts) for schema, table in named]
        tables = list({(t.schema, t.table): t for t in event.tables}.values())
        for table in tables:
            if event.type in _CREATES or event.type is DdlType.TRUNCATE_TABLE:
                self._begin_empty(session, table, event.commit_ts)
            elif event.type in IN_PLACE or event.type in _PARTITIONS:
                self._alter(session, table, event.commit_ts)
        return [table.full_name for table in tables]

    def _create_schema(self, session: Session, schema: str) -> list[str]:
        if "{schema}" in self._settings.schema_name and "{table}" not in self._settings.schema_name:
            self._make_schema(session, self._settings.name_of(schema, "")[0])
        return [schema]

    def _make_schema(self, session: Session, name: str) -> None:
        known = "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s"
        if self._dialect.is_system(name):
            raise PenstockError("DDL_UNSUPPORTED", f"{name} is a schema of the target's own", "Set schema-name to another one.")
        if not session.fetch(known, (name,)):
            session.fetch(f"CREATE {self._dialect.schema_word} IF NOT EXISTS {self._dialect.identifier(name)}")

    def _check_emptied(self, session: Session, name: tuple[str, str], what: str) -> None:
        """Raise where rows of others may go with those of the feed, which nobody tells apart."""
        keeps = self._settings.existing_rows is ExistingRows.KEEP and bool(self._database.traits(session, *name).columns)
        if keeps and session.fetch(f"SELECT 1 FROM {self._dialect.table(*name)} LIMIT 1"):
            raise PenstockError(
                "SINK_DDL_REFUSED",
                f"{what} would take rows of others from {'.'.join(name)} too: existing-rows is keep",
                "Delete the feed's rows there and resume; or let filter.ddl leave truncate-table and drop-table out.",
            )

    def _drop_schema(self, session: Session, event: DdlEvent) -> list[str]:
        """Drop the feed's tables of a schema, and the schema itself where nothing else is in it."""
        mine = [(s, t, m) for s, t, m in self._books.all_made(session) if m.table.schema == event.schema]
        for schema, table, made in mine:
            if made.table.version <= event.commit_ts:
                self._check_emptied(session, (schema, table), "dropping the schema")
                session.fetch(f"DROP TABLE IF EXISTS {self._dialect.table(schema, table)}")
                self._books.note(session, (schema, table), None)
        for schema in {schema for schema, _, _ in mine} - {self._books.schema}:
            if not session.fetch("SELECT 1 FROM information_schema.tables WHERE table_schema = %s LIMIT 1", (schema,)):
                session.fetch(f"DROP {self._dialect.schema_word} IF EXISTS {self._dialect.identifier(schema)}")
        return [event.schema]

    def _drop(self, session: Session, schema: str, table: str, commit_ts: int) -> str:
        name = self._name_of(schema, table)
        made = self._books.made(session, *name)
        if made is not None and made.table.version <= commit_ts:
            self._check_emptied(session, name, "dropping the table")
            session.fetch(f"DROP TABLE IF EXISTS {self._dialect.table(*name)}")
            self._books.note(session, name, None)
        return f"{schema}.{table}"

    def _begin_empty(self, session: Session, table: TableSchema, commit_ts: int) -> None:
        """Make a table that has no rows: one of the feed under this name is of a life that has ended."""
        name = self._name_of(table.schema, table.table)
        made = self._books.made(session, *name)
        if made is not None and made.table.version >= commit_ts:
            return
        if made is not None:
            self._check_same(name, made, table)
            self._check_emptied(session, name, "beginning it anew")
            session.fetch(f"DROP TABLE IF EXISTS {self._dialect.table(*name)}")
            self._books.note(session, name, None)
        self.prepare(session, table)

    def _alter(self, session: Session, table: TableSchema, commit_ts: int) -> None:
        name = self._name_of(table.schema, table.table)
        made = self._books.made(session, *name)
        if made is None:
            self.prepare(session, table)
            return
        if made.table.version >= commit_ts:
            return
        before, after = self._settings.renamed(made.table), self._settings.renamed(table)
        # Where each DDL is committed, this one may have been done before a stop, and only the books are behind. They say that it was begun,
        # because a column of that name may as well be somebody else's.
        if made.next_version != table.version or not _is_done(before, after, self._database.traits(session, *name)):
            if self._dialect.ddl_commits:
                self._books.note(session, name, MadeTable(made.table, made.state_ts, table.version))
            defaults = {c.id: default_of(c).as_py() for c in after.columns}
            try:
                for statement in self._database.alterations(before, after, defaults):
                    session.fetch(statement)
            except PenstockError as error:
                if self._dialect.ddl_commits and error.kind is not ErrorKind.TRANSIENT:
                    # Refused, and therefore surely not done.
                    self._books.note(session, name, MadeTable(made.table, made.state_ts))
                raise
        self._books.note(session, name, MadeTable(table, made.state_ts))

    def _rename(self, session: Session, event: DdlEvent) -> list[str]:
        old = {table_id: (schema, table) for table_id, schema, table in event.old_names}
        pairs: dict[tuple[str, str], tuple[MadeTable, TableSchema]] = {}
        for table in event.tables:
            before = self._name_of(*old.get(table.table_id, (table.schema, table.table)))
            made = self._books.made(session, *before)
            if made is not None and made.table.version < event.commit_ts:
                pairs[before] = (made, table)
            elif made is None and self._books.made(session, *self._name_of(table.schema, table.table)) is None:
                self.prepare(session, table)
        moved = {name: pair for name, pair in pairs.items() if self._name_of(pair[1].schema, pair[1].table) != name}
        for name, (_, table) in moved.items():
            self._make_schema(session, self._name_of(table.schema, table.table)[0])
            target = self._name_of(table.schema, table.table)
            if target not in moved and self._database.traits(session, *target).columns and self._database.traits(session, *name).columns:
                raise PenstockError("SINK_OCCUPIED", f"{'.'.join(target)} is there, and {'.'.join(name)} is to be renamed to it")
        # Where a DDL is committed by itself, one that was done before a stop is recognised by the old name, which is gone.
        left = [(n, p) for n, p in moved.items() if self._database.traits(session, *n).columns]
        for statement in self._database.renaming(
            [
                (msgspec.structs.replace(made.table, schema=name[0], table=name[1]), self._settings.renamed(table))
                for name, (made, table) in left
            ]
        ):
            session.fetch(statement)
        for name in pairs:
            self._books.note(session, name, None)
        for made, table in pairs.values():
            self._books.note(session, self._name_of(table.schema, table.table), MadeTable(table, made.state_ts))
        return [table.full_name for table in event.tables]

    def _create(self, session: Session, table: TableSchema) -> None:
        renamed = self._settings.renamed(table)
        self._make_schema(session, renamed.schema)
        handle = renamed.handle_columns
        parts = [
            f"{self._dialect.identifier(c.name)} {self._database.column_type(c, renamed)}"
            f"{' NOT NULL' if c in handle else self._dialect.null}"
            for c in row_columns(renamed)
        ]
        if handle:
            parts.append(f"PRIMARY KEY ({', '.join(self._dialect.identifier(c.name) for c in handle)})")
        if self._settings.unique_keys:
            parts += [f"UNIQUE ({names})" for names in unique_names(renamed, self._dialect.identifier)]
        full = self._dialect.table(renamed.schema, renamed.table)
        session.fetch(f"CREATE TABLE IF NOT EXISTS {full} ({', '.join(parts)}){self._database.table_options()}")

    def _take_over(self, session: Session, table: TableSchema, traits: TableTraits) -> None:
        """Use a table that was there before the feed, as far as the settings allow."""
        renamed = self._settings.renamed(table)
        present = {name.lower() for name in traits.columns}
        missing = [c.name for c in row_columns(renamed) if c.name.lower() not in present]
        full = self._dialect.table(renamed.schema, renamed.table)
        if missing:
            raise PenstockError("SINK_OCCUPIED", f"{renamed.full_name} was there before the feed and has no column {', '.join(missing)}")
        if traits.unsafe:
            raise PenstockError("SINK_OCCUPIED", f"{renamed.full_name} was there before the feed, and {traits.unsafe}")
        bent = bent_columns(renamed, traits.shapes, self._database.fractions)
        if bent:
            raise PenstockError(
                "SINK_OCCUPIED",
                f"{renamed.full_name} was there before the feed, and its columns {', '.join(bent)} would change values",
                "Give them a type with as many digits, or let the feed make the table.",
            )
        keeps = self._settings.existing_rows is ExistingRows.KEEP
        if not keeps and (others := self._books.others(session, self._name_of(table.schema, table.table))):
            raise PenstockError(
                "SINK_OCCUPIED",
                f"{renamed.full_name} is a table of another feed, whose books are {others}",
                "Let schema-name or table-name give it another name; or set existing-rows to keep, if no key is in both.",
            )
        if session.fetch(f"SELECT 1 FROM {full} LIMIT 1"):
            if self._settings.existing_rows is ExistingRows.REFUSE:
                raise PenstockError(
                    "SINK_OCCUPIED",
                    f"{renamed.full_name} has rows that are not of this feed",
                    "Empty or rename the table, or set existing-rows to replace or keep.",
                )
            if self._settings.existing_rows is ExistingRows.REPLACE:
                self._clear(session, table)

    def _clear(self, session: Session, table: TableSchema) -> None:
        name = self._name_of(table.schema, table.table)
        session.fetch(f"DELETE FROM {self._dialect.table(*name)}")

    @staticmethod
    def _check_same(name: tuple[str, str], made: MadeTable, table: TableSchema) -> None:
        if (made.table.schema, made.table.table) != (table.schema, table.table):
            raise PenstockError(
                "SINK_OCCUPIED",
                f"{'.'.join(name)} would hold {made.table.full_name} and {table.full_name}",
                "Let schema-name and table-name give each table a name of its own.",
            )


def _is_done(before: TableSchema, after: TableSchema, present: TableTraits) -> bool:
    """Return whether a table shows that it was brought from one version to another; no where both look the same, and again does no harm."""
    old, new = ({c.name.lower() for c in row_columns(version)} for version in (before, after))
    keys = [{c.name.lower() for c in version.handle_columns} for version in (before, after)]
    there = {name.lower() for name in present.columns}
    unique = [{name.lower() for name in names} for names in present.unique_sets]
    if old != new:
        return new - old <= there and not (old - new) & there
    return keys[0] != keys[1] and (keys[1] in unique if keys[1] else keys[0] not in unique)


def unique_names(table: TableSchema, identifier: object) -> list[str]:
    """Return the columns of each unique key besides the one that names rows, as a statement has them."""
    assert callable(identifier)
    known = {c.id: c for c in row_columns(table)}
    handle = {c.id for c in table.handle_columns}
    keys = [key for key in table.unique_keys if key and set(key) != handle and all(i in known for i in key)]
    return [", ".join(identifier(known[i].name) for i in key) for key in keys]
