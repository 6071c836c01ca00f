"""Opening the meta database, and its transactions.

Invariants: a write transaction on SQLite takes the write lock at its beginning, so reading and then writing inside it cannot lose to
another process; on MySQL, MariaDB and PostgreSQL the row of the feed is locked by ``FOR UPDATE`` first, and the tables are made under a
lock of the server. A commit survives a crash of the machine (``synchronous=FULL``),
because a recorded window that vanished would be planned again with another end. Statement parameters never reach an error text. Any
number of processes and threads may open the same database. Where it has several addresses, a connection leads to the primary
(``addresses.py``). Runs in the server and wherever a window is planned or committed.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from penstock.files.private_files import create_private
from penstock.meta import addresses, tables
from penstock.meta.transactions import upgrades
from penstock.model.errors import PenstockError
from penstock.settings.masking import mask_uri

EMBEDDED_FILE = "meta.db"
_WRITE = "penstock_write"
_DRIVERS = {"mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql", "postgresql": "postgresql+psycopg"}
"""Which driver serves a URL that names none."""
_ANSWER_S = 30
_IDLE_S = 60
"""A process that stands still in a transaction, or whose machine is gone, keeps its locks for so long: the database ends it then."""
_LOOSENS = frozenset({"ssl_disabled", "ssl_verify_cert", "ssl_verify_identity"})
_SHOWN_HINT = "Add ssl_ca=… to the URL, use an account with mysql_native_password or ed25519, or clear_password=on in your own network."


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

    def __init__(self, url: str, settings: MetaSettings, *, as_found: bool = False) -> None:
        """With ``as_found`` nothing is made or changed, whatever version is there."""
        places = [_checked(place) for place in addresses.parse(url)]
        parsed = places[0]
        self.shown_url = mask_uri(addresses.shown(places))
        self._sqlite = parsed.get_backend_name() == "sqlite"
        self._postgres = parsed.get_backend_name() == "postgresql"
        self._busy_timeout_s = settings.busy_timeout_s
        shows, parsed = _may_show_password(parsed)
        self._shows_password = shows
        self._addresses = addresses.Addresses(places) if len(places) > 1 else None
        if as_found and self._sqlite and not Path(str(parsed.database)).exists():
            raise PenstockError("META_UNAVAILABLE", f"{self.shown_url}: there is no such file")
        if self._sqlite and parsed.database is not None:
            # SQLite gives what it writes beside the file the file's own mode.
            with contextlib.suppress(OSError):
                create_private(Path(parsed.database))
        try:
            self._engine = sa.create_engine(
                parsed,
                connect_args=self._connect_args(settings),
                pool_size=settings.pool_size,
                max_overflow=settings.pool_size,
                # A server may have been started again since a connection was used last; one of several is asked for more.
                pool_pre_ping=not self._sqlite and self._addresses is None,
                hide_parameters=True,
                **({} if self._sqlite or self._postgres else {"isolation_level": "REPEATABLE READ"}),
            )
        except ImportError as error:
            raise PenstockError("MISSING_DEPENDENCY", f"the driver for {self.shown_url} is not installed: {error.name}") from None
        if self._sqlite:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        else:
            sa.event.listen(self._engine, "connect", self._bound_locks)
        if self._addresses is not None:
            sa.event.listen(self._engine, "do_connect", self._enter_one)
            sa.event.listen(self._engine, "checkout", self._check_primary)
        elif parsed.get_driver_name() == "pymysql":
            sa.event.listen(self._engine, "do_connect", self._enter_mysql)
        try:
            if not as_found:
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
        if self._addresses is None:
            with self._transaction(write=True) as connection:
                yield connection
            return
        self._addresses.begin(lambda: self._transaction(write=True))
        with self._transaction(write=True) as connection:
            yield connection
            writes = self._addresses.count(connection)
        self._addresses.acknowledge(writes)

    @property
    def kind(self) -> str:
        """Return what the database is, as SQLAlchemy names it."""
        return self._engine.dialect.name

    def server_now_ms(self, connection: sa.Connection) -> int | None:
        """Return the database server's wall clock; None for SQLite, whose clock is this machine's."""
        if self._sqlite:
            return None
        now = "EXTRACT(EPOCH FROM clock_timestamp())" if self._postgres else "UNIX_TIMESTAMP(SYSDATE(3))"
        return int(connection.execute(sa.text(f"SELECT FLOOR({now} * 1000)")).scalar_one())

    def close(self) -> None:
        """Close the pooled connections."""
        self._engine.dispose()

    def _connect_args(self, settings: MetaSettings) -> dict[str, Any]:
        if self._sqlite:
            return {"timeout": settings.busy_timeout_s, "check_same_thread": False}
        wait_s = max(1, math.ceil(settings.busy_timeout_s))
        if self._postgres:
            # What was sent and is not acknowledged by then is lost, and so is a server that does not answer a probe.
            probes = {"keepalives_idle": wait_s, "keepalives_interval": 5, "keepalives_count": 3}
            # The server is entered as a source is: what proves nothing does not see the password.
            known = {} if self._shows_password else {"require_auth": "!password"}
            return {"connect_timeout": wait_s, "tcp_user_timeout": wait_s * 1000, **probes, **known}
        # Longer than the server itself makes a statement wait for a lock, so that its answer comes first.
        return {"connect_timeout": wait_s, "read_timeout": wait_s + _ANSWER_S, "write_timeout": wait_s + _ANSWER_S}

    def _enter_mysql(self, _dialect: Any, _record: Any, _arguments: Any, settings: dict[str, Any]) -> Any:
        from penstock.access.guarded_mysql import GuardedConnection

        try:
            return GuardedConnection(self._shows_password, **settings)
        except PenstockError as error:
            raise PenstockError("CONFIG_INVALID", f"meta-url: {error.detail}", _SHOWN_HINT) from None

    def _bound_locks(self, connection: Any, _record: Any) -> None:
        """Have the database end a transaction in which nothing more is said; MySQL cannot, and takes MariaDB's part as a comment."""
        maria = f"SET @penstock = 1 /*M!100301 , SESSION idle_transaction_timeout = {_IDLE_S} */"
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute(f"SET idle_in_transaction_session_timeout = {_IDLE_S * 1000}" if self._postgres else maria)
        connection.commit()

    def _enter_one(self, dialect: Any, _record: Any, arguments: Any, settings: dict[str, Any]) -> Any:
        """Connect to the server that takes writes."""

        def open_one(place: sa.URL) -> Any:
            at = settings | {"host": place.host} | ({"port": place.port} if place.port is not None else {})
            if place.get_driver_name() == "pymysql":
                return self._enter_mysql(dialect, None, arguments, at)
            return dialect.connect(*arguments, **at)

        assert self._addresses is not None
        return self._addresses.connect(dialect, open_one)

    def _check_primary(self, dbapi_connection: Any, _record: Any, _proxy: Any) -> None:
        assert self._addresses is not None
        self._addresses.check(self._engine.dialect, dbapi_connection)

    @contextlib.contextmanager
    def _transaction(self, write: bool) -> Iterator[sa.Connection]:
        options: dict[str, Any] = {_WRITE: write}
        if self._postgres:
            # What a write reads behind the row's lock must be what the one before it left; a read sees one state.
            options["isolation_level"] = "READ COMMITTED" if write else "REPEATABLE READ"
        try:
            with self._engine.connect().execution_options(**options) as connection, connection.begin():
                yield connection
        except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.InternalError, sa.exc.TimeoutError) as error:
            raise PenstockError("META_UNAVAILABLE", f"{self.shown_url}: {_cause(error)}") from error
        except sa.exc.DatabaseError as error:
            raise PenstockError("META_INCOMPATIBLE", f"{self.shown_url}: {_cause(error)}") from error

    @contextlib.contextmanager
    def _creation_lock(self) -> Iterator[None]:
        """Hold a lock of the server, so that two processes that open a new database at once do not both create it."""
        if self._sqlite:
            yield
            return
        name = {"name": f"penstock {self._engine.url.database}"[:64]}
        if self._postgres:
            take, give = "SELECT pg_advisory_lock(hashtext(:name))", "SELECT pg_advisory_unlock(hashtext(:name))"
        else:
            take, give = f"SELECT GET_LOCK(:name, {math.ceil(self._busy_timeout_s)})", "SELECT RELEASE_LOCK(:name)"
        with self.read() as connection:
            if connection.execute(sa.text(take), name).scalar() == 0:
                raise PenstockError("META_UNAVAILABLE", f"{self.shown_url}: another process keeps creating the tables")
            try:
                yield
            finally:
                connection.execute(sa.text(give), name)

    def _is_current(self) -> bool:
        """Return whether everything was created, by asking as little as possible: databases are opened for every window."""
        if self._sqlite:
            return False
        with self.read() as connection:
            # All of them: a database of an earlier release may lack a table that was added since.
            if not set(tables.metadata.tables) <= set(sa.inspect(connection).get_table_names()):
                return False
            # This row comes last.
            return connection.execute(sa.select(tables.meta_version.c.version)).scalar() == tables.META_VERSION

    def _create_or_check(self) -> None:
        if self._is_current():
            return
        with self._creation_lock(), self._transaction(write=True) as connection:
            # Inside the write lock, so that two processes that open a new database at once do not both create it.
            tables.metadata.create_all(connection)
            row = connection.execute(sa.select(tables.meta_version.c.version)).first()
            if row is None:
                connection.execute(tables.meta_version.insert().values(id=1, version=tables.META_VERSION, epoch_floor=0))
            elif not upgrades.upgrade(connection, row.version):
                raise PenstockError(
                    "META_INCOMPATIBLE", f"{self.shown_url} has version {row.version}, this Penstock speaks {tables.META_VERSION}"
                )


