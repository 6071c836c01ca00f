"""A storage target that is filled straight from an upstream, window by window, with the real sink: no log service, store or Spark.

What an upstream holds at the end of a window is compared with its start by key, which is slow and obvious. Runs in tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa

from penstock.model.batch import KEY, Op
from penstock.model.ddl import DdlEvent
from penstock.model.span import Span
from penstock.model.table import COMMIT_TS, OP, SchemaHistory, TableSchema
from penstock.sink.catalog import open_maintainer, open_sink
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.source.contract import PastReader
from penstock.target.storage import unfenced


class DeliveredTarget:
    """One folder, one dispatcher per table."""

    def __init__(self, folder: Path, upstream: PastReader, table_ids: Sequence[int], options: dict[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.uri = folder.as_uri()
        self.options = options or {}
        self._upstream = upstream
        self._table_ids = table_ids
        self._positions: dict[int, dict[str, int]] = {}
        self.maintainer = open_maintainer(self.uri, self.options, unfenced)

    def write(self, from_ts: int, to_ts: int, ddl: DdlEvent | None = None) -> None:
        """Write the files of a window, and of the DDL that ended it; the checkpoint stays."""
        sink = open_sink(self.uri, self.options, unfenced)
        try:
            for table_id in self._table_ids:
                table = SchemaHistory(table_id, self._upstream.schema_history(table_id)).at(to_ts if from_ts == 0 else to_ts - 1)
                name = DispatcherId(table_id, 0, 1)
                sink.open_dispatcher(DispatcherWork(name, table, from_ts, to_ts, self._positions.get(table_id, {})))
                records = self._changes(table, from_ts, to_ts)
                if records.num_rows:
                    sink.add_dml_event(DmlEvent(name, table, records))
                self._positions[table_id] = sink.close_dispatcher(name).position
        finally:
            sink.close()
        if ddl is not None:
            self.maintainer.write_block_event(ddl)

    def deliver(self, from_ts: int, to_ts: int, ddl: DdlEvent | None = None) -> None:
        """Write a window and publish its end as the checkpoint."""
        self.write(from_ts, to_ts, ddl)
        self.maintainer.publish_checkpoint(to_ts)

    def _changes(self, table: TableSchema, from_ts: int, to_ts: int) -> pa.RecordBatch:
        after = self._state(table, to_ts)
        before = self._state(table, from_ts) if from_ts else after.clear()
        gone = before.join(after, on=KEY, how="anti")
        deletes = gone.with_columns(pl.lit(to_ts, dtype=pl.UInt64).alias(COMMIT_TS), pl.lit(int(Op.DELETE), dtype=pl.UInt8).alias(OP))
        new = after.filter(pl.col(COMMIT_TS) > from_ts)
        op = pl.when(pl.col(KEY).is_in(before[KEY].implode())).then(int(Op.UPDATE)).otherwise(int(Op.INSERT))
        changes = pl.concat([new.with_columns(op.cast(pl.UInt8).alias(OP)), deletes]).sort(COMMIT_TS, maintain_order=True)
        batches = changes.to_arrow().cast(table.batch_schema()).combine_chunks().to_batches()
        return batches[0] if batches else table.batch_schema().empty_table().to_batches()[0]

    def _state(self, table: TableSchema, ts: int) -> pl.DataFrame:
        columns = table.batch_schema().names
        frames = [pl.DataFrame(table.batch_schema().empty_table())]
        frames += [pl.DataFrame(b.records.select(columns)) for b in self._upstream.read_table(Span(table.table_id), ts)]
        return pl.concat(frames, how="vertical")
