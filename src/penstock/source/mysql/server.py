"""What we ask a server: its dialect, the end of its log, its clock, its tables.

MariaDB and MySQL answer the same questions in different words; this module knows both. Every question opens a connection of its own, so any
thread may ask. Runs in the log service, the server and on executors.
"""

from __future__ import annotations

import threading

import msgspec

from penstock.access.mysql_server import ServerAddress
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.source.mysql.connection import Session
from penstock.source.mysql.gtid import MariadbGtids, MysqlGtids
from penstock.source.mysql.position import LogPlace
from penstock.source.mysql.tables.columns import ServerTable, read_tables

_BINARY_LOG_STATUS_SINCE = (8, 2)
"""MySQL from here on says BINARY LOG STATUS where it said MASTER STATUS."""
_EARLY_LOOKS_MAX = 20
"""A transaction that does not count as executed after so many looks, half a second apart, is of a log that was reset."""
FIRST_OFFSET = 4
"""Where the first event of a file stands."""
_SEEING = frozenset({"TRIGGER", "EXECUTE"})
"""What a user must have to see triggers and functions."""
_GRANTEE = "CONCAT(QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@', QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))"
_OWN_SCHEMAS = "'mysql', 'sys', 'information_schema', 'performance_schema'"
_LOCK_WAIT_S = 5
_LOCK_TIMED_OUT = "1205"
_WITHOUT_GTIDS_HINT = "GRANT RELOAD ON *.* TO the user; or set gtid_mode=ON and enforce_gtid_consistency=ON, which needs no lock."


