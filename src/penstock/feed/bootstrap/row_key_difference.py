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

from penstock.model.batch import BATCH_ROWS_MAX, COMMIT_TS, KEY, OP, Op
from penstock.model.table import TableSchema
from penstock.readback.state_difference import Buckets

_OLD = "\0old"
_COUNT = "\0count"


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
                yield self._batches(ended, ts), self._batches(begun, ts)

    def _fill(self, side: Buckets, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            side.add(batch.select(self._names))
        side.finish()

    def _by_key(self, old: pl.DataFrame, new: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        differs = pl.any_horizontal([pl.col(n).ne_missing(pl.col(n + _OLD)) for n in self._columns])
        both = new.join(old, on=KEY, how="inner", suffix=_OLD)
        changed = both if self._whole else both.filter(differs)
        before = changed.select(KEY, *(pl.col(n + _OLD).alias(n) for n in self._columns))
        gone, fresh = old.join(new, on=KEY, how="anti"), new.join(old, on=KEY, how="anti")
        ended = [self._as_op(gone, Op.DELETE), self._as_op(before, Op.BEFORE)]
        return pl.concat(ended), pl.concat([self._as_op(changed, Op.UPDATE), self._as_op(fresh, Op.INSERT)])

    def _by_count(self, old: pl.DataFrame, new: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        signed = [side.select(*self._columns, pl.lit(sign).alias(_COUNT)) for side, sign in ((old, -1), (new, 1))]
        net = pl.concat(signed).group_by(self._columns).agg(pl.col(_COUNT).sum())
        return self._as_op(self._surplus(old, net, -1), Op.DELETE), self._as_op(self._surplus(new, net, 1), Op.INSERT)

    def _surplus(self, rows: pl.DataFrame, net: pl.DataFrame, sign: int) -> pl.DataFrame:
        """Return as many of the copies of each row as one side has more than the other; which of them does not matter."""
        more = net.with_columns(pl.col(_COUNT) * sign).filter(pl.col(_COUNT) > 0)
        number = pl.int_range(pl.len()).over(self._columns)
        return rows.join(more, on=self._columns, how="inner", nulls_equal=True, maintain_order="left").filter(number < pl.col(_COUNT))

    def _as_op(self, rows: pl.DataFrame, op: Op) -> pl.DataFrame:
        return rows.select(pl.lit(int(op), dtype=pl.UInt8).alias(OP), *self._names)

    def _batches(self, rows: pl.DataFrame, ts: int) -> list[pa.RecordBatch]:
        schema = self._table.batch_schema()
        stamped = rows.sort(KEY).with_columns(pl.lit(ts, dtype=pl.UInt64).alias(COMMIT_TS)).select(schema.names)
        pieces = (stamped.slice(at, BATCH_ROWS_MAX) for at in range(0, stamped.height, BATCH_ROWS_MAX))
        return [piece.to_arrow().cast(schema).combine_chunks().to_batches()[0] for piece in pieces]
