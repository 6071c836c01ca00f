"""What one kind of database is to the sinks of tables: how it is entered, what it answers, what its errors mean.

A ``Session`` is one connection with one transaction at a time. ``Transactions`` runs a piece of work as one transaction and again, as a
whole, where that may help: after a deadlock, a lost connection, or a commit whose answer was lost. The work therefore begins by looking
at the target's own progress. Invariant: no statement is repeated by itself. Runs on executors and beside the driver.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import polars as pl

from penstock.model.backoff import Backoff
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.table import Column, TableSchema
from penstock.readback.replay_dialect import Dialect
from penstock.sink.tables.idle_sessions import IDLE
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
    """The columns of its unique keys, the primary one among them; what no column says (an expression, a prefix) has a name of its own."""
    loose: frozenset[str] = frozenset()
    """The columns in which texts are equal that are not the same."""
    padded: frozenset[str] = frozenset()
    """The columns in which a text is equal to itself with blanks behind it."""
    unsafe: str = ""
    """Why rows of the table do not live and die with the transaction that carries their progress."""
    shapes: tuple[tuple[str, str, int, int, int], ...] = ()
    """Of each column name, type, digits behind the point, those of seconds, and how many characters it holds (0: not told)."""
    filled: frozenset[str] = frozenset()
    """The columns in which NULL becomes something else: the time, or the next number."""
    numbered: frozenset[str] = frozenset()
    """The columns that number rows by themselves where nothing is given for them."""
    acting: str = ""
    """A foreign key of another table that does something to its rows where one of this table is deleted."""


class Session(ABC):
    """One connection. Not thread safe. Everything that it raises is a ``PenstockError``."""

    is_ready = False
    """Whether its target was found to have what everybody relies on (``Transactions``)."""
    first_given_s: float | None = None
    """When its first borrower gave it back (``IdleSessions``)."""

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
    def insert(self, table: TableSchema, rows: pl.DataFrame, *, replacing: bool) -> None:
        """Put rows in whose keys were just removed; what another row still holds of a unique key, that row loses or this fails.

        ``replacing``: no two values of a unique key are equal here that are not upstream, so that row's own change is on its way.
        """

    @abstractmethod
    def delete(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Remove the rows with these keys."""

    @abstractmethod
    def delete_copies(self, table: TableSchema, rows: pl.DataFrame, counts: pl.Series) -> None:
        """Remove as many rows of each content as counted, if there are so many."""

    @abstractmethod
    def read(self, table: TableSchema, values: Sequence[str], rows_max: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the columns of a table's rows, so many rows at a time; ``values`` say how each column is asked for."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; never raises."""


class Database(ABC):
    """One server as a target. Thread safe."""

    dialect: Dialect
    home: str
    """The schema that the feed's books are in."""
    one_moment: Sequence[str]
    """The statements that begin a transaction in which everything is read as of one moment."""
    shown: str
    """Where it is, without how it is entered."""
    fractions: int
    """How many digits of a second a column has that names none."""
    tried: Sequence[str] = ()
    """Statements that must work as well for rows to be written, beside those on tables; they leave nothing."""
    target: Hashable
    """What is the same for two whose sessions are the same."""

    @abstractmethod
    def connect(self) -> Session:
        """Return a session whose modes leave every value as it is."""

    def learn(self, session: Session) -> None:
        """Learn from a session that another one of the same server opened what that told it of the server."""
        del session

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

    @abstractmethod
    def shown_value(self, column: Column) -> str:
        """Return the expression by which a column is read, so that its text is the one of change batches."""

    def column_type(self, column: Column, table: TableSchema) -> str:
        """Return the type of a column of a table that is made."""
        return self.dialect.column_type(column, in_key=column in table.handle_columns)

    def stored_name(self, name: tuple[str, str]) -> tuple[str, str]:
        """Return the schema and name that a table has in the server which was given these."""
        return name

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
    """Runs transactions over one session, which is there when it is needed. Not thread safe.

    It may be one that somebody used before. What fails first over such a one says nothing of the target, and is tried at once over another.
    """

    def __init__(
        self,
        database: Database,
        guard: Guard | None = None,
        patience: Patience | None = None,
        stop: threading.Event | None = None,
        clock: Clock | None = None,
        make_ready: Callable[[Session], None] | None = None,
    ) -> None:
        """``make_ready`` makes sure of what all work relies on, once for a session."""
        self.database = database
        self._make_ready = make_ready
        self._guard = guard
        self._patience = patience or Patience()
        self._stop = stop or threading.Event()
        self._clock: Clock = clock or SystemClock()
        self._rng = system_random()
        self._session: Session | None = None
        # Of the first session only: one that failed is followed by one of our own.
        self._is_lent, self._lends = False, True

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
                was_lent, self._is_lent = self._is_lent, False
                if was_lent and error.code.startswith("SINK_") and not self._stop.is_set():
                    continue
                spent = attempt >= self._patience.attempts_max or self._clock.monotonic_s() >= until_s
                if error.kind is not ErrorKind.TRANSIENT or spent or self._stop.is_set() or not error.code.startswith("SINK_"):
                    raise
            if self._clock.wait(self._stop, BACKOFF.pause_s(attempt, self._rng)):
                raise PenstockError("CANCELLED", "the sink is closed")

    def _once(self, work: Callable[[Session], T], begin: bool) -> T:
        session = self._session = self._session or self._entered()
        try:
            if self._make_ready is not None and not session.is_ready:
                self._make_ready(session)
                session.is_ready = True
            if begin:
                session.fetch(self.database.dialect.begin)
            result = work(session)
            if begin:
                session.fetch("COMMIT")
        except BaseException:
            # Closing undoes what is not committed; what the server did with a commit that it did not answer, the next try finds.
            self._session = None
            session.close()
            raise
        self._is_lent = False
        return result

    def _entered(self) -> Session:
        found = IDLE.take(self.database.target) if self._lends else None
        self._is_lent, self._lends = found is not None, False
        if found is not None:
            self.database.learn(found)
        return found or self.database.connect()

    def close(self) -> None:
        """Let the session go, if there is one: whoever comes next may use it."""
        session, self._session = self._session, None
        if session is not None:
            IDLE.give(self.database.target, session)


def open_books_name(settings: TableSinkSettings, database: Database) -> tuple[str, str]:
    """Return schema and name of the table that keeps the progress of a feed."""
    return settings.progress_schema or database.home, settings.progress_table
