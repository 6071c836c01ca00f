"""Change-stream messages as bytes: log records to the wire format of ``cdcpb.ChangeDataEvent`` without an object per row.

Rows are written by a kernel that measures, then fills; the few bytes around them (event, message) are put together here. What a protobuf
library reads from the bytes is what it would have written: ``tests/unit/source/dataserver/service/test_wire.py`` compares both. Runs in
the data server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.kernels.jit import I64, U8, U64, binary_view, kernel
from penstock.source.dataserver.engine.ranges import LogKind, LogRecord

COMMITTED = 4
INITIALIZED_ROW = b"\x0a\x02\x18\x05"
"""A repeated row that holds nothing but the type INITIALIZED."""

_PUT, _DELETE = 1, 2
_TAG_REGION, _TAG_INDEX, _TAG_ENTRIES, _TAG_REQUEST = b"\x08", b"\x10", b"\x1a", b"\x38"
_TAG_EVENTS = b"\x0a"


def encode_rows(records: Sequence[LogRecord], start_key: bytes, end_key: bytes, with_old: bool, scanned: bool) -> tuple[bytes, int]:
    """Return the rows of records with keys in ``[start_key, end_key)`` as the content of an ``Entries`` message, and how many they are.

    A prewrite carries values, a commit or rollback only names its key, as in TiKV; a scanned record is COMMITTED and carries values.
    """
    counts = [len(r.keys) for r in records]
    kinds = np.repeat(np.array([COMMITTED if scanned and r.kind == LogKind.COMMIT else r.kind for r in records], dtype=np.uint8), counts)
    start_ts = np.repeat(np.array([r.start_ts for r in records], dtype=np.uint64), counts)
    commit_ts = np.repeat(np.array([r.commit_ts for r in records], dtype=np.uint64), counts)
    keys, key_offsets = binary_view(_column([r.keys for r in records]))
    value_array = _column([r.values for r in records])
    values, value_offsets = binary_view(value_array)
    olds, old_offsets = binary_view(_column([r.olds for r in records]))
    ops = np.where(value_array.is_null().to_numpy(zero_copy_only=False), _DELETE, _PUT).astype(np.uint8)
    lower, upper = np.frombuffer(start_key, dtype=np.uint8), np.frombuffer(end_key, dtype=np.uint8)
    sizes = np.zeros(len(kinds), dtype=np.int64)
    total = _measure_rows(kinds, start_ts, commit_ts, keys, key_offsets, value_offsets, old_offsets, with_old, lower, upper, sizes)
    out = np.empty(total, dtype=np.uint8)
    _fill_rows(kinds, ops, start_ts, commit_ts, keys, key_offsets, values, value_offsets, olds, old_offsets, with_old, sizes, out)
    return out.tobytes(), int(np.count_nonzero(sizes))


def encode_event(region_id: int, request_id: int, index: int, entries: bytes) -> bytes:
    """Return a message with one event of one region around encoded rows."""
    event = _TAG_REGION + varint(region_id) + (_TAG_INDEX + varint(index) if index else b"")
    event += _TAG_ENTRIES + varint(len(entries))
    tail = _TAG_REQUEST + varint(request_id)
    return b"".join((_TAG_EVENTS, varint(len(event) + len(entries) + len(tail)), event, entries, tail))


def pieces(record: LogRecord, rows_max: int, bytes_max: int) -> Iterator[LogRecord]:
    """Yield a record in parts of bounded size; a single larger row passes alone."""
    rows = len(record.keys)
    step = min(rows_max, max(1, rows * bytes_max // max(1, record.nbytes)))
    if step >= rows:
        yield record
        return
    for at in range(0, rows, step):
        keys, values, olds = record.keys[at : at + step], record.values[at : at + step], record.olds[at : at + step]
        share = record.nbytes * len(keys) // rows
        yield LogRecord(record.kind, record.index, record.start_ts, record.commit_ts, keys, values, olds, share)


def varint(number: int) -> bytes:
    """Return an unsigned number as protobuf writes it."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _column(lists: Sequence[Sequence[bytes | None]]) -> pa.Array:
    if len(lists) == 1:
        return pa.array(lists[0], pa.binary())
    return pa.array([cell for cells in lists for cell in cells], pa.binary())


