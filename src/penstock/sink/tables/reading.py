"""Tables of a database target, read back for verification: rows and the feed's own books, as of one moment. Runs in the server.

Invariant: a table is told to stand at the checkpoint only where no dispatcher of it has begun a later window at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import polars as pl

from penstock.format.csv.dialect import row_columns
from penstock.model.errors import PenstockError
from penstock.model.rows.elements import ELEMENT_KINDS, element_values
from penstock.model.table import Column, TableSchema
from penstock.readback.replay import polars_type
from penstock.sink.tables.books import CHECKPOINT, TRANSACTIONS, Books
from penstock.sink.tables.database import Database, Session
from penstock.sink.tables.settings import TableSinkSettings
from penstock.target.tables import StandingTable, canonical

ROWS_PER_READ = 10_000


class DatabaseTables:
    """Reads tables of one target; implements ``penstock.target.tables.TargetTables``."""

    def __init__(self, database: Database, settings: TableSinkSettings) -> None:
        self._database, self._settings = database, settings
        self._books = Books(database, settings)
        self._session: Session | None = None

    def checkpoint_ts(self) -> int | None:
        """Return the published checkpoint, or None."""
        session = self._open()
        row = self._books.read(session, "", CHECKPOINT) if self._books.exist(session) else None
        return None if row is None else row.window_ts

    @contextmanager
    def read(self, partitions: Sequence[TableSchema]) -> Iterator[StandingTable]:
        """Read a table in one transaction, which sees one moment."""
        session, table = self._open(), self._settings.renamed(partitions[0])
        for statement in self._database.one_moment:
            session.fetch(statement)
        try:
            present = {name.lower() for name in self._database.traits(session, table.schema, table.table).columns}
            missing = [c.name for c in row_columns(table) if c.name.lower() not in present]
            if missing:
                raise PenstockError("TABLE_UNKNOWN", f"{table.full_name} of the target lacks {', '.join(missing)}")
            yield StandingTable(self._standing_ts(session, partitions), self._rows(session, table))
        finally:
            session.fetch("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.close()

    def _open(self) -> Session:
        if self._session is None:
            self._session = self._database.connect()
        return self._session

    def _standing_ts(self, session: Session, partitions: Sequence[TableSchema]) -> int | None:
        found = session.fetch(f"SELECT dispatcher, window_ts FROM {self._books.progress_name}")
        ids = {str(table.table_id) for table in partitions}
        checkpoint_ts = max((ts for name, ts in found if name == CHECKPOINT), default=0)
        own = [ts for name, ts in found if name == TRANSACTIONS or ("-" in name and name.partition("-")[0] in ids)]
        return checkpoint_ts if max(own, default=0) <= checkpoint_ts else None

    def _rows(self, session: Session, table: TableSchema) -> Iterator[pl.DataFrame]:
        columns = row_columns(table)
        for values in session.read(table, [self._database.shown_value(c) for c in columns], ROWS_PER_READ):
            found = zip(columns, values, strict=True)
            yield pl.DataFrame([canonical(c.type, read_series(c, one)).alias(c.field_name) for c, one in found])


def read_series(column: Column, values: Sequence[object]) -> pl.Series:
    """Return the answers of a driver as a column has its values in change batches."""
    wanted = polars_type(column)
    if column.type.kind in ELEMENT_KINDS:
        texts = pl.Series(values, dtype=pl.String)
        series = element_values(column, texts)
    elif wanted == pl.Binary:
        series = pl.Series(values, dtype=pl.Binary)
    else:
        series = pl.Series([None if v is None else str(v) for v in values], dtype=pl.String)
    return series.cast(wanted)
