"""What one kind of database is to the sinks of tables: how it is entered, what it answers, what its errors mean.

A ``Session`` is one connection with one transaction at a time. ``Transactions`` runs a piece of work as one transaction and again, as a
whole, where that may help: after a deadlock, a lost connection, or a commit whose answer was lost. The work therefore begins by looking
at the target's own progress. Invariant: no statement is repeated by itself. Runs on executors and beside the driver.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import polars as pl

from penstock.model.backoff import Backoff
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.table import Column, TableSchema
from penstock.readback.replay_dialect import Dialect
from penstock.sink.tables.settings import TableSinkSettings

T = TypeVar("T")
Guard = Callable[[], None]
BACKOFF = Backoff(0.05, 5.0)


@dataclass(frozen=True, slots=True)
class TableTraits:
    """What a table of the target has that decides how rows get into it."""

    columns: tuple[str, ...]
    """Empty where there is no such table."""
    unique_sets: tuple[frozenset[str], ...] = ()
    """The columns of its unique keys, the primary one among them."""


class Session(ABC):
    """One connection. Not thread safe. Everything that it raises is a ``PenstockError``."""

    @abstractmethod
    def fetch(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement; return its rows."""

    @abstractmethod
    def load(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Put rows in by the fastest way there is; none of them is there."""

    @abstractmethod
    def upsert(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Put rows in, in place of those with the same key."""

    @abstractmethod
    def insert(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Put rows in whose keys were just removed; what another row still holds of a unique key, that row loses or this fails."""

    @abstractmethod
    def delete(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Remove the rows with these keys."""

    @abstractmethod
    def delete_copies(self, table: TableSchema, rows: pl.DataFrame, counts: pl.Series) -> None:
        """Remove as many rows of each content as counted, if there are so many."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; never raises."""


class Database(ABC):
    """One server as a target. Thread safe."""

    dialect: Dialect
    home: str
    """The schema that the feed's books are in."""
    shown: str
    """Where it is, without how it is entered."""

    @abstractmethod
    def connect(self) -> Session:
        """Return a session whose modes leave every value as it is."""

    @abstractmethod
    def traits(self, session: Session, schema: str, table: str) -> TableTraits:
        """Return what a table has."""

    @abstractmethod
    def alterations(self, before: TableSchema, after: TableSchema, defaults: Mapping[int, Any]) -> list[str]:
        """Return the statements that bring a table, under its own names, from one version to another."""

    @abstractmethod
    def renaming(self, pairs: Sequence[tuple[TableSchema, TableSchema]]) -> list[str]:
        """Return the statements that give tables other names, which may be names of each other."""

    @abstractmethod
    def unfit(self, column: Column, values: pl.Series) -> pl.Series | None:
        """Return which values of a column the database cannot hold, None where it holds any."""

    def column_type(self, column: Column, table: TableSchema) -> str:
        """Return the type of a column of a table that is made."""
        return self.dialect.column_type(column, in_key=column in table.handle_columns)

    def table_options(self) -> str:
        """Return what stands behind the definition of a table."""
        return self.dialect.table_options


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a transaction is tried again."""

    attempts_max: int = 8
    total_s_max: float = 60.0


def patience_of(answer_s_max: float | None) -> Patience:
    """Return the patience of somebody who waits for an answer, or of nobody."""
    return Patience() if answer_s_max is None else Patience(total_s_max=answer_s_max)


class Transactions:
    """Runs transactions over one session, which is opened when it is needed. Not thread safe."""

    def __init__(
        self,
        database: Database,
        guard: Guard | None = None,
        patience: Patience | None = None,
        stop: threading.Event | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.database = database
        self._guard = guard
        self._patience = patience or Patience()
        self._stop = stop or threading.Event()
        self._clock: Clock = clock or SystemClock()
        self._rng = system_random()
        self._session: Session | None = None

    def run(self, work: Callable[[Session], T], *, begin: bool = True) -> T:
        """Do a piece of work as one transaction, or each statement by itself; again, as a whole, where that may help."""
        attempt, until_s = 0, self._clock.monotonic_s() + self._patience.total_s_max
        while True:
            attempt += 1
            try:
                if self._guard is not None:
                    self._guard()
                return self._once(work, begin)
            except PenstockError as error:
                spent = attempt >= self._patience.attempts_max or self._clock.monotonic_s() >= until_s
                if error.kind is not ErrorKind.TRANSIENT or spent or self._stop.is_set() or not error.code.startswith("SINK_"):
                    raise
            if self._clock.wait(self._stop, BACKOFF.pause_s(attempt, self._rng)):
                raise PenstockError("CANCELLED", "the sink is closed")

    def _once(self, work: Callable[[Session], T], begin: bool) -> T:
        if self._session is None:
            self._session = self.database.connect()
        session = self._session
        try:
            if not begin:
                return work(session)
            session.fetch(self.database.dialect.begin)
            result = work(session)
            session.fetch("COMMIT")
        except BaseException:
            # Closing undoes what is not committed; what the server did with a commit that it did not answer, the next try finds.
            self.close()
            raise
        return result

    def close(self) -> None:
        """Close the session, if one is open."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def open_books_name(settings: TableSinkSettings, database: Database) -> tuple[str, str]:
    """Return schema and name of the table that keeps the progress of a feed."""
    return settings.progress_schema or database.home, settings.progress_table
