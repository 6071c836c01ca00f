"""Compiles the kernels of this source before the first message needs them.

Sends a few rows through every kernel in the way of real data, because a kernel is compiled for each kind of array. Runs when a log is read
first, and at set-up.
"""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pyarrow as pa

from penstock.model.table import Column, TableSchema
from penstock.source.postgres.rows.cells import CellForm, CellGrid, copy_grid
from penstock.source.postgres.rows.row_changes import build_changes
from penstock.source.postgres.rows.row_keys import row_contents
from penstock.source.postgres.rows.type_map import BOOL, BYTEA, INT4, TIMESTAMPTZ, VARCHAR, column_type
from penstock.source.postgres.tables.observed import KnownRelation
from penstock.source.postgres.wire.pgoutput import Relation, RelationColumn, stream_end
from penstock.source.postgres.wire.scan_buffer import ScanBuffer

_TYPES = (INT4, VARCHAR, BOOL, BYTEA, TIMESTAMPTZ)
_ROW = ("1", "text", "t", "\\x00", "2026-01-02 03:04:05+00")


def warm_kernels() -> None:
    """Send a transaction through everything. Quick when all is compiled already."""
    types = [column_type(oid, -1, {}) for oid in _TYPES]
    columns = tuple(Column(at, f"c{at}", kind, at > 1, at == 1) for at, (kind, _) in enumerate(types, 1))
    relation = Relation(
        1, "warm", "kernels", "f", tuple(RelationColumn(c.name, oid, -1, True) for c, oid in zip(columns, _TYPES, strict=True))
    )
    known = KnownRelation(relation, TableSchema(1, "warm", "kernels", 1, columns), tuple(form for _, form in types))
    row = _tuple(_ROW)
    head = struct.pack("!I", 1)
    inserts = b"".join(_message(b"I" + head + b"N" + _tuple((number, *_ROW[1:]))) for number in ("3", "1", "2"))
    update = _message(b"U" + head + b"O" + row + b"N" + row)
    buffer = ScanBuffer(64, 16, "warm")
    buffer.append(_message(b"B" + struct.pack("!QqI", 1, 1, 1)) + inserts + update + _message(b"C" + struct.pack("!BQQq", 0, 1, 2, 1)))
    buffer.scan()
    rows = buffer.rows[: buffer.rows_of(1)]
    for each in (known, msgspec.structs.replace(known, deferrable=True)):
        build_changes(each, buffer.bytes, rows, np.ones(len(rows), np.uint64), np.arange(len(rows)), _no_fetch)
    line = "\t".join(_ROW).replace("\\", "\\\\").encode() + b"\n"
    copied = np.frombuffer(bytearray(b"d" + struct.pack("!I", len(line) + 4) + line), dtype=np.uint8)
    grid: CellGrid = copy_grid(copied, 0, len(copied), len(_ROW), 4)[0]
    row_contents(grid)
    for at, (kind, form) in enumerate(types):
        grid.column(at, CellForm(form), kind.arrow())
    stream_end(copied, 0, len(copied))


def _no_fetch(_table: TableSchema, keys: pa.Array, _key_columns: list[pa.Array], _wanted: list[Column]) -> tuple[pa.Array, list[pa.Array]]:
    return keys, []


def _tuple(values: tuple[str, ...]) -> bytes:
    cells = (b"t" + struct.pack("!I", len(v)) + v.encode() for v in values)
    return struct.pack("!H", len(values)) + b"".join(cells)


def _message(body: bytes) -> bytes:
    payload = b"w" + struct.pack("!QQQ", 0, 0, 0) + body
    return b"d" + struct.pack("!I", len(payload) + 4) + payload


if __name__ == "__main__":
    warm_kernels()
