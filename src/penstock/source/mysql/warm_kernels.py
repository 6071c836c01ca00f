"""Compiles the kernels of this source before the first event needs them.

Numba compiles on the first call, which takes seconds on a machine that never ran the kernels; later processes load them from a cache.
Sends a few bytes through every kernel in the way of real data, because a kernel is compiled for each kind of array. Runs when a log is
read first, and at set-up.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.mysql.event_scan import BEGIN_TEXT, COMMIT_TEXT
from penstock.source.mysql.rows.charsets import to_utf8
from penstock.source.mysql.rows.image_layout import ImageLayout, WireColumn
from penstock.source.mysql.rows.row_keys import row_contents, row_keys
from penstock.source.mysql.rows.rows_decoder import decode_rows
from penstock.source.mysql.rows.shown_values import shown
from penstock.source.mysql.snapshot.text_rows import split_rows, unpack_rows
from penstock.source.mysql.tables.table_slots import Binding, TableSlots
from penstock.source.mysql.tables.table_versions import TableVersions
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire import framing
from penstock.source.mysql.wire.framing import scan, unpack


def warm_kernels() -> None:
    """Send two rows through everything. Quick when the kernels are compiled already."""
    _warm_framing()
    _warm_rows()
    _warm_queries()


def _warm_framing() -> None:
    raw = np.frombuffer(bytes([2, 0, 0, 0, 0, 1]), dtype=np.uint8).copy()
    out = np.zeros(64, dtype=np.uint8)
    unpack(raw, len(raw), np.zeros(framing.UNPACK_STATE, dtype=np.int64), out, 0)
    slots = TableSlots(TableVersions(lambda schema, table: None))
    scan(
        out, 0, 0, 4, framing.PIECE_BYTES, framing.ACTIONS, framing.CRC_TABLES, np.zeros(framing.SCAN_STATE, dtype=np.int64),
        slots.ids, slots.id_slot, slots.maps, slots.map_from, slots.map_to, slots.wanted, np.zeros((0, 16), dtype=np.uint8),
        BEGIN_TEXT, COMMIT_TEXT, np.zeros((1, framing.ROW_COLUMNS), dtype=np.int64), np.zeros((1, framing.TXN_COLUMNS), dtype=np.int64),
        np.zeros(2, dtype=np.int64),
    )  # fmt: skip
    framing.table_slot(slots.ids, 1)


def _warm_rows() -> None:
    columns = (
        Column(1, "id", ColumnType(TypeKind.BIGINT), nullable=False, primary_key=True),
        Column(2, "note", ColumnType(TypeKind.VARCHAR, length=4)),
    )
    table = TableSchema(1, "warm", "kernels", 1, columns)
    layout = ImageLayout((WireColumn(wire.W_INT8), WireColumn(wire.W_BYTES, a=1)))
    image = bytes([0xFC]) + bytes(8) + bytes([1, 97])
    body = bytes([2, 255, 255]) + image + image
    events = np.frombuffer(body, dtype=np.uint8).copy()
    rows = np.array([[0, 0, wire.UPDATE_ROWS_V1, 0, len(body), 0]], dtype=np.int64)
    binding = Binding(table, layout, (None,) * len(columns), table)
    list(decode_rows(events, binding, rows, np.array([5], dtype=np.uint64), lambda *_: "latin1"))
    arrays = (pa.array([1, 2]), pa.array(["a", None]))
    text_keyed = tuple(Column(c.id, c.name, c.type, nullable=c.id == 1, primary_key=c.id == 2) for c in columns)
    row_keys(TableSchema(1, "warm", "kernels", 1, text_keyed), (arrays[0], pa.array(["a", "b"])))
    row_contents(TableSchema(1, "warm", "kernels", 1, tuple(Column(c.id, c.name, c.type) for c in columns)), arrays)
    to_utf8(pa.array([b"\xe9"], pa.binary()), "latin1", "note")
    shown(pa.array([bytes(16)], pa.binary()), wire.F_INET6, "note")


def _warm_queries() -> None:
    raw = np.frombuffer(bytes([4, 0, 0, 0, 1, 97, 1, 98]), dtype=np.uint8)
    rows, starts = np.zeros(64, dtype=np.uint8), np.zeros(8, dtype=np.int64)
    _, end, count, _ = unpack_rows(raw, np.zeros(framing.UNPACK_STATE, dtype=np.int64), rows, 0, starts, 0)
    split_rows(rows, starts[:count], end, 2)


if __name__ == "__main__":
    warm_kernels()