def _may_show_password(url: sa.URL) -> tuple[bool, sa.URL]:
    """Return whether a certificate says who the server is, or the URL trusts it unknown, and the URL as the driver takes it."""
    query, verify = url.query, url.query.get("sslmode")
    # The driver forgets the authority where it is told how to verify besides.
    known = "ssl_ca" in query and not query.keys() & _LOOSENS
    verified = verify == "verify-full" or (verify == "verify-ca" and "sslrootcert" in query) or known
    return verified or query.get("clear_password") == "on", url.difference_update_query(["clear_password"])


def sqlite_file(url: str) -> Path | None:
    """Return the file of an embedded database, None for any other."""
    parsed = addresses.parse(url)[0]
    if parsed.get_backend_name() != "sqlite" or parsed.database in {None, "", ":memory:"}:
        return None
    return Path(str(parsed.database))


def adopt_command(feed: str, url: str) -> str:
    """Return what an operator types to let the target of a feed count; without the password of the database."""
    file = sqlite_file(url)
    if file is not None and file.name == EMBEDDED_FILE:
        return f"penstock meta adopt {feed} --data-dir {shlex.quote(str(file.parent))}"
    return f"penstock meta adopt {feed} --meta-url {shlex.quote(mask_uri(url))}"


def _checked(parsed: sa.URL) -> sa.URL:
    if parsed.drivername in _DRIVERS:
        parsed = parsed.set(drivername=_DRIVERS[parsed.drivername])
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
        _use_write_ahead_log(cursor)
        cursor.execute("PRAGMA synchronous=FULL")
    finally:
        cursor.close()


def _use_write_ahead_log(cursor: Any) -> None:
    """Switch a new database to its write-ahead log.

    SQLite does not wait where another connection does the same at that moment or holds the write lock: it answers "locked", whatever
    the time limit of the connection is. A write transaction waits as it should, and whoever had it has switched the database.
    """
    while cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute("COMMIT")


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITE) else "BEGIN")
