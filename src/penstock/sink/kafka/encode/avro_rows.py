"""Rows as Avro: the schema of a table version, and records from columns in one pass, behind Confluent's header (a zero byte, the id).

Every column is a union with null, so that a column that is added or dropped leaves old and new readers right. Whole numbers are ``long``,
those that do not fit are text, floats keep their width, bytes are bytes, everything else is text as MySQL prints it. ``_op`` (c, u, d) and
``_commit_ts`` follow the columns. Invariant: nothing outside the described buffers is read. Runs on executors.
"""

from __future__ import annotations

import re
import struct

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from penstock.format.column_texts import text_values
from penstock.format.csv.dialect import row_columns
from penstock.format.sheet_kernels import ONE, described, is_null, text_bounds
from penstock.kernels.byte_ranges import copy_short
from penstock.kernels.jit import EMPTY_U8, I64, U8, kernel
from penstock.kernels.memory import load_i8, load_i16, load_i32, load_i64, load_u8, load_u16, load_u32, store_u8
from penstock.model.batch import Op
from penstock.model.rows.elements import ELEMENT_KINDS
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.types import BINARY_KINDS, TypeKind

_LONG, _ULONG, _BYTES, _FIXED = range(4)
_KIND, _WIDTH, _VALIDITY, _OFFSETS, _VALUES, _FIRST, _UNION = range(7)
_NUMBER_BYTES = 12
_NOT_TAKEN = re.compile(r"[^A-Za-z0-9_]|_(?=x[0-9a-f]+_)|\A[0-9]|\A_(?=(?:op|commit_ts)\Z)")
_LETTERS = {int(Op.INSERT): "c", int(Op.UPDATE): "u", int(Op.DELETE): "d"}
_SEVEN = np.uint64(7)


@kernel
def _put_varint(rest: np.uint64, to: np.uint64) -> np.uint64:
    while rest >= np.uint64(128):
        store_u8(to, np.uint8((rest & np.uint64(127)) | np.uint64(128)))
        to += ONE
        rest >>= _SEVEN
    store_u8(to, np.uint8(rest))
    return to + ONE


@kernel
def _put_long(value: np.int64, to: np.uint64) -> np.uint64:
    return _put_varint((np.uint64(value) << ONE) ^ np.uint64(value >> np.int64(63)), to)


@kernel
def _number(sheet: I64, column: int, at: np.int64) -> np.int64:
    width = sheet[column, _WIDTH]
    address = np.uint64(sheet[column, _VALUES]) + np.uint64(at * width)
    if width == 8:
        return np.int64(load_i64(address))
    if sheet[column, _KIND] == _ULONG:
        if width == 4:
            return np.int64(load_u32(address))
        return np.int64(load_u16(address)) if width == 2 else np.int64(load_u8(address))
    if width == 4:
        return np.int64(load_i32(address))
    return np.int64(load_i16(address)) if width == 2 else np.int64(load_i8(address))


@kernel
def write_records(sheet: I64, lead: U8, start: int, ends: I64, out: U8) -> tuple[int, int]:
    """Write records from a row on, and where each ends; return (rows written so far, bytes used). Stops before one that might not fit."""
    base = np.uint64(out.ctypes.data)
    limit = base + np.uint64(len(out))
    to = base
    for row in range(start, len(ends)):
        begin = to
        if to + np.uint64(len(lead)) > limit:
            return row, int(begin - base)
        copy_short(np.uint64(lead.ctypes.data), to, np.int64(len(lead)))
        to += np.uint64(len(lead))
        for column in range(sheet.shape[0]):
            at = sheet[column, _FIRST] + row
            kind = sheet[column, _KIND]
            low, high = np.int64(0), np.int64(0)
            if kind == _BYTES:
                low, high = text_bounds(np.uint64(sheet[column, _OFFSETS]), sheet[column, _WIDTH], at)
            if to + np.uint64(high - low + _NUMBER_BYTES) > limit:
                return row, int(begin - base)
            if sheet[column, _UNION]:
                missing = is_null(np.uint64(sheet[column, _VALIDITY]), at)
                store_u8(to, np.uint8(0) if missing else np.uint8(2))
                to += ONE
                if missing:
                    continue
            if kind == _BYTES:
                to = _put_long(high - low, to)
                copy_short(np.uint64(sheet[column, _VALUES]) + np.uint64(low), to, high - low)
                to += np.uint64(high - low)
            elif kind == _FIXED:
                width = sheet[column, _WIDTH]
                copy_short(np.uint64(sheet[column, _VALUES]) + np.uint64(at * width), to, width)
                to += np.uint64(width)
            else:
                to = _put_long(_number(sheet, column, at), to)
        ends[row] = np.int64(to - base)
    return len(ends), int(to - base)


