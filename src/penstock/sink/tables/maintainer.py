"""What happens to a target of tables once per feed: checking, claiming, DDLs over several dispatchers, the checkpoint.

Owner, barrier and checkpoint are rows of the progress table, each with the epoch of the run that wrote it last. Invariants: a target's
books belong to at most one feed; a DDL leaves the same however often it is applied; the checkpoint never goes back. Runs beside the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.failpoints import reach
from penstock.sink.contract import DispatcherResult
from penstock.sink.tables.books import BARRIER, CHECKPOINT, OWNER, Books, Progress
from penstock.sink.tables.continuity import foreign, record_end
from penstock.sink.tables.database import Database, Guard, Patience, Session, Transactions
from penstock.sink.tables.settings import TableSinkSettings
from penstock.sink.tables.structure import Structure
from penstock.target.kind import SinkRun

T = TypeVar("T")


class TableMaintainer:
    """Acts once per feed on a target of tables; implements ``penstock.sink.contract.SinkMaintainer``. Not thread safe."""

    def __init__(
        self, database: Database, settings: TableSinkSettings, run: SinkRun, guard: Guard | None = None, patience: Patience | None = None
    ) -> None:
        self._database = database
        self._settings = settings
        self._run_of = run
        self._books = Books(database, settings)
        self._structure = Structure(database, settings, self._books)
        self._guard, self._patience = guard, patience

    def check(self, feed: str) -> None:
        """Raise unless the books are nobody's or this feed's own, and the target takes something."""
        owner = self.owner()
        if owner not in {None, feed}:
            raise PenstockError(
                "SINK_OCCUPIED", f"{self._database.shown}: {self._books.progress_name} belongs to feed {owner!r}", _OWN_BOOKS
            )
        self.probe()

    def claim(self, feed: str) -> None:
        """Write the feed down as the owner; of two that claim at once, one fails."""

        def take(session: Session) -> str:
            row = self._books.lock(session, "", OWNER)
            if not row.note:
                self._books.write(session, "", OWNER, Progress(note=feed))
            return row.note or feed

        owner = self._do(take)
        if owner != feed:
            raise PenstockError(
                "SINK_OCCUPIED", f"{self._database.shown}: {self._books.progress_name} belongs to feed {owner!r}", _OWN_BOOKS
            )

    def owner(self) -> str | None:
        """Return who claimed the books, or None."""

        def read(session: Session) -> str | None:
            row = self._books.read(session, "", OWNER) if self._books.exist(session) else None
            return row.note if row is not None and row.note else None

        return self._do(read, make=False)

    def probe(self) -> None:
        """Raise unless the target takes a row and a table, of which nothing stays."""
        name = self._database.dialect.table(self._books.schema, f"{self._settings.progress_table}_probe")

        def write(session: Session) -> None:
            session.fetch(f"CREATE TABLE IF NOT EXISTS {name} (n BIGINT PRIMARY KEY)")
            session.fetch(f"INSERT INTO {name} VALUES (1)")
            session.fetch(f"DROP TABLE IF EXISTS {name}")
            for statement in self._database.tried:
                session.fetch(statement)

        had = self._do(self._books.exist, make=False)
        self._do(write, begin=False)
        if not had:
            self._do(self._drop_books, make=False)

    def write_block_event(self, event: DdlEvent) -> Sequence[str]:
        """Apply a DDL, while no other run or attempt changes structures."""

        def change(session: Session) -> Sequence[str]:
            row = self._books.lock(session, self._run_of.feed, BARRIER)
            row.within(event.commit_ts, self._run_of.epoch)
            if not self._database.dialect.ddl_commits:
                done = self._structure.apply(session, event)
            else:
                beside = self._database.connect()
                try:
                    done = self._structure.apply(beside, event)
                finally:
                    beside.close()
            written = Progress(max(row.window_ts, event.commit_ts), 0, 0, self._run_of.epoch)
            self._books.write(session, self._run_of.feed, BARRIER, written)
            return done

        reach("schema-file:before")
        done = self._do(change)
        reach("schema-file:after")
        return done

    def record_window(self, from_ts: int, to_ts: int, results: Sequence[DispatcherResult]) -> None:
        """Record that the window is whole: each dispatcher has committed its part, and what went before is still there."""
        problem = self._do(lambda session: record_end(session, self._books, self._run_of, (from_ts, to_ts), results))
        if problem is not None:
            raise problem

    def publish_checkpoint(self, checkpoint_ts: int, not_covered: Mapping[str, str] | None = None) -> None:
        """Publish the checkpoint, and what it does not cover, unless a later one is there."""
        note = msgspec.json.encode(dict(not_covered)).decode() if not_covered else ""

        def publish(session: Session) -> None:
            row = self._books.lock(session, "", CHECKPOINT)
            if row.epoch > self._run_of.epoch:
                raise PenstockError("FENCED", f"a run with epoch {row.epoch} wrote to the target, this one has {self._run_of.epoch}")
            if row.window_ts < checkpoint_ts or (row.window_ts == checkpoint_ts and row.note != note):
                self._books.write(session, "", CHECKPOINT, Progress(checkpoint_ts, epoch=self._run_of.epoch, note=note))

        reach("metadata:before")
        self._do(publish)
        reach("metadata:after")

    def published_ts(self) -> int:
        """Return the checkpoint that is published, 0 where none is; raise where the target is not the feed's any more."""

        def read(session: Session) -> int:
            problem = foreign(session, self._books, self._run_of)
            if problem is not None:
                raise problem
            row = self._books.read(session, "", CHECKPOINT) if self._books.exist(session) else None
            return row.window_ts if row is not None else 0

        return self._do(read, make=False)

    def _do(self, work: Callable[[Session], T], *, make: bool = True, begin: bool = True) -> T:
        """Do something in a transaction, or each statement by itself where the books are not made for it."""
        made = (self._guard, self._books.ensure) if make else (None, None)
        transactions = Transactions(self._database, made[0], self._patience, make_ready=made[1])
        try:
            return transactions.run(work, begin=begin and make)
        finally:
            transactions.close()

    def _drop_books(self, session: Session) -> None:
        session.is_ready = False
        session.fetch(f"DROP TABLE IF EXISTS {self._books.progress_name}, {self._books.tables_name}")


_OWN_BOOKS = "Give each feed a progress-table of its own, or drop the table where its feed is gone."
