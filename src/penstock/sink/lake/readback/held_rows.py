"""The rows that one version of a lake's table holds, as the upstream's table has them.

A merged table gives its rows, a table of changes what happened since it was emptied last. Columns are matched by name, because whoever asks
may number them in another way, and values are those of change batches. Invariants: one data file is in memory at a time; changes of one key
come in order, whatever files they stand in, by way of buckets on disk. Runs wherever a lake is read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.format.csv.dialect import row_columns
from penstock.model.batch import Op
from penstock.model.rows.projection import project
from penstock.model.table import COMMIT_TS, OP, TableSchema
from penstock.readback.lineage import ids_by_name, renumbered
from penstock.readback.state_difference import Buckets, buckets_for
from penstock.sink.lake.columns import LETTERS, OP_COLUMN, TS_COLUMN, LakeShape
from penstock.sink.lake.data_files import LakeFile, read_rows
from penstock.sink.lake.format import TableVersion
from penstock.sink.lake.rewriting import in_columns
from penstock.target.storage import ObjectTarget

_SPREAD = 8
"""How many bytes a byte of Parquet may be in memory, about."""
_TAKES = [int(Op.DELETE), int(Op.BEFORE)]


class HeldRows:
    """Reads one version of one table under the columns that ``wanted`` gives it, without virtual ones."""

    def __init__(self, target: ObjectTarget, shape: LakeShape, version: TableVersion, wanted: TableSchema) -> None:
        assert version.table is not None
        self._target, self._shape, self._version = target, shape, version
        self._before = version.table
        self._wanted = held_columns(wanted)

    def changes(self) -> Iterator[pa.RecordBatch]:
        """Yield ``_op`` and the columns: rows as inserts, or changes in the order of each row."""
        if self._shape.settings.is_merge:
            for file in self._version.files():
                rows = self._rows(file)
                yield from self._shown(rows, pa.repeat(pa.scalar(int(Op.INSERT), pa.uint8()), rows.num_rows))
        else:
            yield from self._ordered()

    def _ordered(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes since the table was emptied last, those of one row in order."""
        files = self._version.files()
        emptied_ts = max((self._emptied_ts(f) for f in files), default=-1)
        own = self._wanted.row_schema()
        schema = pa.schema([pa.field(OP, pa.uint8(), nullable=False), *own, pa.field(COMMIT_TS, pa.int64())])
        names = [c.field_name for c in self._wanted.handle_columns] or own.names
        count = buckets_for(sum(f.nbytes for f in files) * _SPREAD)
        with tempfile.TemporaryDirectory(prefix="penstock-lake-") as folder:
            buckets = Buckets(Path(folder), "changes", schema, names, count)
            for file in files:
                rows = self._rows(file)
                rows = rows.filter(pc.and_(pc.greater(rows.column(TS_COLUMN), emptied_ts), pc.not_equal(rows.column(OP_COLUMN), "T")))
                ops = pc.cast(pc.index_in(rows.column(OP_COLUMN).cast(pa.string()), LETTERS), pa.uint8())
                ts = rows.column(TS_COLUMN).cast(pa.int64()).combine_chunks()
                for batch in self._shown(rows, ops):
                    buckets.add(pa.RecordBatch.from_arrays([*batch.columns, ts], schema=schema))
            buckets.finish()
            for at in range(count):
                # At one ts what ceased stands before what came.
                frame = buckets.read(at).sort(COMMIT_TS, pl.col(OP).is_in(_TAKES).not_(), maintain_order=True)
                yield from frame.drop(COMMIT_TS).to_arrow().cast(pa.schema([schema.field(OP), *own])).to_batches()

    def _emptied_ts(self, file: LakeFile) -> int:
        bounds = file.bounds.get(OP_COLUMN)
        if bounds is not None and bounds.low is not None and bounds.high is not None and not str(bounds.low) <= "T" <= str(bounds.high):
            return -1
        rows = read_rows(self._target, file.path, [OP_COLUMN, TS_COLUMN])
        found = rows.filter(pc.equal(rows.column(OP_COLUMN), "T")).column(TS_COLUMN)
        return int(pc.max(found).as_py()) if len(found) else -1

    def _rows(self, file: LakeFile) -> pa.Table:
        """Return the rows of a file under the table's columns."""
        return in_columns(read_rows(self._target, file.path), self._version.schema, file.partition)

    def _shown(self, rows: pa.Table, ops: pa.Array | pa.ChunkedArray) -> Iterator[pa.RecordBatch]:
        """Yield rows of the lake as the wanted version shows them."""
        if not rows.num_rows:
            return
        source = renumbered(self._before, ids_by_name(self._before, self._wanted))
        records = self._shape.records(self._before, rows).rename_columns([c.field_name for c in row_columns(source)])
        columns = project(records.combine_chunks().to_batches()[0], self._wanted, source)
        schema = pa.schema([pa.field(OP, pa.uint8(), nullable=False), *self._wanted.row_schema()])
        ops = ops.combine_chunks() if isinstance(ops, pa.ChunkedArray) else ops
        yield pa.RecordBatch.from_arrays([ops, *columns], schema=schema)


def held_columns(table: TableSchema) -> TableSchema:
    """Return a table with the columns that a lake holds: all but virtual ones."""
    return msgspec.structs.replace(table, columns=row_columns(table))