class AvroRows:
    """Encodes rows of some columns of a table version under the id of their schema. Not thread safe."""

    def __init__(self, columns: tuple[Column, ...], schema_id: int, *, is_key: bool) -> None:
        self._columns = columns
        self._is_key = is_key
        self._lead = np.frombuffer(b"\0" + struct.pack(">I", schema_id), np.uint8)

    def encode(self, records: pa.RecordBatch) -> tuple[U8, I64]:
        """Return the bytes of all rows, and where each begins and the last one ends."""
        rows = records.num_rows
        if not rows:
            return EMPTY_U8, np.zeros(1, np.int64)
        arrays = [_values(column, records.column(column.field_name)) for column in self._columns]
        unions = [not self._is_key] * len(arrays)
        if not self._is_key:
            letters = pl.Series(records.column(OP)).replace_strict(_LETTERS, return_dtype=pl.String)
            arrays += [_plain(letters), records.column(COMMIT_TS)]
            unions += [False, False]
        sheet = np.zeros((len(arrays), 7), np.int64)
        size = rows * len(self._lead) + 64
        for at, (array, union) in enumerate(zip(arrays, unions, strict=True)):
            place, nbytes = described(array)
            sheet[at] = (_kind(array), *place, int(union))
            size += nbytes + rows * _NUMBER_BYTES
        out, ends = np.empty(size, np.uint8), np.zeros(rows, np.int64)
        done, used = write_records(sheet, self._lead, 0, ends, out)
        # The size is what rows take at the most, so they fit.
        assert done == rows
        return out[:used], np.concatenate((np.zeros(1, np.int64), ends))


def value_schema(table: TableSchema) -> str:
    """Return the schema of a table's rows."""
    fields: list[object] = [
        {"name": _name(c.name), "type": ["null", _avro_type(c)], "default": None, "doc": c.name} for c in row_columns(table)
    ]
    fields += [{"name": "_op", "type": "string"}, {"name": "_commit_ts", "type": "long"}]
    return _record(table, "Value", fields)


def key_schema(table: TableSchema) -> str:
    """Return the schema of what names a row."""
    return _record(table, "Key", [{"name": _name(c.name), "type": _avro_type(c), "doc": c.name} for c in table.handle_columns])


def _record(table: TableSchema, name: str, fields: list[object]) -> str:
    namespace = f"{_name(table.schema)}.{_name(table.table)}"
    return msgspec.json.encode({"type": "record", "name": name, "namespace": namespace, "fields": fields}).decode()


def _avro_type(column: Column) -> str:
    kind = column.type.kind
    if kind in BINARY_KINDS:
        return "bytes"
    if kind in {TypeKind.FLOAT, TypeKind.DOUBLE}:
        return kind.value.lower()
    fits = pa.types.is_integer(column.type.arrow()) and kind not in ELEMENT_KINDS and not _is_wide(column)
    return "long" if fits else "string"


def _is_wide(column: Column) -> bool:
    return bool(column.type.arrow() == pa.uint64())


def _values(column: Column, values: pa.Array) -> pa.Array:
    """Return a column as its Avro type holds it."""
    if column.type.kind in ELEMENT_KINDS:
        return _plain(text_values(column, values).cast(pl.String))
    return values.cast(pa.string()) if _is_wide(column) else values


def _plain(series: pl.Series) -> pa.Array:
    return series.to_arrow(compat_level=pl.CompatLevel.oldest())


def _kind(array: pa.Array) -> int:
    if pa.types.is_floating(array.type):
        return _FIXED
    if pa.types.is_integer(array.type):
        return _LONG if pa.types.is_signed_integer(array.type) else _ULONG
    return _BYTES


def _name(name: str) -> str:
    """Return a name in Avro's characters; two names never become one, nor one of the fields that are no columns.

    The true one stands in the field's ``doc``.
    """
    return _NOT_TAKEN.sub(lambda found: f"_x{ord(found[0]):x}_", name)
