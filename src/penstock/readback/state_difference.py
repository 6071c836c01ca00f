"""The difference between two states of a table, in bounded memory: what must happen to the one to become the other.

The old state comes as changes in order, the last of each key counts; the new one as rows. Both are divided by a hash of the row's key over
buckets on disk, and one bucket at a time is compared in columns. Where nothing names a row, equal rows are counted instead. Deletes come
first, then per bucket the before-images and the rows, in the order of the key. Invariant: the same input gives the same rows in the same
order, in any process: the hash depends on nothing but the values. How rows are kept on disk and compared is here for re-reads too
(``row_key_difference``). Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.kernels.hashing import FNV_START, fold_hashes
from penstock.kernels.jit import I64, byte_view
from penstock.model.batch import BATCH_ROWS_MAX, COMMIT_TS, KEY, OP, Op
from penstock.model.table import TableSchema
from penstock.readback.net_rows import COUNT, alive, keyless_updates, last_of_each, net_copies, repeated, sum_copies, unexplained_updates

_OLD = "\0old"
_NULL = "\0"

BUCKET_BYTES = 64 * 1024 * 1024
BUCKETS_MAX = 256


def buckets_for(nbytes: int, bucket_bytes: int = BUCKET_BYTES) -> int:
    """Return into how many buckets states of a size are divided; beyond the most that there are, buckets grow."""
    return min(BUCKETS_MAX, 1 + nbytes // bucket_bytes)


class Buckets:
    """Rows divided by their key over files of a directory. Written first, then read, one bucket at a time."""

    def __init__(self, directory: Path, name: str, schema: pa.Schema, keys: Sequence[str], count: int) -> None:
        self._paths = [directory / f"{name}-{at:04d}.arrow" for at in range(count)]
        self._schema = schema
        self._keys = list(keys)
        self._writers = [pa.ipc.new_file(path.as_posix(), schema) for path in self._paths]

    def add(self, records: pa.RecordBatch) -> None:
        """Add rows, after all that are there."""
        if len(self._writers) == 1:
            self._writers[0].write_batch(records)
            return
        home = bucket_of(pl.DataFrame(records), self._keys, len(self._writers))
        for at in np.unique(home):
            self._writers[int(at)].write_batch(records.filter(pa.array(home == at)))

    def finish(self) -> None:
        """End writing."""
        for writer in self._writers:
            writer.close()

    def read(self, at: int) -> pl.DataFrame:
        """Return the rows of a bucket, in the order in which they were added; its file is removed."""
        with pa.memory_map(self._paths[at].as_posix()) as source:
            frame = pl.DataFrame(pa.ipc.open_file(source).read_all())
        self._paths[at].unlink()
        return frame


class RowSpool:
    """Rows on disk, to be read as often as they are needed: how many buckets a comparison needs is known once all of them are there."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows = 0
        self.nbytes = 0
        self._path = path
        self._writer: pa.ipc.RecordBatchFileWriter | None = pa.ipc.new_file(path.as_posix(), schema)

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Write rows."""
        assert self._writer is not None
        self._writer.write(rows)
        self.rows += rows.num_rows
        self.nbytes += rows.nbytes

    def finish(self) -> None:
        """End writing."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows again."""
        with pa.memory_map(self._path.as_posix()) as source:
            reader = pa.ipc.open_file(source)
            for at in range(reader.num_record_batches):
                yield reader.get_batch(at)


def bucket_of(frame: pl.DataFrame, keys: Sequence[str], count: int) -> I64:
    """Return for each row the bucket of its key."""
    # Something may stand where a NULL is, so it is filled: the hash must not see it.
    columns = frame.select(_text(k, frame.schema[k]).fill_null("").cast(pl.Binary).alias(str(at)) for at, k in enumerate(keys))
    total = np.full(frame.height, FNV_START, dtype=np.uint64)
    for name in columns.columns:
        values = columns[name].to_arrow().cast(pa.large_binary())
        offsets = np.frombuffer(values.buffers()[1], dtype=np.int64)[values.offset : values.offset + len(values) + 1]
        data = byte_view(values.buffers()[2])
        fold_hashes(offsets, data, total)
    return (total % np.uint64(count)).astype(np.int64)


