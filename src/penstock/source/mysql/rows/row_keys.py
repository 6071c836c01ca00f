"""Row keys: the bytes under which a row is known, in the order of its primary key's columns.

The encoding is that of ``model/rows/row_key.py``. FLOAT and DOUBLE keys are turned into integers of the same order. A table without a
primary key is known by a unique key whose columns cannot be NULL; where it has none either it is a bag (``model/rows``), and what is
made here is the hash of a row's content. Runs in the log service and on executors.
"""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa

from penstock.kernels.hashing import HASH128_BYTES, hash_numbers, hash_texts
from penstock.kernels.jit import U64, Flags, binary_array, binary_view
from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import encode_row_keys
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

_UNSIGNED_KEY = ColumnType(TypeKind.BIGINT, unsigned=True)
_SIGN = np.uint64(1 << 63)
_CONTENT_SEEDS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


def row_keys(table: TableSchema, arrays: tuple[pa.Array, ...]) -> pa.Array:
    """Return the key of each row, given all columns in table order."""
    places = [p for p, c in enumerate(table.columns) if c.primary_key]
    if len(places) == 1 and pa.types.is_integer(arrays[places[0]].type):
        array = arrays[places[0]]
        if array.null_count:
            raise _null_key(table)
        return _integer_keys(array)
    columns = [table.columns[p] for p in places]
    if any(arrays[p].null_count for p in places):
        raise _null_key(table)
    return _encoded(table, columns, [arrays[p] for p in places])


def _null_key(table: TableSchema) -> PenstockError:
    return PenstockError("DECODE_FAILED", f"the key of a row of {table.full_name} is not in the log or NULL")


def _integer_keys(array: pa.Array) -> pa.Array:
    if pa.types.is_signed_integer(array.type):
        numbers = array.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64) ^ _SIGN
    else:
        numbers = array.to_numpy(zero_copy_only=False).astype(np.uint64)
    data = np.ascontiguousarray(numbers.astype(">u8")).view(np.uint8)
    return binary_array(data, np.arange(len(array) + 1, dtype=np.int64) * 8)


def _encoded(table: TableSchema, columns: list[Column], arrays: list[pa.Array]) -> pa.Array:
    parts: dict[str, pa.Array] = {}
    chosen: list[Column] = []
    for place, (column, array) in enumerate(zip(columns, arrays, strict=True)):
        kind, values = column.type, array
        if pa.types.is_floating(array.type):
            bits = array.cast(pa.float64()).to_numpy(zero_copy_only=False).view(np.uint64)
            kind, values = _UNSIGNED_KEY, pa.array(np.where(bits & _SIGN, ~bits, bits | _SIGN))
        parts[f"c{place}"] = values
        chosen.append(Column(place, column.name, kind, False, True))
    keyed = TableSchema(table.table_id, table.schema, table.table, table.version, tuple(chosen))
    return encode_row_keys(keyed, parts)


def row_contents(table: TableSchema, arrays: tuple[pa.Array, ...]) -> pa.Array:
    """Return hashes over all columns, 128 bits each; a NULL differs from every value."""
    rows = len(arrays[0])
    if rows == 0:
        return pa.array([], pa.binary())
    hashes = np.empty((2, rows), dtype=np.uint64)
    hashes[0], hashes[1] = _CONTENT_SEEDS
    for array in arrays:
        nulls = _no_nulls(rows) if array.null_count == 0 else array.is_null().to_numpy(zero_copy_only=False)
        if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
            hash_numbers(_words(array), nulls, hashes[0], hashes[1])
        else:
            data, offsets = binary_view(array)
            hash_texts(data, offsets, nulls, hashes[0], hashes[1])
    out = np.ascontiguousarray(hashes.T.astype(">u8")).view(np.uint8).reshape(-1)
    return binary_array(out, np.arange(rows + 1, dtype=np.int64) * HASH128_BYTES)


def _words(array: pa.Array) -> U64:
    """Return numbers as 64 bits each, whatever their width; what stands in the place of a NULL is of no account."""
    wide = pa.float64() if pa.types.is_floating(array.type) else pa.int64() if pa.types.is_signed_integer(array.type) else pa.uint64()
    same = array if array.type == wide else array.cast(wide)
    return np.frombuffer(same.buffers()[1], dtype=np.uint64)[same.offset : same.offset + len(same)]


@functools.lru_cache(maxsize=8)
def _no_nulls(rows: int) -> Flags:
    return np.zeros(rows, dtype=np.bool_)
