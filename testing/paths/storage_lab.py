"""A storage target written by hand, row by row and DDL by DDL, for tests of whatever reads one. Runs in tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table import TableSchema
from penstock.readback.reader import StorageReader
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.sink.storage.sink import StorageSink
from penstock.target.settings import from_uri
from penstock.target.storage import ObjectTarget

WINDOW_TICKS = 10**12


class StorageLab:
    """A target and the means to write to it. A row is (commit ts, op, values...); its key is its first value."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        target_uri, self.settings = from_uri(uri)
        self.target = ObjectTarget.open(target_uri)
        self.maintainer = StorageMaintainer(self.target, self.settings)
        self._positions: dict[DispatcherId, dict[str, int]] = {}

    def write(self, table: TableSchema, rows: Sequence[tuple[Any, ...]], dispatcher: DispatcherId | None = None) -> DispatcherResult:
        """Write one window of rows, which are in commit order."""
        chosen = dispatcher or DispatcherId(table.table_id)
        keyed = [(row[0], int(row[1]), repr(row[2]).encode(), *row[2:]) for row in rows]
        schema = table.batch_schema()
        arrays = [pa.array([row[at] for row in keyed], field.type) for at, field in enumerate(schema)]
        records = pa.RecordBatch.from_arrays(arrays, schema=schema)
        sink = StorageSink(self.target, self.settings)
        try:
            first = rows[0][0] - 1 if rows else 0
            sink.open_dispatcher(DispatcherWork(chosen, table, first, first + WINDOW_TICKS, self._positions.get(chosen, {})))
            sink.add_dml_event(DmlEvent(chosen, table, records))
            result = sink.close_dispatcher(chosen)
        finally:
            sink.close()
        self._positions[chosen] = result.position
        return result

    def ddl(
        self,
        ts: int,
        kind: DdlType,
        query: str,
        *tables: TableSchema,
        schema: str = "s",
        old_names: tuple[tuple[int, str, str], ...] = (),
    ) -> None:
        """Write a DDL's schema files."""
        self.maintainer.write_block_event(DdlEvent(ts, kind, query, schema, tables, old_names=old_names))

    def checkpoint(self, ts: int) -> None:
        """Publish a checkpoint."""
        self.maintainer.publish_checkpoint(ts)

    def reader(self) -> StorageReader:
        """Return a fresh view of the target."""
        return StorageReader(self.target, self.settings)
