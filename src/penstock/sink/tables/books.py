"""The books that a feed keeps in its target: how far each dispatcher is, whose the target is, and which tables the feed made there.

Two tables. Progress has a row for each dispatcher (of each lane of one): the end of the window that it is in, how many rows and DDLs of
that window are applied, and the epoch of the run that wrote last. It changes in the same transaction as the rows. ``_tables`` beside it
has the version of each table that the feed made, so that DDLs are applied to what is there. Invariants: a run with a lower epoch than the
one that wrote last writes nothing; a row that was counted is never applied again. Runs on executors and beside the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.sink.tables.database import Database, Session, open_books_name
from penstock.sink.tables.settings import TableSinkSettings

OWNER, CHECKPOINT, BARRIER, TRANSACTIONS, WINDOW = "owner", "checkpoint", "barrier", "transactions", "window"
"""What stands in the place of a dispatcher in rows that are the feed's as a whole."""
ALL_DONE = 1 << 62
FIRST_TOKEN = 1 << 61
"""From here on, a count of rows is none, but what tells one attempt that compares tables from another."""
_KEY_CHARS = 180
_NAMED_LIKE_BOOKS = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_name LIKE '%_tables'"
_COLUMNS = "('target_schema', 'target_table', 'state_ts', 'made')"


class Progress(msgspec.Struct, frozen=True):
    """How far a dispatcher is: of the window that ends at ``window_ts``, so many rows and DDLs are applied."""

    window_ts: int = 0
    rows: int = 0
    ddls: int = 0
    epoch: int = 0
    note: str = ""

    def within(self, to_ts: int, epoch: int) -> Progress:
        """Return what is applied of the window that ends at ``to_ts``; raise ``FENCED`` where a later run wrote."""
        if self.epoch > epoch:
            raise PenstockError("FENCED", f"a run with epoch {self.epoch} wrote to the target, this one has {epoch}")
        if self.window_ts == to_ts:
            return self
        if self.window_ts > to_ts and self.epoch == epoch:
            # This run went on to later windows, so this one is whole: an attempt that was given up, and lives.
            return Progress(to_ts, ALL_DONE, ALL_DONE, epoch)
        return Progress(to_ts, 0, 0, epoch)


class MadeTable(msgspec.Struct, frozen=True):
    """A table that the feed made, or took over, in the target: the upstream's version of it, and the ts of the state that it began with.

    ``next_version`` is set where the database commits each DDL, from before it is brought to that version until it is known to be there.
    """

    table: TableSchema
    state_ts: int = 0
    next_version: int = 0

    @classmethod
    def of(cls, text: str, state_ts: int) -> MadeTable:
        """Read what ``text`` gives."""
        version, _, table = text.partition("|") if text[:1].isdigit() else ("0", "", text)
        return cls(decoded(table, TableSchema), state_ts, int(version))

    @property
    def text(self) -> str:
        """Return it as it stands in the books."""
        return (f"{self.next_version}|" if self.next_version else "") + self.table.to_json().decode()


