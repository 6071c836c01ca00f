"""A session of a MySQL or MariaDB server that rows are written over: statements of many rows, and LOAD DATA LOCAL from memory.

Modes are set so that every value arrives as it is or the statement fails: strict, UTC, utf8mb4, zeros and odd dates as they are. A server
that asks for a file gets the rows of the statement under way or nothing, whatever file it names. Runs on executors and beside the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import polars as pl
import pymysql
from pymysql.connections import LoadLocalPacketWrapper, MySQLResult
from pymysql.constants import CLIENT
from pymysql.cursors import SSCursor

from penstock.access.guarded_mysql import NONSENSE, GuardedConnection
from penstock.access.mysql_server import ServerAddress, login
from penstock.format.csv.dialect import row_columns
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import BINARY_KINDS, TypeKind
from penstock.readback.replay_dialect import Dialect, shown
from penstock.readback.replay_loading import (
    KEYS_PER_STATEMENT,
    ROWS_PER_CALL,
    STATEMENT_BYTES_MAX,
    TableNames,
    literals,
    row_texts,
    statement_parts,
)
from penstock.sink.mysql.errors import failure
from penstock.sink.tables.database import Session

T = TypeVar("T")
MODES = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
_PACKET_BYTES = 1 << 20
_SPARE_BYTES = 64
_ALL_ROWS = 2**64 - 1
_SAVEPOINT = "penstock_load"
_NO_LOCAL = frozenset({1148, 3948, 3950, 4166})
"""What servers answer that take no LOAD DATA LOCAL."""


class LoadingConnection(GuardedConnection):
    """A connection that answers a server's question for a file with rows in memory."""

    rows: bytes | None = None
    piece_bytes = _PACKET_BYTES

    def _read_query_result(self, unbuffered: bool = False) -> int:
        self._result = None
        result = _LoadingResult(self)
        if unbuffered:
            result.init_unbuffered_query()
        else:
            result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        affected: int = result.affected_rows
        return affected


class _LoadingResult(MySQLResult):  # type: ignore[misc]
    def _read_load_local_packet(self, first_packet: Any) -> None:
        """Send the rows of the statement under way; the name that the server gives does not count."""
        LoadLocalPacketWrapper(first_packet)
        connection = self.connection
        content, connection.rows = memoryview(connection.rows or b""), None
        for start in range(0, len(content), connection.piece_bytes):
            connection.write_packet(bytes(content[start : start + connection.piece_bytes]))
        connection.write_packet(b"")
        ok_packet = connection._read_packet()
        if not ok_packet.is_ok_packet():
            raise pymysql.err.OperationalError(2014, "Commands Out of Sync")
        self._read_ok_packet(ok_packet)


