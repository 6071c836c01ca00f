"""Change batches, the unit that moves.

A change batch is an Arrow record batch of one table version and one span: ``_ts`` (commit ts), ``_op``, ``_key``, then the table's columns
as ``c<column id>``. DATA batches hold rows that came to be (inserts and after-images), TOMBSTONE batches hold rows that ceased
(deletes and before-images): an update is one of each at one commit ts, so a store of both is a versioned table.
Rows inside a batch are ordered by (``_ts``, ``_key``). Batches are immutable. Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

import msgspec
import numpy as np
import pyarrow as pa

from penstock.kernels.jit import U8, U64
from penstock.model.errors import InvariantError
from penstock.model.table import COMMIT_TS, KEY, OP, TableSchema

BATCH_ROWS_MIN = 8_192
BATCH_ROWS_MAX = 16_384


class BatchKind(IntEnum):
    """Which side of the versioned table a batch belongs to."""

    DATA = 0
    TOMBSTONE = 1


class Op(IntEnum):
    """The ``_op`` column. INSERT and UPDATE stand in data, DELETE and BEFORE (the before-image of an UPDATE) in tombstones."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    BEFORE = 3


class BatchHeader(msgspec.Struct, frozen=True):
    """What one must know of a batch without opening it."""

    span_id: int
    table_id: int
    schema_version: int
    kind: BatchKind
    min_ts: int
    max_ts: int
    rows: int
    nbytes: int


class ChangeBatch(msgspec.Struct, frozen=True):
    """A header and its record batch."""

    header: BatchHeader
    records: pa.RecordBatch

    @classmethod
    def of(cls, span_id: int, table: TableSchema, kind: BatchKind, records: pa.RecordBatch) -> ChangeBatch:
        """Build the header of a non-empty record batch that has the table's batch schema."""
        if records.num_rows == 0:
            raise InvariantError("an empty change batch")
        ts = commit_ts_array(records)
        header = BatchHeader(
            span_id=span_id,
            table_id=table.table_id,
            schema_version=table.version,
            kind=kind,
            min_ts=int(ts.min()),
            max_ts=int(ts.max()),
            rows=records.num_rows,
            nbytes=records.nbytes,
        )
        return cls(header, records)


def commit_ts_array(records: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return the commit ts column as numpy, without a copy."""
    ts: np.ndarray[tuple[int], np.dtype[np.uint64]] = records.column(COMMIT_TS).to_numpy(zero_copy_only=True)
    return ts


def change_records(table: TableSchema, ts: U64, ops: U8, keys: pa.Array, columns: Sequence[pa.Array]) -> pa.RecordBatch:
    """Return the changes of a table version, whose columns are given in its order, under its batch schema."""
    head = [pa.array(ts, pa.uint64()), pa.array(ops, pa.uint8()), keys]
    return pa.RecordBatch.from_arrays([*head, *columns], schema=table.batch_schema())


def bounded_batches(span_id: int, table: TableSchema, kind: BatchKind, records: pa.RecordBatch) -> Iterator[ChangeBatch]:
    """Yield records as batches of bounded size, in their order."""
    for start in range(0, records.num_rows, BATCH_ROWS_MAX):
        yield ChangeBatch.of(span_id, table, kind, records.slice(start, BATCH_ROWS_MAX))


def without_before(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the records without before-images; without a copy where there are none, or nothing else."""
    kept = records.column(OP).to_numpy(zero_copy_only=True) != np.uint8(Op.BEFORE)
    if bool(kept.all()):
        return records
    return records.filter(pa.array(kept)) if bool(kept.any()) else records.slice(0, 0)


def write_ipc(records: pa.RecordBatch) -> pa.Buffer:
    """Return one record batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema) as writer:
        writer.write_batch(records)
    return sink.getvalue()


def read_ipc(payload: bytes | pa.Buffer) -> pa.RecordBatch:
    """Read what ``write_ipc`` wrote, without copying the columns."""
    with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
        return reader.read_next_batch()


__all__ = [
    "BATCH_ROWS_MAX",
    "BATCH_ROWS_MIN",
    "COMMIT_TS",
    "KEY",
    "OP",
    "BatchHeader",
    "BatchKind",
    "ChangeBatch",
    "Op",
    "bounded_batches",
    "change_records",
    "commit_ts_array",
    "read_ipc",
    "without_before",
    "write_ipc",
]