class Books:
    """The statements about books. Holds no connection: each call is given the session whose transaction it is part of."""

    def __init__(self, database: Database, settings: TableSinkSettings) -> None:
        self._dialect = database.dialect
        schema, name = open_books_name(settings, database)
        self.schema = schema
        self.progress_name = self._dialect.table(schema, name)
        self.tables_name = self._dialect.table(schema, f"{name}_tables")
        self._place = (schema, name)
        self._options = database.table_options()
        self._others: list[tuple[str, str]] | None = None

    def are(self, schema: str, table: str) -> bool:
        """Return whether a table of this name is one of the books."""
        return schema == self.schema and table in {self._place[1], f"{self._place[1]}_tables"}

    def exist(self, session: Session) -> bool:
        """Return whether there are books, all of them."""
        schema, name = self._place
        return bool(session.fetch(self._dialect.exists, (schema, f"{name}_tables")))

    def ensure(self, session: Session) -> None:
        """Make the books where they are missing; each statement is done at once."""
        if not self.exist(session):
            self.make(session)

    def make(self, session: Session) -> None:
        """Make the books; each statement is done at once."""
        word, text = self._dialect.schema_word, self._dialect.text
        key = (
            f"VARCHAR({_KEY_CHARS})"
            if self._dialect.name == "postgresql"
            else f"VARCHAR({_KEY_CHARS}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        )
        options = self._options
        if not session.fetch(*self._schema_exists()):
            session.fetch(f"CREATE {word} IF NOT EXISTS {self._dialect.identifier(self.schema)}")
        number = "BIGINT NOT NULL"
        session.fetch(
            f"CREATE TABLE IF NOT EXISTS {self.progress_name} (feed {key} NOT NULL, dispatcher {key} NOT NULL, window_ts {number}, "
            f"applied_rows {number}, applied_ddls {number}, epoch {number}, note {text} NOT NULL, PRIMARY KEY (feed, dispatcher)){options}"
        )
        session.fetch(
            f"CREATE TABLE IF NOT EXISTS {self.tables_name} (target_schema {key} NOT NULL, target_table {key} NOT NULL, "
            f"state_ts {number}, made {text} NOT NULL, PRIMARY KEY (target_schema, target_table)){options}"
        )

    def begin(self, session: Session, feed: str, names: Sequence[str]) -> None:
        """Make sure that dispatchers have a row, so that it can be locked."""
        ignore = ("INSERT INTO", " ON CONFLICT DO NOTHING") if self._dialect.name == "postgresql" else ("INSERT IGNORE INTO", "")
        rows = ", ".join(["(%s, %s, 0, 0, 0, 0, '')"] * len(names))
        columns = "feed, dispatcher, window_ts, applied_rows, applied_ddls, epoch, note"
        session.fetch(
            f"{ignore[0]} {self.progress_name} ({columns}) VALUES {rows}{ignore[1]}",
            [value for name in names for value in (feed, name)],
        )

    def read(self, session: Session, feed: str, name: str, *, lock: bool = False) -> Progress | None:
        """Return a row; locked, nobody else gets past it before the transaction ends."""
        ending = " FOR UPDATE" if lock else ""
        found = session.fetch(
            f"SELECT window_ts, applied_rows, applied_ddls, epoch, note FROM {self.progress_name} "
            f"WHERE feed = %s AND dispatcher = %s{ending}",
            (feed, name),
        )
        return Progress(*found[0]) if found else None

    def lock(self, session: Session, feed: str, name: str) -> Progress:
        """Return a row, locked until the transaction ends; one that is missing is made."""
        found = self.read(session, feed, name, lock=True)
        if found is None:
            self.begin(session, feed, [name])
            found = self.read(session, feed, name, lock=True)
        return found or Progress()

    def write(self, session: Session, feed: str, name: str, progress: Progress) -> None:
        """Write a row that is locked."""
        session.fetch(
            f"UPDATE {self.progress_name} SET window_ts = %s, applied_rows = %s, applied_ddls = %s, epoch = %s, note = %s "
            "WHERE feed = %s AND dispatcher = %s",
            (progress.window_ts, progress.rows, progress.ddls, progress.epoch, progress.note, feed, name),
        )

    def end_earlier(self, session: Session, feed: str, to_ts: int) -> None:
        """Make all dispatchers be in the window that ends at a ts, or in a later one: no attempt of an earlier one writes any more."""
        session.fetch(
            f"UPDATE {self.progress_name} SET window_ts = %s, applied_rows = 0, applied_ddls = 0 "
            "WHERE feed = %s AND window_ts < %s AND dispatcher NOT IN (%s, %s)",
            (to_ts, feed, to_ts, BARRIER, WINDOW),
        )

    def within_window(self, session: Session, feed: str, to_ts: int) -> dict[str, Progress]:
        """Return the rows of the dispatchers that are in the window that ends at a ts, or in a later one."""
        found = session.fetch(
            f"SELECT dispatcher, window_ts, applied_rows, applied_ddls, epoch FROM {self.progress_name} "
            "WHERE feed = %s AND window_ts >= %s",
            (feed, to_ts),
        )
        return {str(name): Progress(*rest) for name, *rest in found}

    def was_used(self, session: Session) -> bool:
        """Return whether a window was recorded ever; this stands apart from the progress, so that either tells that the other is gone."""
        return bool(session.fetch(f"SELECT 1 FROM {self.tables_name} WHERE target_schema = '' AND target_table = ''"))

    def note_used(self, session: Session) -> None:
        """Write down that a window was recorded."""
        session.fetch(f"INSERT INTO {self.tables_name} (target_schema, target_table, state_ts, made) VALUES ('', '', 0, '')")

    def made(self, session: Session, schema: str, table: str, *, lock: bool = False) -> MadeTable | None:
        """Return a table that the feed made, by its names in the target."""
        ending = " FOR UPDATE" if lock else ""
        found = session.fetch(
            f"SELECT made, state_ts FROM {self.tables_name} WHERE target_schema = %s AND target_table = %s{ending}", (schema, table)
        )
        return MadeTable.of(str(found[0][0]), int(found[0][1])) if found else None

    def all_made(self, session: Session) -> list[tuple[str, str, MadeTable]]:
        """Return all tables that the feed made, with their names in the target."""
        found = session.fetch(
            f"SELECT target_schema, target_table, made, state_ts FROM {self.tables_name} WHERE target_schema <> '' ORDER BY 1, 2"
        )
        return [(str(s), str(t), MadeTable.of(str(made), int(ts))) for s, t, made, ts in found]

    def others(self, session: Session, name: tuple[str, str]) -> str | None:
        """Return the books of another feed that have a table of the target, if there are some that can be read."""
        if self._others is None:
            # By name first: some servers open every table that they are asked for columns of.
            named = [(str(schema), str(table)) for schema, table in session.fetch(_NAMED_LIKE_BOOKS)]
            own = (self.schema, f"{self._place[1]}_tables")
            self._others = [place for place in named if place != own and self._are_books(session, place)]
        for place in self._others:
            asked = f"SELECT 1 FROM {self._dialect.table(*place)} WHERE target_schema = %s AND target_table = %s"
            if session.fetch(asked, name):
                return ".".join(place)
        return None

    def _are_books(self, session: Session, place: tuple[str, str]) -> bool:
        columns = "SELECT count(*) FROM information_schema.columns WHERE table_schema = %s AND table_name = %s AND column_name IN "
        readable = " AND has_table_privilege(quote_ident(table_schema) || '.' || quote_ident(table_name), 'SELECT')"
        if self._dialect.name != "postgresql":
            readable = " AND privileges LIKE '%%select%%'"
        return bool(session.fetch(columns + _COLUMNS + readable, place)[0][0] == _COLUMNS.count(",") + 1)

    def note(self, session: Session, name: tuple[str, str], made: MadeTable | None) -> None:
        """Write down that the feed made a table, or that it is gone."""
        if made is None:
            session.fetch(f"DELETE FROM {self.tables_name} WHERE target_schema = %s AND target_table = %s", name)
            return
        verb, ending = ("REPLACE", "")
        if self._dialect.name == "postgresql":
            same = "(target_schema, target_table) DO UPDATE SET state_ts = excluded.state_ts, made = excluded.made"
            verb, ending = "INSERT", f" ON CONFLICT {same}"
        session.fetch(
            f"{verb} INTO {self.tables_name} (target_schema, target_table, state_ts, made) VALUES (%s, %s, %s, %s){ending}",
            (*name, made.state_ts, made.text),
        )

    def _schema_exists(self) -> tuple[str, tuple[Any, ...]]:
        return "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (self.schema,)
