"""Committed rows of one region event on their way from the matching kernel to Arrow: how they are laid out, and the batch over that memory.

Invariant: ``lay_out`` and ``committed_rows`` agree on where each column lies; nothing is copied after the first. Runs in the log service,
in the shard of the region.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa

from penstock.kernels.jit import I64, U8, kernel
from penstock.kernels.memory import copy_bytes, signed
from penstock.puller.ranged.matching.wire_scan import COMMIT_TS, KEY_LEN, KEY_OFF, OP_DELETE, START_TS
from penstock.source.raw import RAW_SCHEMA

EMITTED_ROW, EMITTED_OP, EMITTED_VALUE, EMITTED_VALUE_SIZE, EMITTED_OLD, EMITTED_OLD_SIZE = range(6)
"""An emitted row: its number, its operation, and where value and old value lie."""

ROWS, KEY_BYTES, VALUE_BYTES, OLD_BYTES, VALUE_NULLS, OLD_NULLS, LOW_TS, HIGH_TS = range(8)
"""What the matching kernel counts."""

_U64, _U8_TYPE, _BINARY = pa.uint64(), pa.uint8(), pa.binary()


class Committed(msgspec.Struct, frozen=True):
    """The committed rows of one region event, and their smallest and largest commit ts."""

    records: pa.RecordBatch
    """Of ``RAW_SCHEMA``. Ts, operation and key share one piece of memory, value and old value another."""
    low_ts: int
    high_ts: int


def committed_rows(counts: list[int], narrow: U8, wide: U8) -> Committed:
    """Return the rows that the kernel laid out, without copying them; ``lay_out`` tells where each column is."""
    rows, key_bytes, value_bytes, old_bytes, value_nulls, old_nulls, low_ts, high_ts = counts
    first, second = pa.py_buffer(narrow), pa.py_buffer(wide)
    offsets = (4 * (rows + 1) + 7) & ~7
    bits = ((rows + 7) // 8 + 7) & ~7
    op_at = 16 * rows + offsets
    key_at = op_at + ((rows + 7) & ~7)
    value_at = 2 * offsets + 2 * bits
    columns = [
        pa.Array.from_buffers(_U64, rows, [None, first.slice(0, 8 * rows)], 0),
        pa.Array.from_buffers(_U64, rows, [None, first.slice(8 * rows, 8 * rows)], 0),
        pa.Array.from_buffers(_U8_TYPE, rows, [None, first.slice(op_at, rows)], 0),
        pa.Array.from_buffers(_BINARY, rows, [None, first.slice(16 * rows, 4 * (rows + 1)), first.slice(key_at, key_bytes)], 0),
        pa.Array.from_buffers(
            _BINARY,
            rows,
            [
                second.slice(2 * offsets, bits) if value_nulls else None,
                second.slice(0, 4 * (rows + 1)),
                second.slice(value_at, value_bytes),
            ],
            value_nulls,
        ),
        pa.Array.from_buffers(
            _BINARY,
            rows,
            [
                second.slice(2 * offsets + bits, bits) if old_nulls else None,
                second.slice(offsets, 4 * (rows + 1)),
                second.slice(value_at + value_bytes, old_bytes),
            ],
            old_nulls,
        ),
    ]
    mask = (1 << 64) - 1
    return Committed(pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA), low_ts & mask, high_ts & mask)


def joined(parts: list[Committed]) -> Committed | None:
    """Return several as one, in their order."""
    if len(parts) <= 1:
        return parts[0] if parts else None
    records = pa.Table.from_batches([p.records for p in parts]).combine_chunks().to_batches()[0]
    return Committed(records, min(p.low_ts for p in parts), max(p.high_ts for p in parts))


@kernel
def lay_out(base: int, rows: I64, emitted: I64, counts: I64) -> tuple[U8, U8]:
    """Copy the emitted rows into two pieces of memory.

    The first: commit ts, start ts, key offsets, operations, keys. The second: value offsets, old offsets, which values and which old
    values are there, values, old values. Each part begins at a multiple of eight bytes, except for the strings.
    """
    count = counts[ROWS]
    offsets = (4 * (count + 1) + 7) & ~7
    bits = ((count + 7) // 8 + 7) & ~7
    op_at = 16 * count + offsets
    key_at = op_at + ((count + 7) & ~7)
    value_at = 2 * offsets + 2 * bits
    old_at = value_at + counts[VALUE_BYTES]
    narrow = np.empty(key_at + counts[KEY_BYTES], dtype=np.uint8)
    wide = np.empty(old_at + counts[OLD_BYTES], dtype=np.uint8)
    wide[2 * offsets : value_at] = 0
    ts = narrow[: 16 * count].view(np.int64)
    key_offsets = narrow[16 * count : 16 * count + offsets].view(np.int32)
    value_offsets = wide[:offsets].view(np.int32)
    old_offsets = wide[offsets : 2 * offsets].view(np.int32)
    to_narrow = signed(narrow.ctypes.data)
    to_wide = signed(wide.ctypes.data)
    key_end = 0
    value_end = 0
    old_end = 0
    for i in range(count):
        row = emitted[i, EMITTED_ROW]
        ts[i] = rows[row, COMMIT_TS]
        ts[count + i] = rows[row, START_TS]
        narrow[op_at + i] = emitted[i, EMITTED_OP]
        key_offsets[i] = key_end
        value_offsets[i] = value_end
        old_offsets[i] = old_end
        size = rows[row, KEY_LEN]
        copy_bytes(np.uint64(to_narrow + key_at + key_end), np.uint64(base + rows[row, KEY_OFF]), np.uint64(size))
        key_end += size
        if emitted[i, EMITTED_OP] != OP_DELETE:
            size = emitted[i, EMITTED_VALUE_SIZE]
            copy_bytes(np.uint64(to_wide + value_at + value_end), np.uint64(emitted[i, EMITTED_VALUE]), np.uint64(size))
            value_end += size
            wide[2 * offsets + (i >> 3)] |= np.uint8(1 << (i & 7))
        size = emitted[i, EMITTED_OLD_SIZE]
        if size > 0:
            copy_bytes(np.uint64(to_wide + old_at + old_end), np.uint64(emitted[i, EMITTED_OLD]), np.uint64(size))
            old_end += size
            wide[2 * offsets + bits + (i >> 3)] |= np.uint8(1 << (i & 7))
    key_offsets[count] = key_end
    value_offsets[count] = value_end
    old_offsets[count] = old_end
    return narrow, wide
