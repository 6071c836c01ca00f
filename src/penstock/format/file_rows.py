"""From a dispatcher's change rows to the rows that its files take in.

Owns the order of what is done to rows before they are encoded: updates of unique keys are taken apart, the rest of the updates are
joined with their old values where the protocol wants that, and what files do not hold is left out. Invariants: rows that come out depend on
rows, table and format alone, not on how rows were divided into events; what is held back of a table version comes out before the first row
of the next one. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.format.key_updates import KeyUpdates
from penstock.format.old_values import UpdatePairs
from penstock.format.protocols import DataFormat
from penstock.model.table import TableSchema


class FileRows:
    """Prepares the rows of one dispatcher and one table version. Not thread safe."""

    def __init__(self, table: TableSchema, data_format: DataFormat, *, split_key_updates: bool = True) -> None:
        self._schema = data_format.row_schema(table)
        self._keys = KeyUpdates(table) if split_key_updates and KeyUpdates.concern(table) else None
        self._pairs = UpdatePairs(table) if data_format.pairs_updates else None

    @property
    def holding(self) -> bool:
        """Return whether rows are held back until their transaction is whole."""
        return self._keys is not None and self._keys.holding

    def add(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Take rows in; return those that are ready, in order, under the schema that files take."""
        return self._shaped(records if self._keys is None else self._keys.add(records))

    def finish(self) -> pa.RecordBatch | None:
        """Return what was held back, or None; called where the dispatcher is drained, which is never inside a transaction."""
        held = None if self._keys is None else self._keys.finish()
        return None if held is None else self._shaped(held)

    def _shaped(self, records: pa.RecordBatch) -> pa.RecordBatch:
        if self._pairs is not None:
            return self._pairs.add(records)
        return pa.RecordBatch.from_arrays([records.column(name) for name in self._schema.names], schema=self._schema)


class ReadyRows:
    """Rows that come as files take them: what ``PreparedRows`` gives out is what it was given."""

    holding = False

    def add(self, table: TableSchema, records: pa.RecordBatch) -> Iterator[tuple[TableSchema, pa.RecordBatch]]:
        """Yield the rows."""
        yield table, records

    def finish(self) -> Iterator[tuple[TableSchema, pa.RecordBatch]]:
        """Yield nothing: nothing is held back."""
        yield from ()


class PreparedRows:
    """Prepares the rows of one dispatcher over the table versions that it comes through; gives them out with theirs. Not thread safe."""

    def __init__(self, data_format: DataFormat, *, split_key_updates: bool) -> None:
        self._format = data_format
        self._split = split_key_updates
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
