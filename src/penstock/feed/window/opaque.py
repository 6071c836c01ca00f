"""Opaque rows: how change batches cross the JVM.

Spark sees four columns and never the table's own: which dispatcher, which kind of row, how many changes, and a payload. The first row of
a partition is the WINDOW whose part it is (its end); a partition without one is part of no window. Rows of
one dispatcher are contiguous: OPEN (the work), then SCHEMA before the first batch of a table version, then BATCH rows (one Arrow
IPC stream each), a DDL between the rows before it and those after, then CLOSE. Spark keeps the order inside a partition, because nothing
is between reader and writer. Runs on executors.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import pyarrow as pa

from penstock.model.batch import write_ipc

SPARK_SCHEMA = "dispatcher string, kind int, changes int, payload binary"
ARROW_SCHEMA = pa.schema([("dispatcher", pa.string()), ("kind", pa.int32()), ("changes", pa.int32()), ("payload", pa.binary())])


class RowKind(IntEnum):
    """What an opaque row carries."""

    OPEN = 0
    SCHEMA = 1
    BATCH = 2
    CLOSE = 3
    DDL = 4
    WINDOW = 5


def opaque_row(dispatcher: str, kind: RowKind, payload: bytes | pa.Buffer = b"", changes: int = 0) -> pa.RecordBatch:
    """Return one opaque row; the payload's buffer becomes the column's, without a copy."""
    data = pa.py_buffer(payload)
    offsets = pa.py_buffer(np.array([0, data.size], dtype=np.int32))
    binary = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, data])
    arrays = [pa.array([dispatcher]), pa.array([int(kind)], pa.int32()), pa.array([changes], pa.int32()), binary]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def batch_row(dispatcher: str, records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the opaque row of a batch of changes."""
    return opaque_row(dispatcher, RowKind.BATCH, write_ipc(records), records.num_rows)
