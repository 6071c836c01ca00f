"""Row keys: the bytes under which a row is known, in the order of its primary key's columns.

The encoding is that of ``model/rows/row_key.py``. FLOAT and DOUBLE keys are turned into integers of the same order. A table without a
primary key is known by a unique key whose columns cannot be NULL; where it has none either it is a bag (``model/rows``), and what is
made here is the hash of a row's content. Runs in the log service and on executors.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.hashing import HASH128_BYTES, content_hashes
from penstock.kernels.jit import binary_array, binary_view
from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import encode_row_keys
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
    out = np.empty((len(offsets) - 1) * HASH128_BYTES, dtype=np.uint8)
    content_hashes(data, offsets, out)
    return binary_array(out, np.arange(len(offsets), dtype=np.int64) * HASH128_BYTES)


def _filled(array: pa.Array) -> pa.Array:
    if not array.null_count:
        return array
    empty = "" if pa.types.is_string(array.type) else b"" if pa.types.is_binary(array.type) else 0
    return pc.fill_null(array, pa.scalar(empty, array.type))