@kernel
def _varint_size(number: np.uint64) -> int:
    size = 1
    while number > np.uint64(127):
        number = number >> np.uint64(7)
        size += 1
    return size


@kernel
def _put_varint(out: U8, at: int, number: np.uint64) -> int:
    while number > np.uint64(127):
        out[at] = np.uint8(number & np.uint64(127)) | np.uint8(128)
        number = number >> np.uint64(7)
        at += 1
    out[at] = np.uint8(number)
    return at + 1


@kernel
def _put_bytes(out: U8, at: int, tag: int, data: U8, start: int, end: int) -> int:
    if start == end:
        return at
    out[at] = tag
    at = _put_varint(out, at + 1, np.uint64(end - start))
    for p in range(start, end):
        out[at] = data[p]
        at += 1
    return at


@kernel
def _bytes_size(length: int) -> int:
    return 0 if length == 0 else 1 + _varint_size(np.uint64(length)) + length


@kernel
def _below(data: U8, start: int, end: int, bound: U8) -> bool:
    """Return whether a key is smaller than a bound."""
    for p in range(min(end - start, len(bound))):
        if data[start + p] != bound[p]:
            return bool(data[start + p] < bound[p])
    return bool(end - start < len(bound))


@kernel
def _measure_rows(
    kinds: U8,
    start_ts: U64,
    commit_ts: U64,
    keys: U8,
    key_offsets: I64,
    value_offsets: I64,
    old_offsets: I64,
    with_old: bool,
    lower: U8,
    upper: U8,
    sizes: I64,
) -> int:
    """Set the size of each row (0: not chosen) and return that of all with their tags and lengths."""
    total = 0
    for row in range(len(kinds)):
        start, end = key_offsets[row], key_offsets[row + 1]
        if _below(keys, start, end, lower) or not _below(keys, start, end, upper):
            continue
        size = 4 + 1 + _varint_size(start_ts[row]) + _bytes_size(end - start)
        if commit_ts[row] != 0:
            size += 1 + _varint_size(commit_ts[row])
        if kinds[row] == 1 or kinds[row] == 4:
            size += _bytes_size(value_offsets[row + 1] - value_offsets[row])
            if with_old:
                size += _bytes_size(old_offsets[row + 1] - old_offsets[row])
        sizes[row] = size
        total += 1 + _varint_size(np.uint64(size)) + size
    return total


@kernel
def _fill_rows(
    kinds: U8,
    ops: U8,
    start_ts: U64,
    commit_ts: U64,
    keys: U8,
    key_offsets: I64,
    values: U8,
    value_offsets: I64,
    olds: U8,
    old_offsets: I64,
    with_old: bool,
    sizes: I64,
    out: U8,
) -> None:
    at = 0
    for row in range(len(kinds)):
        if sizes[row] == 0:
            continue
        out[at] = 0x0A
        at = _put_varint(out, at + 1, np.uint64(sizes[row]))
        out[at] = 0x08
        at = _put_varint(out, at + 1, start_ts[row])
        if commit_ts[row] != 0:
            out[at] = 0x10
            at = _put_varint(out, at + 1, commit_ts[row])
        out[at] = 0x18
        out[at + 1] = kinds[row]
        out[at + 2] = 0x20
        out[at + 3] = ops[row]
        at = _put_bytes(out, at + 4, 0x2A, keys, key_offsets[row], key_offsets[row + 1])
        if kinds[row] == 1 or kinds[row] == 4:
            at = _put_bytes(out, at, 0x32, values, value_offsets[row], value_offsets[row + 1])
            if with_old:
                at = _put_bytes(out, at, 0x3A, olds, old_offsets[row], old_offsets[row + 1])
