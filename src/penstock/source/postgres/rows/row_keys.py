"""Row keys of PostgreSQL tables: memory-comparable bytes, as ``model/rows/row_key.py`` defines them.

A table with a key (its primary key, or the index that its replica identity names) has the key's columns. A table without one and with
REPLICA IDENTITY FULL is a bag (``model/rows/bag_key.py``), for which the hash of a row's content is made here. A
table that only takes inserts is keyed by where a row came from: its transaction and place in the log, its place in the table for a
snapshot, which sorts before. Runs in the log service and on executors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.kernels.hashing import HASH128_BYTES, cell_hashes
from penstock.kernels.jit import I64, U64, binary_array
from penstock.model.rows.row_key import encode_row_keys
from penstock.model.table import TableSchema
from penstock.source.postgres.rows.cells import CellForm, CellGrid
from penstock.source.postgres.tables.observed import KnownRelation

FROM_TABLE, FROM_LOG = 0, 1
_ORDINAL_KEY_BYTES = 13
_PLACE_KEY_BYTES = 13


def row_keys(known: KnownRelation, grid: CellGrid) -> pa.Array:
    """Return the keys of rows by the key's columns."""
    return encode_row_keys(known.table, key_arrays(known.table, known.forms, grid))


def key_arrays(table: TableSchema, forms: Sequence[CellForm], grid: CellGrid) -> dict[str, pa.Array]:
    """Return the key's columns of a grid in the form in which they are encoded, by field name."""
    return {
        c.field_name: grid.column(at, forms[at], key_type(forms[at], c.type.arrow())) for at, c in enumerate(table.columns) if c.primary_key
    }


def key_type(form: CellForm, arrow: pa.DataType) -> pa.DataType:
    """Return the Arrow type of a key column. Floats have no bytes of the right order; their text has one, and names the row exactly."""
    return pa.string() if form is CellForm.FLOAT else arrow


def row_contents(grid: CellGrid) -> pa.Array:
    """Return hashes of the whole content of rows."""
    out = np.zeros(grid.rows * HASH128_BYTES, dtype=np.uint8)
    cell_hashes(grid.buffer, grid.starts, grid.lengths, out)
    return binary_array(out, np.arange(grid.rows + 1, dtype=np.int64) * HASH128_BYTES)


def ordinal_keys(ts: U64, ordinals: I64) -> pa.Array:
    """Return keys of logged rows by their transaction and their number in it."""
    grid = np.zeros((len(ts), _ORDINAL_KEY_BYTES), dtype=np.uint8)
    grid[:, 0] = FROM_LOG
    grid[:, 1:9] = ts.astype(">u8").view(np.uint8).reshape(-1, 8)
    grid[:, 9:13] = ordinals.astype(">u4").view(np.uint8).reshape(-1, 4)
    return binary_array(grid.reshape(-1), np.arange(len(ts) + 1, dtype=np.int64) * _ORDINAL_KEY_BYTES)


def place_keys(table_oids: I64, blocks: I64, offsets: I64) -> pa.Array:
    """Return keys of a snapshot's rows by their place: the oid of the (partition's) table, block and offset."""
    grid = np.zeros((len(blocks), _PLACE_KEY_BYTES), dtype=np.uint8)
    grid[:, 0] = FROM_TABLE
    grid[:, 1:5] = table_oids.astype(">u4").view(np.uint8).reshape(-1, 4)
    grid[:, 5:9] = blocks.astype(">u4").view(np.uint8).reshape(-1, 4)
    grid[:, 9:13] = offsets.astype(">u4").view(np.uint8).reshape(-1, 4)
    return binary_array(grid.reshape(-1), np.arange(len(blocks) + 1, dtype=np.int64) * _PLACE_KEY_BYTES)
