"""A dispatcher's rows, prepared for its files, over the table versions that it comes through.

Invariant: what is held back of a version comes out before the first row of the next one. Not thread safe. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.format.file_rows import FileRows
from penstock.model.table import TableSchema
from penstock.target.settings import StorageSinkSettings


class PreparedRows:
    """Prepares rows; gives them out with their table version."""

    def __init__(self, settings: StorageSinkSettings) -> None:
        self._format = settings.data_format
        self._split = not settings.output_raw_change_event
        self._current: tuple[TableSchema, FileRows] | None = None

    @property
    def holding(self) -> bool:
        """Return whether rows are held back until their transaction is whole."""
        return self._current is not None and self._current[1].holding

    def add(self, table: TableSchema, records: pa.RecordBatch) -> Iterator[tuple[TableSchema, pa.RecordBatch]]:
        """Take rows in; yield those that are ready."""
        if self._current is None or self._current[0].version != table.version:
            yield from self.finish()
            self._current = table, FileRows(table, self._format, split_key_updates=self._split)
        yield table, self._current[1].add(records)

    def finish(self) -> Iterator[tuple[TableSchema, pa.RecordBatch]]:
        """Yield what is held back; never inside a transaction."""
        if self._current is not None and (held := self._current[1].finish()) is not None:
            yield self._current[0], held
