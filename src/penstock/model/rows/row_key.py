"""Row keys: the bytes under which all sources know a row, in the order of its primary key, and the full keys under which ranges are cut.

A full key is ``t``, the table id as 8 bytes big endian, ``_r``, then the row key. A row key is the encoding of the primary key's columns in
table order: signed integers as 8 bytes big endian with the sign flipped, unsigned ones as 8 bytes big endian, everything else as its bytes
with 0x00 written as 0x00 0xFF, ended by 0x00 0x01. The byte order of row keys is therefore the order of the primary key. A table without
a primary key has a hidden 8-byte row id. Runs anywhere.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.byte_ranges import compare_ranges, same_range
from penstock.kernels.jit import EMPTY_U8, I64, INT32_MAX, U8, U64, binary_array, binary_view, kernel
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import Column, TableSchema
from penstock.model.types import TypeKind

PREFIX_BYTES = 11
ROW_ID_SEQUENCE_BITS = 20
_UNORDERED_KINDS = frozenset({TypeKind.FLOAT, TypeKind.DOUBLE, TypeKind.JSON, TypeKind.VECTOR, TypeKind.GEOMETRY})


def table_prefix(table_id: int) -> bytes:
    """Return what every full key of a table begins with."""
    return b"t" + table_id.to_bytes(8, "big") + b"_r"


def table_end(table_id: int) -> bytes:
    """Return the smallest key above every key of a table."""
    return b"t" + table_id.to_bytes(8, "big") + b"_s"


def full_key(table_id: int, row_key: bytes) -> bytes:
    """Return the full key of a row key."""
    return table_prefix(table_id) + row_key


def table_id_of(key: bytes) -> int:
    """Return the table id of a full key."""
    if len(key) < PREFIX_BYTES or key[:1] != b"t" or key[9:11] not in (b"_r", b"_s"):
        raise PenstockError("DECODE_FAILED", "a key without a table prefix")
    return int.from_bytes(key[1:9], "big")


def full_span(span: Span) -> tuple[bytes, bytes]:
    """Return the full start and end key of a span."""
    end = full_key(span.table_id, span.end_key) if span.end_key else table_end(span.table_id)
    return full_key(span.table_id, span.start_key), end


def check_key_column(column: Column) -> None:
    """Refuse primary key columns whose bytes have no total order."""
    if column.type.kind in _UNORDERED_KINDS:
        raise PenstockError("TYPE_UNSUPPORTED", f"primary key column {column.name} of type {column.type.kind} is not supported")


def encode_row_keys(table: TableSchema, columns: dict[str, pa.Array], prefix: bytes = b"") -> pa.Array:
    """Return the key of each row, given at least the key columns by field name; ``prefix`` is put before each."""
    parts = [columns[c.field_name] for c in table.key_columns]
    if not parts:
        raise PenstockError("INTERNAL", f"{table.full_name} has no primary key: its writer assigns row ids")
    rows = len(parts[0])
    is_text = np.zeros(len(parts), dtype=np.uint8)
    slots = np.zeros(len(parts), dtype=np.int64)
    numbers: list[U64] = []
    texts: list[tuple[U8, I64]] = []
    for at, (column, array) in enumerate(zip(table.key_columns, parts, strict=True)):
        if array.null_count:
            raise PenstockError("CONFIG_INVALID", f"primary key column {column.name} of {table.full_name} holds a NULL")
        if pa.types.is_integer(array.type):
            slots[at] = len(numbers)
            numbers.append(_comparable(array))
        else:
            is_text[at] = 1
            slots[at] = len(texts)
            texts.append(binary_view(array))
    flat, starts = _flatten(texts, rows)
    number_table = np.stack(numbers) if numbers else np.zeros((1, 0), dtype=np.uint64)
    head = np.frombuffer(prefix, dtype=np.uint8) if prefix else EMPTY_U8
    offsets = np.zeros(rows + 1, dtype=np.int64)
    _measure_keys(rows, len(head), is_text, slots, flat, starts, offsets)
    if offsets[-1] > INT32_MAX:
        raise PenstockError("CONFIG_INVALID", f"keys of {table.full_name} exceed 2 GiB in one batch")
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    _fill_keys(rows, head, is_text, slots, number_table, flat, starts, offsets, out)
    return binary_array(out, offsets)


def row_id_keys(start_ts: int, first: int, rows: int, prefix: bytes = b"") -> pa.Array:
    """Return hidden row ids for a table without a primary key: unique for the transaction and the position in it."""
    if first + rows > 1 << ROW_ID_SEQUENCE_BITS:
        raise PenstockError("CONFIG_INVALID", f"a transaction writes at most {1 << ROW_ID_SEQUENCE_BITS} rows without a primary key")
    base = (start_ts << ROW_ID_SEQUENCE_BITS) & ((1 << 64) - 1)
    ids = (np.arange(first, first + rows, dtype=np.uint64) + np.uint64(base)).astype(">u8").view(np.uint8).reshape(rows, 8)
    head = np.tile(np.frombuffer(prefix, dtype=np.uint8), (rows, 1))
    out = np.ascontiguousarray(np.hstack([head, ids])).reshape(-1)
    return binary_array(out, np.arange(rows + 1, dtype=np.int64) * (len(prefix) + 8))


def strip_prefix(keys: pa.Array) -> tuple[int, pa.Array]:
    """Return the table id that all full keys share and the row keys. Keys of several tables are an error."""
    data, offsets = binary_view(keys)
    table_id = table_id_of(bytes(data[offsets[0] : min(offsets[1], offsets[0] + PREFIX_BYTES)]))
    prefix = np.frombuffer(table_prefix(table_id), dtype=np.uint8)
    if not _has_prefix(data, offsets, prefix):
        raise PenstockError("DECODE_FAILED", "a batch mixes keys of several tables")
    stripped = offsets - np.arange(len(offsets), dtype=np.int64) * PREFIX_BYTES
    stripped -= stripped[0]
    out = np.empty(int(stripped[-1]), dtype=np.uint8)
    _copy_stripped(data, offsets, PREFIX_BYTES, stripped, out)
    return table_id, binary_array(out, stripped)


def with_prefix(table_id: int, row_keys: pa.Array) -> pa.Array:
    """Return the full keys of row keys."""
    return pc.binary_join_element_wise(pa.scalar(table_prefix(table_id), pa.binary()), row_keys, pa.scalar(b"", pa.binary()))


def in_order(commit_ts: U64, keys: pa.Array) -> bool:
    """Return whether rows are already ordered by (commit ts, key)."""
    data, offsets = binary_view(keys)
    return bool(_in_order(commit_ts, data, offsets))


def _comparable(array: pa.Array) -> U64:
    if pa.types.is_signed_integer(array.type):
        signed = array.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return np.asarray(signed, dtype=np.int64).view(np.uint64) ^ np.uint64(1 << 63)
    return np.asarray(array.cast(pa.uint64()).to_numpy(zero_copy_only=False), dtype=np.uint64)


def _flatten(texts: list[tuple[U8, I64]], rows: int) -> tuple[U8, I64]:
    """Return one byte array for all text columns and, for each, its offsets into it."""
    if not texts:
        return EMPTY_U8, np.zeros((1, rows + 1), dtype=np.int64)
    starts = np.empty((len(texts), rows + 1), dtype=np.int64)
    base = 0
    pieces = []
    for at, (data, offsets) in enumerate(texts):
        piece = data[offsets[0] : offsets[-1]]
        starts[at] = offsets - offsets[0] + base
        base += len(piece)
        pieces.append(piece)
    return np.concatenate(pieces), starts


@kernel
def _measure_keys(rows: int, head: int, is_text: U8, slots: I64, flat: U8, starts: I64, offsets: I64) -> None:
    for row in range(rows):
        size = head
        for part in range(len(is_text)):
            if is_text[part] == 0:
                size += 8
                continue
            size += 2
            for p in range(starts[slots[part], row], starts[slots[part], row + 1]):
                size += 2 if flat[p] == 0 else 1
        offsets[row + 1] = offsets[row] + size


@kernel
def _fill_keys(rows: int, head: U8, is_text: U8, slots: I64, numbers: U64, flat: U8, starts: I64, offsets: I64, out: U8) -> None:
    for row in range(rows):
        at = offsets[row]
        for p in range(len(head)):
            out[at] = head[p]
            at += 1
        for part in range(len(is_text)):
            if is_text[part] == 0:
                number = numbers[slots[part], row]
                for shift in range(8):
                    out[at + shift] = (number >> np.uint64(56 - 8 * shift)) & np.uint64(255)
                at += 8
                continue
            for p in range(starts[slots[part], row], starts[slots[part], row + 1]):
                out[at] = flat[p]
                at += 1
                if flat[p] == 0:
                    out[at] = 255
                    at += 1
            out[at] = 0
            out[at + 1] = 1
            at += 2


@kernel
def _has_prefix(data: U8, offsets: I64, prefix: U8) -> bool:
    for row in range(len(offsets) - 1):
        begins = offsets[row]
        if offsets[row + 1] - begins < len(prefix) or not same_range(data, begins, begins + len(prefix), prefix, 0, len(prefix)):
            return False
    return True


@kernel
def _copy_stripped(data: U8, offsets: I64, head: int, stripped: I64, out: U8) -> None:
    for row in range(len(offsets) - 1):
        source = offsets[row] + head
        for p in range(stripped[row + 1] - stripped[row]):
            out[stripped[row] + p] = data[source + p]


@kernel
def _in_order(commit_ts: U64, data: U8, offsets: I64) -> bool:
    for row in range(1, len(commit_ts)):
        if commit_ts[row - 1] < commit_ts[row]:
            continue
        if commit_ts[row - 1] > commit_ts[row]:
            return False
        if compare_ranges(data, offsets[row - 1], offsets[row], data, offsets[row], offsets[row + 1]) > 0:
            return False
    return True
