"""Values whose bytes in the log are not what the server shows: UUID, INET4, INET6, compressed columns, vectors, binary JSON.

The row kernel copies their bytes as they stand; here a whole column becomes what a query answers. Addresses and UUIDs are written by
kernels, vectors by Arrow's casts. A compressed value costs a call, because each is a stream of its own. Bytes that cannot be such
a value are ``DECODE_FAILED``. Runs in the log service, and on executors, where queries give vectors as bytes too.
"""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernels.jit import I64, U8, binary_view, kernel
from penstock.model.errors import PenstockError
from penstock.source.mysql.rows.json_text import json_texts
from penstock.source.mysql.wire import constants as wire

VALUE_BYTES_MAX = 1 << 30
_DIGITS: U8 = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_DASHES_BEHIND: U8 = np.array([1 if place in {3, 5, 7, 9} else 0 for place in range(16)], dtype=np.uint8)
_TEXT_BYTES_MAX = {wire.F_UUID: 36, wire.F_INET4: 15, wire.F_INET6: 39}
_BYTES = {wire.F_UUID: 16, wire.F_INET4: 4, wire.F_INET6: 16}
_FLOAT_BYTES = 4
_ZLIB, _RAW, _SIZE_MASK = 0x80, 0x08, 0x07


def shown(array: pa.Array, form: int, column: str) -> pa.Array:
    """Return a binary column as what the server shows of it: strings, but inflated bytes where it was compressed."""
    if form == wire.F_JSON:
        return json_texts(array, column)
    if form == wire.F_COMPRESSED:
        return inflated(array, column)
    if form == wire.F_VECTOR:
        return vector_texts(array, column)
    return _fixed_texts(array, form, column)


def inflated(array: pa.Array, column: str) -> pa.Array:
    """Return the values of a compressed column of MariaDB."""
    return pa.array([None if value is None else _inflated(value, column) for value in array.to_pylist()], pa.binary())


def _inflated(value: bytes, column: str) -> bytes:
    """Return one value: nothing, a zero byte and the plain value, or method and length, the length, and a stream of zlib."""
    if not value or value[0] == 0:
        return value[1:]
    head = value[0]
    size_bytes = head & _SIZE_MASK
    size = int.from_bytes(value[1 : 1 + size_bytes], "big")
    if head & 0xF0 != _ZLIB or not 0 < size <= VALUE_BYTES_MAX:
        raise PenstockError("DECODE_FAILED", f"column {column} holds a compressed value of an unknown kind")
    try:
        plain = zlib.decompressobj(-zlib.MAX_WBITS if head & _RAW else zlib.MAX_WBITS).decompress(value[1 + size_bytes :], size)
    except zlib.error as error:
        raise PenstockError("DECODE_FAILED", f"column {column} holds a compressed value that does not inflate") from error
    if len(plain) != size:
        raise PenstockError("DECODE_FAILED", f"column {column} holds a compressed value of another size than it claims")
    return plain


def vector_texts(array: pa.Array, column: str) -> pa.Array:
    """Return vectors as ``[1,2.5]``: each number in the fewest digits that read back the same; the server itself prints six."""
    data, offsets = binary_view(array)
    if bool((np.diff(offsets) % _FLOAT_BYTES).any()):
        raise PenstockError("DECODE_FAILED", f"column {column} holds a vector that is not made of floats")
    numbers = data[offsets[0] : offsets[-1]].copy().view("<f4")
    places = pa.array(((offsets - offsets[0]) // _FLOAT_BYTES).astype(np.int32))
    lists = pa.ListArray.from_arrays(places, pc.cast(pa.array(numbers), pa.string()))
    texts = pc.binary_join_element_wise(pa.scalar("["), pc.binary_join(lists, ","), pa.scalar("]"), "")
    return texts if not array.null_count else pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string()))


def _fixed_texts(array: pa.Array, form: int, column: str) -> pa.Array:
    data, offsets = binary_view(array)
    if bool((np.diff(offsets)[array.is_valid().to_numpy(zero_copy_only=False)] != _BYTES[form]).any()):
        raise PenstockError("DECODE_FAILED", f"column {column} holds a value that is not of {_BYTES[form]} bytes")
    out = np.empty(_TEXT_BYTES_MAX[form] * len(array), dtype=np.uint8)
    out_offsets = np.zeros(len(array) + 1, dtype=np.int64)
    _write(data, offsets, form, _DIGITS, _DASHES_BEHIND, out, out_offsets)
    body = out[: int(out_offsets[-1])]
    buffers = [None, pa.py_buffer(out_offsets.astype(np.int32)), pa.py_buffer(body)]
    texts = pa.Array.from_buffers(pa.string(), len(array), buffers, null_count=0)
    return texts if not array.null_count else pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string()))


@kernel
def _put_byte(value: int, out: U8, to: int) -> int:
    """Write a number up to 255 in decimal; return where it ends."""
    if value >= 100:
        out[to] = 48 + value // 100
        to += 1
    if value >= 10:
        out[to] = 48 + value // 10 % 10
        to += 1
    out[to] = 48 + value % 10
    return to + 1


@kernel
def _put_inet4(data: U8, at: int, out: U8, to: int) -> int:
    for place in range(4):
        if place:
            out[to] = 46
            to += 1
        to = _put_byte(int(data[at + place]), out, to)
    return to


@kernel
def _put_inet6(data: U8, at: int, digits: U8, out: U8, to: int) -> int:
    """Write eight groups; the first of the longest runs of zeros is left out, and what stands for an IPv4 address ends like one."""
    gap = -1
    gap_size = 0
    run = 0
    for group in range(8):
        run = run + 1 if data[at + 2 * group] == 0 and data[at + 2 * group + 1] == 0 else 0
        if run > gap_size:
            gap, gap_size = group - run + 1, run
    mapped = gap == 0 and gap_size == 5 and data[at + 10] == 255 and data[at + 11] == 255
    group = 0
    while group < 8:
        if group == gap:
            if group == 0:
                out[to] = 58
                to += 1
            out[to] = 58
            to += 1
            group += gap_size
            continue
        if group == 6 and (mapped or (gap == 0 and gap_size == 6)):
            return _put_inet4(data, at + 12, out, to)
        value = (int(data[at + 2 * group]) << 8) | int(data[at + 2 * group + 1])
        started = False
        for shift in (12, 8, 4, 0):
            nibble = (value >> shift) & 15
            if nibble or started or shift == 0:
                out[to] = digits[nibble]
                to += 1
                started = True
        if group < 7:
            out[to] = 58
            to += 1
        group += 1
    return to


@kernel
def _write(data: U8, offsets: I64, form: int, digits: U8, dashes: U8, out: U8, out_offsets: I64) -> None:
    to = 0
    for row in range(len(offsets) - 1):
        at = offsets[row]
        if offsets[row + 1] > at:
            if form == wire.F_UUID:
                for p in range(16):
                    out[to] = digits[data[at + p] >> 4]
                    out[to + 1] = digits[data[at + p] & 15]
                    to += 2
                    if dashes[p]:
                        out[to] = 45
                        to += 1
            elif form == wire.F_INET4:
                to = _put_inet4(data, at, out, to)
            else:
                to = _put_inet6(data, at, digits, out, to)
        out_offsets[row + 1] = to
