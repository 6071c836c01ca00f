"""The rows of one dispatcher's window on their way into Parquet files.

Rows are gathered and cut where their own sizes say so: changes, and the first state of a table, at ``file-size``; rows to merge at
``merge-size``, and then they are folded. Invariants: cuts depend on rows alone, not on how they were divided into events; at most one cut's
rows are gathered here, and some more are being written. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.jit import I64
from penstock.model.batch import without_before
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.sink.choices import Keyless
from penstock.sink.lake.columns import LakeShape
from penstock.sink.lake.data_files import STAGED_DIR, LakeFile, table_dir, write_file
from penstock.sink.lake.folding import folded
from penstock.sink.lake.message import DispatcherMessage, Segment
from penstock.target.dispatcher import DispatcherWork
from penstock.target.storage import ObjectTarget

Written = Future[tuple[tuple[LakeFile, ...], tuple[str, ...]]]
Submit = Callable[[Callable[[], tuple[tuple[LakeFile, ...], tuple[str, ...]]]], Written]
"""Has something written by another thread; waits where too much is under way already."""


class DispatcherRows:
    """Gathers, cuts and writes. One thread calls it."""

    def __init__(self, work: DispatcherWork, target: ObjectTarget, shape: LakeShape, submit: Submit, seen_ts: int | None = None) -> None:
        """``seen_ts`` is what ``DispatcherMessage`` says of it."""
        self._work = work
        self._target = target
        self._shape = shape
        self._submit = submit
        self._table = work.table
        self._seen_ts = seen_ts
        self._is_state = work.from_ts == TS_ZERO and not work.is_difference
        self._parts: list[pa.RecordBatch] = []
        self._nbytes = 0
        self._cuts = 0
        self._written: list[tuple[TableSchema, Written]] = []

    @property
    def _folds(self) -> bool:
        return self._shape.settings.is_merge and not self._is_state

    def add(self, table: TableSchema, records: pa.RecordBatch) -> None:
        """Take rows in."""
        settings = self._shape.settings
        if settings.is_merge and not table.handle_columns and settings.keyless is Keyless.REFUSE:
            raise PenstockError("SINK_DDL_REFUSED", f"{table.full_name} has no key, and keyless = refuse")
        if table.version != self._table.version:
            self._cut()
            self._table = table
        if not self._folds:
            records = records if settings.old_values else without_before(records)
        if not records.num_rows:
            return
        limit = settings.merge_size if self._folds else settings.file_size
        sizes = np.cumsum(row_bytes(records))
        start = taken = 0
        while self._nbytes + int(sizes[-1]) - taken >= limit:
            end = int(np.searchsorted(sizes, limit - self._nbytes + taken)) + 1
            self._parts.append(records.slice(start, end - start))
            self._cut()
            start, taken = end, int(sizes[end - 1])
            if start == records.num_rows:
                return
        self._parts.append(records.slice(start))
        self._nbytes += int(sizes[-1]) - taken

    def drain(self) -> None:
        """Have everything durable that was taken in."""
        self._cut()
        for _, written in self._written:
            written.result()

    def note_version(self, table: TableSchema) -> None:
        """Take note of a newer version of the table, which may have no rows yet."""
        self._cut()
        self._table = table

    def message(self) -> DispatcherMessage:
        """Return what the maintainer is told, everything durable."""
        self.drain()
        segments = tuple(Segment(table, *written.result()) for table, written in self._written)
        return DispatcherMessage(self._table, self._is_state, segments, self._work.dispatcher.spans, self._seen_ts)

    def _cut(self) -> None:
        if not self._parts:
            return
        rows, table, at = pa.Table.from_batches(self._parts), self._table, self._cuts
        self._parts, self._nbytes, self._cuts = [], 0, self._cuts + 1
        self._written.append((table, self._submit(lambda: self._write(table, rows, at))))

    def _write(self, table: TableSchema, records: pa.Table, at: int) -> tuple[tuple[LakeFile, ...], tuple[str, ...]]:
        codec = self._shape.settings.compression
        name = f"{self._work.to_ts}-{self._work.dispatcher}-{at}"
        path = f"{table_dir(table.schema, table.table)}/{name}"
        if not self._folds:
            return self._files(table, path, self._shape.rows(table, records)), ()
        rows, keys = folded(self._shape, table, records)
        files = self._files(table, path, rows) if rows.num_rows else ()
        staged = (write_file(self._target, f"{STAGED_DIR}/{self._work.to_ts}/{name}", keys, codec).path,) if keys.num_rows else ()
        return files, staged

    def _files(self, table: TableSchema, path: str, rows: pa.Table) -> tuple[LakeFile, ...]:
        codec = self._shape.settings.compression
        return tuple(write_file(self._target, path, own, codec, partition) for partition, own in self._shape.divided(table, rows))


def row_bytes(records: pa.RecordBatch) -> I64:
    """Return about how much memory each row takes; it depends on nothing but the row."""
    sizes = np.zeros(records.num_rows, dtype=np.int64)
    for column in records.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
            sizes += 4
        else:
            sizes += max(1, column.type.bit_width // 8)
    return sizes
