"""Row keys: the bytes under which a row is known, in the order of its primary key's columns.

The encoding is that of ``model/row_key.py``. FLOAT and DOUBLE keys are turned into integers of the same order. A table without a
primary key is known by a unique key whose columns cannot be NULL; where it has none either it is a bag (``model/bag_key.py``), and what is
made here is the hash of a row's content. Runs in the log service and on executors.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.jit import I64, U8, U64, binary_array, binary_view, kernel
from penstock.model.bag_key import CONTENT_BYTES
from penstock.model.errors import PenstockError
from penstock.model.row_key import encode_row_keys
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

_UNSIGNED_KEY = ColumnType(TypeKind.BIGINT, unsigned=True)
_SIGN = np.uint64(1 << 63)


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
    """Return hashes over all columns; a NULL differs from every value because its own flag is hashed as well."""
    columns: list[Column] = []
    parts: list[pa.Array] = []
    for column, array in zip(table.columns, arrays, strict=True):
        flag = array.is_null().cast(pa.uint8())
        columns += [Column(0, column.name, _UNSIGNED_KEY, False, True), column]
        parts += [flag, _filled(array)]
    data, offsets = binary_view(_encoded(table, columns, parts))
    out = np.empty((len(offsets) - 1) * CONTENT_BYTES, dtype=np.uint8)
    hash_rows(data, offsets, out)
    return binary_array(out, np.arange(len(offsets), dtype=np.int64) * CONTENT_BYTES)


def _filled(array: pa.Array) -> pa.Array:
    if not array.null_count:
        return array
    empty = "" if pa.types.is_string(array.type) else b"" if pa.types.is_binary(array.type) else 0
    return pc.fill_null(array, pa.scalar(empty, array.type))


@kernel
def hash_keys(data: U8, offsets: I64, out: U64) -> None:
    """Write a 64-bit hash of each value."""
    for row in range(len(out)):
        value = np.uint64(0xCBF29CE484222325)
        for p in range(offsets[row], offsets[row + 1]):
            value = (value ^ np.uint64(data[p])) * np.uint64(0x100000001B3)
        value ^= value >> np.uint64(32)
        value *= np.uint64(0x9E3779B97F4A7C15)
        out[row] = value ^ (value >> np.uint64(29))


@kernel
def hash_rows(data: U8, offsets: I64, out: U8) -> None:
    """Write a 128-bit hash of each value: two multiplicative hashes with different primes and seeds."""
    for row in range(len(offsets) - 1):
        one = np.uint64(0xCBF29CE484222325)
        two = np.uint64(0x9AE16A3B2F90404F)
        for p in range(offsets[row], offsets[row + 1]):
            byte = np.uint64(data[p])
            one = (one ^ byte) * np.uint64(0x100000001B3)
            two = (two + byte + np.uint64(1)) * np.uint64(0xC6A4A7935BD1E995)
            two ^= two >> np.uint64(47)
        for p in range(8):
            out[row * 16 + p] = np.uint8((one >> np.uint64(56 - 8 * p)) & np.uint64(255))
            out[row * 16 + 8 + p] = np.uint8((two >> np.uint64(56 - 8 * p)) & np.uint64(255))
