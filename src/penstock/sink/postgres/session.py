"""A session of a PostgreSQL server that rows are written over: COPY, into the table or a temporary one, and statements for a few rows.

Modes are set so that every value arrives as it is: UTC, ISO dates, UTF-8, backslashes as they are. Runs on executors and beside the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import polars as pl
import psycopg

from penstock.access.postgres_server import login
from penstock.format.csv.dialect import row_columns
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.readback.replay_dialect import Dialect, shown
from penstock.readback.replay_loading import KEYS_PER_STATEMENT, PostgresLoader, TableNames, statement_parts
from penstock.sink.postgres.errors import failure
from penstock.sink.tables.database import Session

T = TypeVar("T")
_MODES = (
    "SET TIME ZONE 'UTC'",
    "SET DateStyle TO 'ISO, YMD'",
    "SET standard_conforming_strings TO on",
    "SET extra_float_digits TO 3",
    "SET statement_timeout TO 0",
    "SET lock_timeout TO '30s'",
    "SET default_transaction_isolation TO 'read committed'",
    "SET client_min_messages TO 'error'",
    "SET IntervalStyle TO 'postgres'",
    # Rows that a policy hides would be passed over in silence; so it is an error.
    "SET row_security TO off",
)
_FEW_ROWS = 500
"""Up to so many rows a statement is cheaper than a temporary table."""


class PostgresSession(Session):
    """One connection to a server."""

    def __init__(self, uri: str, shown_place: str, dialect: Dialect, *, replication_role: bool) -> None:
        self._uri, self._shown, self._dialect = uri, shown_place, dialect
        # Texts of statements are as large as what they write: none is kept for the case that it comes again.
        settings = {"prepare_threshold": None} | ({} if "connect_timeout" in uri else {"connect_timeout": 10})
        self._connection = self._guarded(lambda: login(uri, **settings))
        self._loader = PostgresLoader(dialect, self._connection, self.fetch)
        try:
            self.fetch("; ".join((*_MODES, *(("SET session_replication_role TO replica",) if replication_role else ()))))
        except BaseException:
            self.close()
            raise

    def fetch(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement; return its rows."""

        def run() -> list[tuple[Any, ...]]:
            cursor = self._connection.execute(sql, tuple(values) or None)
            return cursor.fetchall() if cursor.description is not None else []

        return self._guarded(run)

    def load(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Put rows in by COPY."""
        if rows.height <= _FEW_ROWS:
            names, frame = self._shown_rows(table, rows)
            self._statements(f"INSERT INTO {names.table} ({names.list}) VALUES ", _row_texts(frame), "", frame.height)
        else:
            self._guarded(lambda: self._loader.insert(table, rows))

    def upsert(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Put rows in, in place of those with the same key."""
        if rows.height <= _FEW_ROWS:
            names, frame = self._shown_rows(table, rows)
            self._statements(
                f"INSERT INTO {names.table} ({names.list}) VALUES ", _row_texts(frame), f" {names.on_conflict()}", frame.height
            )
        else:
            self._guarded(lambda: self._loader.upsert(table, rows))

    def insert(self, table: TableSchema, rows: pl.DataFrame, *, replacing: bool) -> None:
        """Put rows in whose keys were just removed; where another row holds a value of a unique key, the statement fails."""
        del replacing
        self.load(table, rows)

    def delete(self, table: TableSchema, rows: pl.DataFrame) -> None:
        """Remove the rows with these keys."""
        if rows.height <= _FEW_ROWS:
            names, frame = TableNames(self._dialect, table), shown(rows, table.handle_columns, self._dialect)
            head = f"DELETE FROM {names.table} WHERE ({', '.join(names.keys)}) IN ("
            self._statements(head, _row_texts(frame), ")", KEYS_PER_STATEMENT)
        else:
            self._guarded(lambda: self._loader.delete(table, rows))

    def delete_copies(self, table: TableSchema, rows: pl.DataFrame, counts: pl.Series) -> None:
        """Remove as many rows of each content as counted, by ``ctid``."""
        self._guarded(lambda: self._loader.delete_copies(table, rows, counts))

    def read(self, table: TableSchema, values: Sequence[str], rows_max: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the columns of a table's rows."""
        sql = f"SELECT {', '.join(values)} FROM {self._dialect.table(table.schema, table.table)}"
        with self._guarded(lambda: self._connection.cursor("penstock_read")) as cursor:
            self._guarded(lambda: cursor.execute(sql))
            while rows := self._guarded(lambda: cursor.fetchmany(rows_max)):
                yield list(zip(*rows, strict=True))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _shown_rows(self, table: TableSchema, rows: pl.DataFrame) -> tuple[TableNames, pl.DataFrame]:
        return TableNames(self._dialect, table), shown(rows, row_columns(table), self._dialect)

    def _statements(self, head: str, rows: pl.Series, ending: str, rows_max: int) -> None:
        for part in statement_parts(rows, rows_max):
            self.fetch(f"{head}{part}{ending}")

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except PenstockError:
            raise
        except (psycopg.Error, OSError) as error:
            raise failure(error, self._uri, self._shown) from None


def _row_texts(frame: pl.DataFrame) -> pl.Series:
    """Return each row as ``(literal, ...)``."""
    parts = pl.concat_str([_literals(frame, name) for name in frame.columns], separator=",")
    return frame.select(pl.concat_str([pl.lit("("), parts, pl.lit(")")])).to_series()


def _literals(frame: pl.DataFrame, name: str) -> pl.Expr:
    """Return a column as literals without a type, which take that of the column that they meet."""
    values, dtype = pl.col(name), frame.schema[name]
    if dtype == pl.Binary:
        text = pl.concat_str([pl.lit("'\\x"), values.bin.encode("hex"), pl.lit("'")])
    elif dtype == pl.String:
        text = pl.concat_str([pl.lit("'"), values.str.replace_all("'", "''", literal=True), pl.lit("'")])
    else:
        text = pl.concat_str([pl.lit("'"), values.cast(pl.String), pl.lit("'")])
    return pl.when(values.is_null()).then(pl.lit("NULL")).otherwise(text)
