"""Keys of rows that nothing names: a table without a key is a bag, in which equal rows are counted.

Such a row is known by a hash of its content, by the commit ts at which it came or ceased, and by its number among the equal ones at that
ts. So no two changes share a key, and the same log gives the same keys. The content alone says which rows are copies of each other: a
row that ceased ends any one of them. A snapshot's rows have the ts 0. Runs anywhere.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.kernels.hashing import HASH128_BYTES
from penstock.kernels.jit import I64, U8, U64, binary_array
from penstock.model.table import TableSchema

CONTENT_BYTES = HASH128_BYTES
BAG_KEY_BYTES = CONTENT_BYTES + 16


def is_bag(table: TableSchema) -> bool:
    """Return whether nothing names the rows of a table version."""
    return not table.key_columns


def bag_keys(content: U8, ts: U64, numbers: I64) -> pa.Array:
    """Return the keys of rows, given the hashes of their content one behind the other."""
    count = len(ts)
    grid = np.empty((count, BAG_KEY_BYTES), dtype=np.uint8)
    grid[:, :CONTENT_BYTES] = content.reshape(count, CONTENT_BYTES)
    grid[:, CONTENT_BYTES : CONTENT_BYTES + 8] = ts.astype(">u8").view(np.uint8).reshape(count, 8)
    grid[:, CONTENT_BYTES + 8 :] = numbers.astype(">u8").view(np.uint8).reshape(count, 8)
    return binary_array(grid.reshape(-1), np.arange(count + 1, dtype=np.int64) * BAG_KEY_BYTES)


def snapshot_keys(contents: pa.Array, given: int) -> pa.Array:
    """Return the keys of a snapshot's rows, of which ``given`` came before these."""
    count = len(contents)
    grid = key_grid(contents)
    if grid is None:
        return contents
    return bag_keys(np.ascontiguousarray(grid), np.zeros(count, dtype=np.uint64), np.arange(given, given + count))


def key_grid(keys: pa.Array) -> U8 | None:
    """Return keys of one width as a grid of bytes without a copy, or None for keys of several widths, or none."""
    if len(keys) == 0:
        return None
    offsets = np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset : keys.offset + len(keys) + 1]
    width = int(offsets[1] - offsets[0])
    if width == 0 or not bool((np.diff(offsets) == width).all()):
        return None
    start = int(offsets[0])
    return np.frombuffer(keys.buffers()[2], dtype=np.uint8, count=width * len(keys), offset=start).reshape(len(keys), width)


def has_bag_keys(keys: pa.Array) -> bool:
    """Return whether all of some keys tell the content of their rows."""
    grid = key_grid(keys)
    return len(keys) == 0 or (grid is not None and grid.shape[1] == BAG_KEY_BYTES)


def content_words(grid: U8) -> tuple[U64, U64]:
    """Return the hashes of content of keys as two numbers each, in the order of their bytes."""
    words = np.ascontiguousarray(grid[:, :CONTENT_BYTES]).view(">u8").astype(np.uint64)
    return words[:, 0], words[:, 1]
