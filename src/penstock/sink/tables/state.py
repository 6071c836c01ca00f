"""What tables of a database hold, read back for a feed that delivers what differs: all rows of a table, as of one moment.

A table holds the rows of all its dispatchers, so one of them compares it for all. Nothing is told of positions: what an earlier window left
is in the table. Invariant: it is read after the sink has opened the dispatcher, from when on nobody else writes to it. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import polars as pl
import pyarrow as pa

from penstock.format.csv.dialect import row_columns
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.table import OP, TableSchema
from penstock.sink.tables.database import Database
from penstock.sink.tables.reading import ROWS_PER_READ, read_series
from penstock.sink.tables.settings import ExistingRows, TableSinkSettings
from penstock.target.dispatcher import DispatcherId, DispatcherWork


class DatabaseState:
    """Reads tables of one target; implements ``penstock.target.state.TargetState``."""

    def __init__(self, database: Database, settings: TableSinkSettings) -> None:
        self._database, self._settings = database, settings

    def position(self, dispatcher: DispatcherId, table: TableSchema) -> dict[str, int]:
        """Return nothing: a table stands where it stands."""
        return {}

    def columns(self, table: TableSchema) -> TableSchema:
        """Return the table with the columns that rows carry."""
        return msgspec.structs.replace(table, columns=row_columns(table))

    def row_key(self, work: DispatcherWork) -> list[str]:
        """Return the fields of the columns that name a row; empty where equal rows are counted."""
        return [c.field_name for c in work.table.handle_columns]

    def changes(self, work: DispatcherWork) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the table as INSERTs."""
        if self._settings.existing_rows is ExistingRows.KEEP:
            raise PenstockError(
                "SINK_NOT_READABLE",
                f"{work.table.full_name}: existing-rows is keep, so rows that differ may be somebody else's",
                "Set existing-rows to replace where every row of the target's tables is the feed's.",
            )
        table, columns = self._settings.renamed(work.table), row_columns(work.table)
        rows = work.table.row_schema()
        schema = pa.schema([pa.field(OP, pa.uint8(), nullable=False), *(rows.field(c.field_name) for c in columns)])
        session = self._database.connect()
        try:
            for statement in self._database.one_moment:
                session.fetch(statement)
            for values in session.read(table, [self._database.shown_value(c) for c in columns], ROWS_PER_READ):
                found = [read_series(c, one).alias(c.field_name) for c, one in zip(columns, values, strict=True)]
                frame = pl.DataFrame(found).with_columns(pl.lit(int(Op.INSERT), dtype=pl.UInt8).alias(OP))
                yield from frame.select(schema.names).to_arrow().cast(schema).to_batches()
        finally:
            session.close()
