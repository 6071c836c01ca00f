"""Opening the meta database, and its transactions.

Invariants: a write transaction on SQLite takes the write lock at its beginning, so reading and then writing inside it cannot lose to
another process; elsewhere the row of the feed is locked by ``FOR UPDATE``. A commit survives a crash of the machine (``synchronous=FULL``),
because a recorded window that vanished would be planned again with another end. Statement parameters never reach an error text. Any
number of processes and threads may open the same database. Runs in the server and wherever a window is planned or committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from penstock.meta import tables
from penstock.model.errors import PenstockError

_WRITE = "penstock_write"


@dataclass(frozen=True)
class MetaSettings:
    """How long a transaction waits for another one, and how many connections one process keeps."""

    busy_timeout_s: float = 30.0
    pool_size: int = 4


def sqlite_url(path: Path) -> str:
    """Return the URL of an embedded database in this file."""
    return f"sqlite:///{path.absolute()}"


class MetaEngine:
    """A connection pool with read and write transactions, schema checked."""

    def __init__(self, url: str, settings: MetaSettings) -> None:
        parsed = _parse(url)
        self.shown_url = parsed.render_as_string(hide_password=True)
        self._sqlite = parsed.get_backend_name() == "sqlite"
        connect_args: dict[str, Any] = {"timeout": settings.busy_timeout_s, "check_same_thread": False} if self._sqlite else {}
        try:
            self._engine = sa.create_engine(
                parsed, connect_args=connect_args, pool_size=settings.pool_size, max_overflow=settings.pool_size, hide_parameters=True
            )
        except ImportError as error:
            raise PenstockError("MISSING_DEPENDENCY", f"the driver for {self.shown_url} is not installed: {error.name}") from None
        if self._sqlite:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        try:
            self._create_or_check()
        except BaseException:
            self._engine.dispose()
            raise

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Give a connection whose statements see one state of the database."""
        with self._transaction(write=False) as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Give a connection whose statements take effect together at the end, or not at all."""
        with self._transaction(write=True) as connection:
            yield connection

    def close(self) -> None:
        """Close the pooled connections."""
        self._engine.dispose()

    @contextlib.contextmanager
    def _transaction(self, write: bool) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect().execution_options(**{_WRITE: write}) as connection, connection.begin():
                yield connection
        except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as error:
            raise PenstockError("META_UNAVAILABLE", f"{self.shown_url}: {_cause(error)}") from error
        except sa.exc.DatabaseError as error:
            raise PenstockError("META_INCOMPATIBLE", f"{self.shown_url}: {_cause(error)}") from error

    def _create_or_check(self) -> None:
        with self.write() as connection:
            # Inside the write lock, so that two processes that open a new database at once do not both create it.
            tables.metadata.create_all(connection)
            row = connection.execute(sa.select(tables.meta_version.c.version)).first()
            if row is None:
                connection.execute(tables.meta_version.insert().values(id=1, version=tables.META_VERSION, epoch_floor=0))
            elif row.version != tables.META_VERSION:
                raise PenstockError(
                    "META_INCOMPATIBLE", f"{self.shown_url} has version {row.version}, this Penstock speaks {tables.META_VERSION}"
                )


def _parse(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise PenstockError("CONFIG_INVALID", "meta.url: not a database URL", "Use sqlite:////path/to/meta.db.") from None
    if parsed.get_backend_name() == "sqlite" and parsed.database in {None, "", ":memory:"}:
        raise PenstockError("CONFIG_INVALID", "meta.url: an in-memory database cannot be shared between processes", "Name a file.")
    return parsed


def _cause(error: sa.exc.SQLAlchemyError) -> str:
    """Return the driver's own first line: SQLAlchemy's text adds the statement."""
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _prepare_sqlite(dbapi_connection: Any, _record: object) -> None:
    # The driver's own transaction handling would begin a deferred transaction; _begin_sqlite decides instead.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    try:
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
    finally:
        cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITE) else "BEGIN")