class Server:
    """One server, asked over short connections. Safe for many threads."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        with self.session() as session:
            version, case = session.rows("SELECT VERSION(), @@lower_case_table_names")[0]
        self.version = str(version)
        self.mariadb = "mariadb" in self.version.lower()
        self.lower_case = int(case) == 1
        """Whether tables are called in lower case, however a statement writes them."""

    def session(self) -> Session:
        """Return a connection; its caller closes it."""
        return Session(self.address)

    def now_ms(self) -> int:
        """Return the server's clock."""
        with self.session() as session:
            return int(session.rows("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED)")[0][0])

    def log_end(self) -> LogPlace:
        """Return the end of the log."""
        with self.session() as session:
            return self.log_end_in(session)

    def log_end_in(self, session: Session) -> LogPlace:
        """Return the end of the log, asked over a connection that is open."""
        status = session.records(self.status_statement())
        if not status:
            raise PenstockError(
                "UPSTREAM_MISCONFIGURED",
                f"{self.address.shown} writes no binlog",
                "Start the server with log_bin; see `penstock doctor`.",
            )
        file, offset = str(status[0]["file"]), int(status[0]["position"])
        if self.mariadb:
            # The position is that of the whole state of GTIDs; reading it after the file's end only makes it later.
            return LogPlace(file, offset, MariadbGtids.parse(str(session.rows("SELECT @@GLOBAL.gtid_binlog_pos")[0][0] or "")))
        executed = str(status[0].get("executed_gtid_set") or "")
        if self._gtid_mode(session):
            return LogPlace(file, offset, MysqlGtids.parse(executed))
        return LogPlace(file, offset, server=self.identity(session))

    def own(self, place: LogPlace) -> LogPlace:
        """Return a place of file and offset with the name of this server; raise ``LOG_PURGED`` where it is of another one."""
        with self.session() as session:
            name = self.identity(session)
        if place.server not in {"", name}:
            text = f"{self.address.shown} is another server now, and file and offset mean nothing there"
            raise PenstockError("LOG_PURGED", text, "Turn on gtid_mode, so that a server that takes over knows the place.")
        return msgspec.structs.replace(place, server=name)

    def identity(self, session: Session) -> str:
        """Return what tells a server from all others, whatever address it has."""
        return str(session.rows("SELECT @@server_id" if self.mariadb else "SELECT @@server_uuid")[0][0])

    def visible_place(self) -> LogPlace:
        """Return a place of the log at or before which every commit is seen by every query that begins from now on.

        A transaction stands in the log before its rows can be read, so the end of the log is no such place. MySQL without GTIDs tells
        it to nobody but one who holds up all commits for a moment, as a backup does.
        """
        with self.session() as session:
            if not self.mariadb:
                if not self._gtid_mode(session):
                    return self._locked_end(session)
                return LogPlace("", 0, MysqlGtids.parse(str(session.rows("SELECT @@GLOBAL.gtid_executed")[0][0] or "")))
            session.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            found = {str(k).lower(): str(v) for k, v in session.rows("SHOW STATUS LIKE 'binlog\\_snapshot\\_%'")}
            file, offset = found.get("binlog_snapshot_file", ""), int(found.get("binlog_snapshot_position", "0") or 0)
            gtids = session.rows("SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))[0][0]
            return LogPlace(file, offset, MariadbGtids.parse(str(gtids or "")))

    def wait_visible(self, clock: Clock, timeout_s: float = 10.0) -> None:
        """Wait until queries see every commit that is in the log now."""
        end, never = self.log_end(), threading.Event()
        if end.gtids is None:
            raise PenstockError(
                "UPSTREAM_MISCONFIGURED",
                f"{self.address.shown} writes partial row images, and no GTIDs by which to wait for the rest",
                "Run SET GLOBAL binlog_row_image = 'FULL', or turn on gtid_mode.",
            )
        deadline_s = clock.monotonic_s() + timeout_s
        while not self.visible_place().reached(end):
            if clock.monotonic_s() > deadline_s:
                raise PenstockError("UPSTREAM_UNREACHABLE", f"{self.address.shown}: commits of the log do not become visible")
            clock.wait(never, 0.01)

    def _locked_end(self, session: Session) -> LogPlace:
        """Return the end of the log while nothing can be committed; whatever holds the lock up for longer than a few seconds ends it."""
        try:
            session.rows(f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}")
            session.rows("FLUSH TABLES WITH READ LOCK")
            status = session.records(self.status_statement())[0]
            session.rows("UNLOCK TABLES")
            own = self.identity(session)
        except PenstockError as error:
            if _LOCK_TIMED_OUT in error.detail:
                raise PenstockError("UPSTREAM_UNREACHABLE", f"{self.address.shown}: commits could not be held up for a moment") from None
            raise PenstockError(
                error.code, f"a snapshot of MySQL without GTIDs holds up commits for a moment: {error.detail}", _WITHOUT_GTIDS_HINT
            ) from None
        return LogPlace(str(status["file"]), int(status["position"]), server=own)

    def tables(self) -> list[ServerTable]:
        """Return all tables of users."""
        with self.session() as session:
            return read_tables(session)

    def table(self, schema: str, table: str) -> ServerTable | None:
        """Return one table as it is now, None where there is none."""
        with self.session() as session:
            found = read_tables(session, schema, table)
            return found[0] if found else None

    def writes_elsewhere(self) -> bool:
        """Return whether there are triggers or functions, by which a change reaches tables that its text does not name.

        Also where the user may not see them.
        """
        with self.session() as session:
            granted = session.rows(f"SELECT PRIVILEGE_TYPE FROM information_schema.USER_PRIVILEGES WHERE GRANTEE = {_GRANTEE}")
            if not _SEEING.issubset(str(word) for (word,) in granted):
                return True
            triggers = f"information_schema.TRIGGERS WHERE TRIGGER_SCHEMA NOT IN ({_OWN_SCHEMAS})"
            functions = f"information_schema.ROUTINES WHERE ROUTINE_TYPE = 'FUNCTION' AND ROUTINE_SCHEMA NOT IN ({_OWN_SCHEMAS})"
            return any(session.rows(f"SELECT 1 FROM {there} LIMIT 1") for there in (triggers, functions))

    def collations(self) -> dict[int, str]:
        """Return the charset of each collation by its number."""
        with self.session() as session:
            columns = "SELECT ID, CHARACTER_SET_NAME FROM information_schema."
            found = session.rows(f"{columns}COLLATIONS WHERE ID IS NOT NULL AND CHARACTER_SET_NAME IS NOT NULL")
            if self.mariadb:
                # From 10.10 on, collations that serve several charsets have their numbers here.
                known = session.rows("SHOW COLUMNS FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY LIKE 'ID'")
                found += session.rows(f"{columns}COLLATION_CHARACTER_SET_APPLICABILITY") if known else []
            return {int(number): str(charset).lower() for number, charset in found}

    def status_statement(self) -> str:
        """Return the question for the end of the log and its filters."""
        if self.mariadb:
            return "SHOW MASTER STATUS"
        major, minor = (int(n) for n in self.version.split(".")[:2])
        return "SHOW BINARY LOG STATUS" if (major, minor) >= _BINARY_LOG_STATUS_SINCE else "SHOW MASTER STATUS"

    @staticmethod
    def _gtid_mode(session: Session) -> bool:
        return str(session.rows("SELECT @@GLOBAL.gtid_mode")[0][0]).upper() == "ON"


class LogEnd:
    """Tells again and again whether the log ends at a place, over one connection. One thread asks; it closes."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._session: Session | None = None
        self._early = 0
        """How often in a row what was read did not count as executed."""

    def __call__(self, place: LogPlace) -> bool:
        """Return whether everything that the log holds now stands before a place that was read; raise where the log ends before it."""
        end = self._end()
        if end.reached(place):
            self._early = 0
            return place.reached(end)
        # MySQL sends a transaction a moment before it counts as executed, so there the file must tell it as well; that of a file's
        # beginning is the one before, and whole.
        self._early += 1
        is_early = not self._server.mariadb and place.offset > FIRST_OFFSET and self._early <= _EARLY_LOOKS_MAX
        if not is_early or not end.without_gtids().reached(place.without_gtids()):
            # It was reset, and a stream that is open tells nothing of that; whether the place is there is told where it is asked for.
            raise PenstockError("UPSTREAM_UNREACHABLE", f"{self._server.address.shown}: its log ends before what was read of it")
        return False

    def _end(self) -> LogPlace:
        if self._session is not None:
            try:
                return self._server.log_end_in(self._session)
            except PenstockError:
                # The server ends connections that ask too rarely.
                self.close()
        self._session = self._server.session()
        return self._server.log_end_in(self._session)

    def close(self) -> None:
        """Close the connection; may be called twice."""
        if self._session is not None:
            self._session.close()
            self._session = None