class StateDifference:
    """Compares two states of one table version. Give both, then read the difference once."""

    def __init__(self, table: TableSchema, held: TableSchema, keys: Sequence[str], directory: Path, buckets: int) -> None:
        """``held`` has the columns that the old state has; ``keys`` are the fields that name a row, none where rows are counted."""
        self._table = table
        self._columns = [c.field_name for c in held.columns]
        self._keys = list(keys)
        self._count = max(1, buckets)
        rows = table.row_schema()
        own = [rows.field(name) for name in self._columns]
        places = self._keys or self._columns
        self._old = Buckets(directory, "old", pa.schema([pa.field(OP, pa.uint8(), nullable=False), *own]), places, self._count)
        new = [pa.field(KEY, pa.binary(), nullable=False), *rows]
        self._new = Buckets(directory, "new", pa.schema(new), places, self._count)
        self._directory = directory

    def add_old(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take in the changes that make up the old state, in order; raises where rows are counted and updates show no old values."""
        unexplained = 0
        for batch in batches:
            if not self._keys:
                unexplained += unexplained_updates(pl.DataFrame(batch.select([OP])))
            self._old.add(batch)
        self._old.finish()
        if unexplained:
            raise keyless_updates(self._table)

    def add_new(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take in the rows of the new state: change batches of the table version."""
        names = [KEY, *self._table.row_schema().names]
        for batch in batches:
            self._new.add(batch.select(names))
        self._new.finish()

    def changes(self, ts: int) -> Iterator[pa.RecordBatch]:
        """Yield the difference as change rows at a ts, all of the table's batch schema."""
        later: list[Path] = []
        for at, (gone, rest) in enumerate(self._compared()):
            yield from change_batches(gone, self._table, ts)
            path = self._directory / f"rest-{at:04d}.arrow"
            rest.write_ipc(path)
            later.append(path)
        for path in later:
            yield from change_batches(pl.read_ipc(path), self._table, ts)
            path.unlink()

    def _compared(self) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        for at in range(self._count):
            old, new = self._old.read(at), self._new.read(at)
            yield self._compare(old, new) if self._keys else self._count_rows(old, new)

    def _compare(self, old_changes: pl.DataFrame, new: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return deletes, and then before-images, updates and inserts, of one bucket."""
        old = last_of_each(old_changes, self._keys).filter(alive()).drop(OP)
        gone, before, changed, fresh = (rows.sort(self._keys) for rows in compare_rows(old, new, self._keys, self._columns))
        parts = [self._as_op(before, Op.BEFORE), self._as_op(changed, Op.UPDATE), self._as_op(fresh, Op.INSERT)]
        return self._as_op(self._with_key(gone), Op.DELETE), pl.concat(parts)

    def _count_rows(self, old_changes: pl.DataFrame, new: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return deletes and inserts of one bucket where equal rows are told apart by their number only."""
        held = net_copies(old_changes, self._columns).select(*self._columns, -pl.col(COUNT))
        wanted = new.select(*self._columns, pl.lit(1).alias(COUNT))
        net = sum_copies(pl.concat([held, wanted], how="vertical_relaxed"), self._columns)
        gone = repeated(net.filter(pl.col(COUNT) < 0), self._columns)
        # Of equal rows only columns that the target does not hold may differ.
        return self._as_op(self._with_key(gone), Op.DELETE), self._as_op(surplus(new, net, self._columns), Op.INSERT)

    def _with_key(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Give rows that are gone a key: a target does not hold the upstream's, and nothing pairs with a delete."""
        texts = [_text(name, rows.schema[name]).fill_null(_NULL) for name in self._keys or self._columns]
        return rows.with_columns(pl.concat_str(texts, separator="/").cast(pl.Binary).alias(KEY))

    def _as_op(self, rows: pl.DataFrame, op: Op) -> pl.DataFrame:
        """Return rows with an operation and all columns of the table; those that the target does not hold are NULL in old rows."""
        schema = pl.DataFrame(self._table.row_schema().empty_table()).schema
        columns = [pl.col(n) if n in rows.columns else pl.lit(None, dtype=t).alias(n) for n, t in schema.items()]
        return rows.select(pl.lit(int(op), dtype=pl.UInt8).alias(OP), pl.col(KEY), *columns)


def compare_rows(
    old: pl.DataFrame, new: pl.DataFrame, keys: Sequence[str], columns: Sequence[str], *, whole: bool = False
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return the rows that are gone, those that changed as they were and as they are, and those that are new.

    ``keys`` name a row, ``columns`` are compared. ``whole``: rows that are equal count as changed.
    """
    others = [name for name in columns if name not in keys]
    differs = pl.any_horizontal([pl.col(n).ne_missing(pl.col(n + _OLD)) for n in others]) if others else pl.lit(value=False)
    both = new.join(old, on=keys, how="inner", suffix=_OLD, nulls_equal=True)
    changed = both if whole else both.filter(differs)
    before = changed.select(KEY, *(pl.col(n + _OLD).alias(n) if n in others else pl.col(n) for n in columns))
    gone, fresh = (ours.join(theirs, on=keys, how="anti", nulls_equal=True) for ours, theirs in ((old, new), (new, old)))
    return gone, before, changed, fresh


def surplus(rows: pl.DataFrame, net: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return as many of the copies of each row as ``net`` counts; which of them cannot be told and does not matter."""
    more = net.filter(pl.col(COUNT) > 0)
    number = pl.int_range(pl.len()).over(columns)
    return rows.join(more, on=columns, how="inner", nulls_equal=True, maintain_order="left").filter(number < pl.col(COUNT)).drop(COUNT)


def change_batches(rows: pl.DataFrame, table: TableSchema, ts: int) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches of the table's batch schema, all at one ts."""
    schema = table.batch_schema()
    for start in range(0, rows.height, BATCH_ROWS_MAX):
        piece = rows.slice(start, BATCH_ROWS_MAX).with_columns(pl.lit(ts, dtype=pl.UInt64).alias(COMMIT_TS))
        yield piece.select(schema.names).to_arrow().cast(schema).combine_chunks().to_batches()[0]


def _text(name: str, kind: pl.DataType) -> pl.Expr:
    """Return a column as text; bytes as digits, because they need not be text."""
    return pl.col(name).bin.encode("hex") if kind == pl.Binary else pl.col(name).cast(pl.String)
