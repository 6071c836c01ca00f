"""What must happen to the store's rows of a table to become the rows that the table has, in bounded memory.

Both states bring the upstream's row keys and are divided over buckets on disk; one bucket at a time is compared in columns. Rows are named
by their row key. Where the table has no key, equal rows are counted, because the same row may have one key in the store and another in
the table; a row that is gone keeps the store's. Invariant: tombstones and rows of one key stand in one step. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa

from penstock.model.batch import KEY, OP, Op
from penstock.model.table import TableSchema
from penstock.readback.net_rows import COUNT, sum_copies
from penstock.readback.state_difference import Buckets, change_batches, compare_rows, surplus


class RowKeyDifference:
    """Compares two states of one table version. Give both, then read the difference once."""

    def __init__(self, table: TableSchema, directory: Path, buckets: int, *, whole: bool = False) -> None:
        """``whole``: a row that is equal on both sides is given too, as an update, because what goes may take it along in the target."""
        self._table = table
        self._whole = whole
        self._columns = table.row_schema().names
        self._names = [KEY, *self._columns]
        self._count = max(1, buckets)
        schema = pa.schema([table.batch_schema().field(name) for name in self._names])
        places = [KEY] if table.key_columns else self._columns
        self._old, self._new = (Buckets(directory, side, schema, places, self._count) for side in ("old", "new"))

    def add_old(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take in the rows that the store has."""
        self._fill(self._old, batches)

    def add_new(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take in the rows that the table has."""
        self._fill(self._new, batches)

    def steps(self, ts: int) -> Iterator[tuple[list[pa.RecordBatch], list[pa.RecordBatch]]]:
        """Yield the difference as tombstones and rows at a ts, each in the order of the row keys and of the table's batch schema."""
        for at in range(self._count):
            old, new = self._old.read(at), self._new.read(at)
            ended, begun = self._by_key(old, new) if self._table.key_columns else self._by_count(old, new)
            if ended.height or begun.height:
                yield [*change_batches(ended.sort(KEY), self._table, ts)], [*change_batches(begun.sort(KEY), self._table, ts)]

    def _fill(self, side: Buckets, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            side.add(batch.select(self._names))
        side.finish()

    def _by_key(self, old: pl.DataFrame, new: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        gone, before, changed, fresh = compare_rows(old, new, [KEY], self._columns, whole=self._whole)
        ended = [self._as_op(gone, Op.DELETE), self._as_op(before, Op.BEFORE)]
        return pl.concat(ended), pl.concat([self._as_op(changed, Op.UPDATE), self._as_op(fresh, Op.INSERT)])

    def _by_count(self, old: pl.DataFrame, new: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        signed = [side.select(*self._columns, pl.lit(sign).alias(COUNT)) for side, sign in ((old, -1), (new, 1))]
        net = sum_copies(pl.concat(signed), self._columns)
        less = net.with_columns(-pl.col(COUNT))
        return self._as_op(surplus(old, less, self._columns), Op.DELETE), self._as_op(surplus(new, net, self._columns), Op.INSERT)

    def _as_op(self, rows: pl.DataFrame, op: Op) -> pl.DataFrame:
        return rows.select(pl.lit(int(op), dtype=pl.UInt8).alias(OP), *self._names)