class MySqlSession(Session):
    """One connection to a server."""

    def __init__(self, address: ServerAddress, dialect: Dialect, *, bulk_load: bool, check_foreign_keys: bool) -> None:
        self._address, self._dialect = address, dialect
        self._loads = bulk_load
        checks = int(check_foreign_keys)
        modes = (
            f"SET SESSION time_zone = '+00:00', sql_mode = '{MODES}', foreign_key_checks = {checks}, "
            "tx_isolation = 'READ-COMMITTED', innodb_lock_wait_timeout = 30, lock_wait_timeout = 30, "
            f"sql_safe_updates = 0, sql_select_limit = {_ALL_ROWS}, autocommit = 1, sql_big_selects = 1"
        )
        self._connection = self._guarded(
            lambda: login(address, _ANSWER_S_MAX, LoadingConnection, client_flag=CLIENT.LOCAL_FILES, write_timeout=_ANSWER_S_MAX)
        )
        self.version = str(self._connection.get_server_info())
        if self.is_mariadb:
            modes += ", max_statement_time = 0"
        else:
            modes = modes.replace("tx_isolation", "transaction_isolation")
        self.fetch(modes)
        # What a server takes at once may be less than what is usual.
        self.no_padding: str | None = None
        """The collation in which blanks at the end count, where somebody asked for it."""
        packet, lowers = self.fetch("SELECT @@max_allowed_packet, @@lower_case_table_names")[0]
        self._packet_bytes, self.folds_names = int(packet), int(lowers) != 0
        self._connection.piece_bytes = min(_PACKET_BYTES, self._packet_bytes // 2)

    @property
    def is_mariadb(self) -> bool:
        """Return whether the server is a MariaDB."""
        return "mariadb" in self.version.lower()

    def fetch(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement; return its rows."""

        def run() -> list[tuple[Any, ...]]:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, tuple(values) or None)
                return list(cursor.fetchall())

        return self._guarded(run)

    def load(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Put rows in by LOAD DATA LOCAL, or by statements of many rows where the server does not take it."""
        names, frame = TableNames(self._dialect, table), shown(rows, row_columns(table), self._dialect)
        if not self._loads or frame.height < _LOAD_ROWS_MIN or not self._load_local(names, row_columns(table), frame):
            self._statements(f"INSERT INTO {names.table} ({names.list}) VALUES", row_texts(frame), ROWS_PER_CALL, "")

    def upsert(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Put rows in, in place of those with the same key."""
        names, frame = TableNames(self._dialect, table), shown(rows, row_columns(table), self._dialect)
        others = [c for c in names.columns if c not in names.keys] or names.keys
        ending = " ON DUPLICATE KEY UPDATE " + ", ".join(f"{c} = VALUES({c})" for c in others)
        self._statements(f"INSERT INTO {names.table} ({names.list}) VALUES", row_texts(frame), ROWS_PER_CALL, ending)

    def insert(self, table: TableSchema, rows: pl.DataFrame, *, replacing: bool) -> None:
        """Put rows in; a row that still holds what one of them wants in a unique key goes, or the statement fails."""
        names, frame = TableNames(self._dialect, table), shown(rows, row_columns(table), self._dialect)
        self._statements(
            f"{'REPLACE' if replacing else 'INSERT'} INTO {names.table} ({names.list}) VALUES", row_texts(frame), ROWS_PER_CALL, ""
        )

    def delete(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Remove the rows with these keys."""
        names, frame = TableNames(self._dialect, table), _compared(shown(rows, table.handle_columns, self._dialect), table)
        head = f"DELETE FROM {names.table} WHERE ({', '.join(names.keys)}) IN ("
        self._statements(head, row_texts(frame), KEYS_PER_STATEMENT, ")")

    def delete_copies(self, table: TableSchema, rows: pl.DataFrame, counts: pl.Series) -> None:
        """Remove as many rows of each content as counted: one statement each, for there is no other way to say it."""
        names, frame = TableNames(self._dialect, table), _compared(shown(rows, row_columns(table), self._dialect), table)
        same = [
            pl.concat_str([pl.lit(f"{name} <=> "), literals(frame, one)]) for name, one in zip(names.columns, frame.columns, strict=True)
        ]
        conditions = frame.select(pl.concat_str(same, separator=" AND ")).to_series()
        for condition, count in zip(conditions, counts, strict=True):
            self._query(f"DELETE FROM {names.table} WHERE {condition} LIMIT {count}")

    def read(self, table: TableSchema, values: Sequence[str], rows_max: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the columns of a table's rows."""
        sql = f"SELECT {', '.join(values)} FROM {self._dialect.table(table.schema, table.table)}"
        cursor = self._guarded(lambda: self._connection.cursor(SSCursor))
        try:
            self._guarded(lambda: cursor.execute(sql))
            while rows := self._guarded(lambda: cursor.fetchmany(rows_max)):
                yield list(zip(*rows, strict=True))
        finally:
            self._guarded(cursor.close)

    def close(self) -> None:
        """Close the connection."""
        self._connection._force_close()

    def _statements(self, head: str, rows: pl.Series, rows_max: int, ending: str) -> None:
        bytes_max = min(STATEMENT_BYTES_MAX, self._packet_bytes - len(head.encode()) - len(ending.encode()) - rows_max - _SPARE_BYTES)
        for part in statement_parts(rows, rows_max, max(1, bytes_max)):
            sql = f"{head} {part}{ending}".encode()
            if len(sql) >= self._packet_bytes:
                raise PenstockError(
                    "SINK_VALUE_REFUSED",
                    f"{self._address.shown}: a row takes {len(sql):,} bytes, and max_allowed_packet is {self._packet_bytes:,}",
                    "Raise max_allowed_packet of the server.",
                )
            self._query(sql)

    def _query(self, sql: str | bytes) -> int:
        return self._guarded(lambda: int(self._connection.query(sql)))

    def _load_local(self, names: TableNames, columns: Sequence[Column], frame: pl.DataFrame) -> bool:
        """Put rows in by LOAD DATA LOCAL; return False where the server does not take it, or would bend a value: nothing is left then."""
        self._query(f"SAVEPOINT {_SAVEPOINT}")
        places = [_loaded(c, name, at) for at, (c, name) in enumerate(zip(columns, names.columns, strict=True))]
        setters = ", ".join(setter for _, setter in places if setter)
        sql = (
            f"LOAD DATA LOCAL INFILE 'rows' INTO TABLE {names.table} CHARACTER SET utf8mb4 FIELDS TERMINATED BY ',' "
            f"OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' LINES TERMINATED BY '\\n' ({', '.join(place for place, _ in places)})"
            + (f" SET {setters}" if setters else "")
        )
        texts = frame.select(_field(name, dtype) for name, dtype in frame.schema.items())
        self._connection.rows = texts.write_csv(include_header=False, null_value="NULL", quote_style="non_numeric").encode()
        try:
            self._connection.query(sql)
        except pymysql.Error as error:
            if error.args and error.args[0] in _NO_LOCAL:
                self._loads = False
                return False
            raise failure(error, self._address) from None
        except (OSError, *NONSENSE) as error:
            raise failure(error, self._address) from None
        finally:
            self._connection.rows = None
        result: Any = self._connection._result
        # What LOCAL would have bent or left out, it only warns of: a statement says exactly what was wrong.
        if result.warning_count or result.affected_rows != frame.height:
            self._query(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            return False
        return True

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except PenstockError as error:
            if error.code in {"UPSTREAM_UNREACHABLE", "DECODE_FAILED"}:
                raise PenstockError("SINK_UNAVAILABLE", error.detail) from None
            if error.code == "UPSTREAM_REFUSED":
                raise PenstockError("SINK_UNWRITABLE", error.detail, error.hint) from None
            raise
        except (pymysql.Error, OSError, *NONSENSE) as error:
            raise failure(error, self._address) from None


_ANSWER_S_MAX = 600.0
_LOAD_ROWS_MIN = 200


def _field(name: str, dtype: pl.DataType) -> pl.Expr:
    """Return a column as fields of a line have it: bytes in hexadecimal digits, and every FLOAT by all digits of its double."""
    values = pl.col(name)
    return values.bin.encode("hex") if dtype == pl.Binary else values.cast(pl.Float64) if dtype == pl.Float32 else values


def _loaded(column: Column, name: str, at: int) -> tuple[str, str]:
    """Return where a field of a line goes, and what is set from it where it is not the value itself."""
    if column.type.kind in BINARY_KINDS:
        return f"@p{at}", f"{name} = UNHEX(@p{at})"
    if column.type.kind is TypeKind.BIT:
        return f"@p{at}", f"{name} = CAST(@p{at} AS UNSIGNED)"
    return name, ""


def _compared(frame: pl.DataFrame, table: TableSchema) -> pl.DataFrame:
    """Return values as they are compared with what the server stores, which is not always what it was given.

    A FLOAT is a double there, and 0.1 is another one; CHAR has no blanks at its end, BINARY has zeros up to its length.
    """
    kinds = {c.field_name: c.type for c in table.columns}
    changed = []
    for name, dtype in frame.schema.items():
        kind, values = kinds[name], pl.col(name)
        if dtype == pl.Float32:
            changed.append(values.cast(pl.Float64))
        elif kind.kind is TypeKind.CHAR:
            changed.append(values.str.strip_chars_end(" "))
        elif kind.kind is TypeKind.BINARY:
            changed.append(values.bin.encode("hex").str.pad_end(2 * (kind.length or 1), "0").str.decode("hex"))
    return frame.with_columns(changed)
