"""Scans serialized change-data messages into columns, without a Python object per entry.

Owns the wire grammar of ``cdcpb.ChangeDataEvent`` (see ``source/proto/cdc.proto``). A message is walked twice by one kernel: the first
pass counts and checks, the second fills. Every read is checked against the end of the field that encloses it, so truncated or mutated
bytes give ``DECODE_FAILED``: never a crash, a hang or bytes of a neighbour. Unknown fields are skipped, as protobuf does; groups,
an event with two different bodies and unknown entry types are refused, because no store sends them. Key, value and old value stay
where they are: the columns hold offsets into the message. The helpers of the kernel get addresses instead of arrays, see
``kernels/memory.py``. Runs in the log service.
"""

# ruff: noqa: C901, PLR0911, PLR0912, PLR1714, SIM109 - kernels are flat on purpose, and numba compares numbers faster than it builds sets

from __future__ import annotations

import msgspec
import numpy as np

from penstock.kernels.jit import I64, U8, U64, kernel, short_kernel
from penstock.kernels.memory import load_u8, signed, store_u64
from penstock.model.errors import PenstockError

KIND_NONE = 0
KIND_ENTRIES = 3
KIND_ERROR = 5
KIND_RESOLVED = 6
"""What an event carries; the numbers are those of the fields."""

PREWRITE, COMMIT, ROLLBACK, COMMITTED, INITIALIZED = 1, 2, 3, 4, 5
OP_UNKNOWN, OP_DELETE = 0, 2

START_TS, COMMIT_TS, TYPE, OP, KEY_OFF, KEY_LEN, VALUE_OFF, VALUE_LEN, OLD_OFF, OLD_LEN = range(10)
"""Columns of ``ScannedMessage.rows``; a ts is the signed number with the same bits."""
ROW_WORDS = 10
REGION, REQUEST, KIND, RESOLVED, ERROR_OFF, ERROR_LEN, ENTRY_FROM, ENTRY_TO = range(8)
"""Columns of ``ScannedMessage.events``."""
EVENT_WORDS = 8


GIL_HELD_BYTES_MAX = 4096
"""For smaller input kernels hold the GIL, see ``short_kernel``."""


class ScannedMessage(msgspec.Struct, frozen=True):
    """One message as two tables: its events, and the entries of all of them. Event ``i`` owns the rows from ENTRY_FROM to ENTRY_TO."""

    payload: bytes
    data: U8
    events: U64
    rows: I64
    batch_ts: int
    batch_request_id: int
    batch_regions: U64
    """The batched resolved ts; no regions where the message has none."""

    def error_bytes(self, event: int) -> bytes:
        """Return the serialized error of an event of kind ``KIND_ERROR``."""
        at = int(self.events[event, ERROR_OFF])
        return self.payload[at : at + int(self.events[event, ERROR_LEN])]


def scan_message(payload: bytes) -> ScannedMessage:
    """Scan one serialized ``ChangeDataEvent``; raises ``DECODE_FAILED``."""
    data = np.frombuffer(payload, dtype=np.uint8)
    scan = _scan_message if len(payload) > GIL_HELD_BYTES_MAX else _scan_message_holding_gil
    failure, events, rows, regions, batch_ts, batch_request_id = scan(data)
    if failure:
        raise PenstockError("DECODE_FAILED", f"change-data message of {len(payload)} bytes: {_FAILURES[failure]}")
    return ScannedMessage(payload, data, events, rows, int(batch_ts), int(batch_request_id), regions)


_FAILURES = {
    1: "a varint is truncated or too long",
    2: "a field reaches beyond the message that encloses it",
    3: "a field has number 0 or an unknown wire type",
    4: "an event has two different bodies",
    5: "an entry has an unknown type or operation",
}

_Scanned = tuple[int, U64, I64, U64, np.uint64, np.uint64]
_ROW_BYTES = ROW_WORDS * 8
_EVENT_BYTES = EVENT_WORDS * 8

# The kernels pass a position in and out as a signed number: a negative one is the failure's number. An address of 0 means: only count.


@kernel
def _varint(base: int, pos: int, end: int) -> tuple[np.uint64, int]:
    """Read a varint; return (value, next position)."""
    value = np.uint64(0)
    shift = np.uint64(0)
    stop = min(end, pos + 10)
    while pos < stop:
        byte = np.uint64(load_u8(np.uint64(base + pos)))
        pos += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            return np.uint64(0), signed(-1)
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return value, pos
        shift += np.uint64(7)
    return np.uint64(0), signed(-1)


@kernel
def _tag(base: int, pos: int, end: int) -> tuple[int, int, int]:
    """Read a field's tag; return (field number, wire type, next position)."""
    tag, pos = _varint(base, pos, end)
    if pos < 0:
        return 0, 0, pos
    if tag >= np.uint64(1 << 32) or tag < np.uint64(8):
        return 0, 0, -3
    return signed(tag >> np.uint64(3)), signed(tag & np.uint64(7)), pos


@kernel
def _length(base: int, pos: int, end: int) -> tuple[int, int]:
    """Read a length prefix; return (start of the content, its end), the start negative on failure."""
    size, pos = _varint(base, pos, end)
    if pos < 0:
        return pos, pos
    if size > np.uint64(end - pos):
        return -2, -2
    return pos, pos + signed(size)


@kernel
def _skip(base: int, pos: int, end: int, wire: int) -> int:
    """Step over a field's value."""
    if wire == 0:
        _, pos = _varint(base, pos, end)
        return pos
    if wire == 2:
        start, stop = _length(base, pos, end)
        return start if start < 0 else stop
    if wire == 1 or wire == 5:
        pos += 8 if wire == 1 else 4
        return pos if pos <= end else -2
    return -3


@kernel
def _scan_row(base: int, pos: int, end: int, row: int) -> int:
    """Scan one ``Event.Row`` into the ten words at an address; return 0 or the failure."""
    start_ts = np.uint64(0)
    commit_ts = np.uint64(0)
    kind = np.uint64(0)
    op = np.uint64(0)
    for word in range(KEY_OFF, ROW_WORDS):
        store_u64(np.uint64(row + word * 8), np.uint64(0))
    while pos < end:
        field, wire, pos = _tag(base, pos, end)
        if pos < 0:
            return -pos
        if wire == 0 and field <= 4:
            value, pos = _varint(base, pos, end)
            if pos < 0:
                return -pos
            if field == 1:
                start_ts = value
            elif field == 2:
                commit_ts = value
            elif field == 3:
                kind = value
            else:
                op = value
        elif wire == 2 and 5 <= field <= 7:
            start, stop = _length(base, pos, end)
            if start < 0:
                return -start
            place = row + (KEY_OFF + 2 * (field - 5)) * 8
            store_u64(np.uint64(place), np.uint64(start))
            store_u64(np.uint64(place + 8), np.uint64(stop - start))
            pos = stop
        else:
            pos = _skip(base, pos, end, wire)
            if pos < 0:
                return -pos
    if kind < np.uint64(1) or kind > np.uint64(5) or op > np.uint64(2):
        return 5
    store_u64(np.uint64(row), start_ts)
    store_u64(np.uint64(row + 8), commit_ts)
    store_u64(np.uint64(row + 16), kind)
    store_u64(np.uint64(row + 24), op)
    return 0


@kernel
def _scan_entries(base: int, pos: int, end: int, rows: int) -> tuple[int, int]:
    """Scan one ``Event.Entries``; return (failure, number of rows)."""
    count = 0
    while pos < end:
        field, wire, pos = _tag(base, pos, end)
        if pos < 0:
            return -pos, count
        if field == 1 and wire == 2:
            start, stop = _length(base, pos, end)
            if start < 0:
                return -start, count
            # The first pass counts rows by their lengths; what is in them is looked at, and checked, once.
            if rows != 0:
                failure = _scan_row(base, start, stop, rows + count * _ROW_BYTES)
                if failure:
                    return failure, count
            count += 1
            pos = stop
        else:
            pos = _skip(base, pos, end, wire)
            if pos < 0:
                return -pos, count
    return 0, count


@kernel
def _scan_event(base: int, pos: int, end: int, event: int, rows: int, first: int) -> tuple[int, int]:
    """Scan one ``Event`` whose rows are numbered from ``first``; return (failure, number of rows)."""
    kind = KIND_NONE
    count = 0
    region = np.uint64(0)
    request = np.uint64(0)
    resolved = np.uint64(0)
    error_off = 0
    error_len = 0
    while pos < end:
        field, wire, pos = _tag(base, pos, end)
        if pos < 0:
            return -pos, count
        is_body = (wire == 2 and (field == KIND_ENTRIES or field == KIND_ERROR)) or (wire == 0 and field == KIND_RESOLVED)
        if is_body:
            # Protobuf lets the last body win, and merges two errors; a store sends one.
            if kind != KIND_NONE and (kind != field or field == KIND_ERROR):
                return 4, count
            kind = field
        if wire == 2 and (field == KIND_ENTRIES or field == KIND_ERROR):
            start, stop = _length(base, pos, end)
            if start < 0:
                return -start, count
            if field == KIND_ENTRIES:
                failure, more = _scan_entries(base, start, stop, rows + count * _ROW_BYTES if rows != 0 else rows)
                if failure:
                    return failure, count
                count += more
            else:
                error_off = start
                error_len = stop - start
            pos = stop
        elif wire == 0:
            value, pos = _varint(base, pos, end)
            if pos < 0:
                return -pos, count
            if field == 1:
                region = value
            elif field == 7:
                request = value
            elif field == KIND_RESOLVED:
                resolved = value
        else:
            pos = _skip(base, pos, end, wire)
            if pos < 0:
                return -pos, count
    if event != 0:
        store_u64(np.uint64(event), region)
        store_u64(np.uint64(event + 8), request)
        store_u64(np.uint64(event + 16), np.uint64(kind))
        store_u64(np.uint64(event + 24), resolved)
        store_u64(np.uint64(event + 32), np.uint64(error_off))
        store_u64(np.uint64(event + 40), np.uint64(error_len))
        store_u64(np.uint64(event + 48), np.uint64(first))
        store_u64(np.uint64(event + 56), np.uint64(first + count))
    return 0, count


@kernel
def _scan_resolved(base: int, pos: int, end: int, regions: int, ts: np.uint64, request: np.uint64) -> tuple[int, int, np.uint64, np.uint64]:
    """Scan the batched ``ResolvedTs``, whose regions may be packed or not; return (failure, number of regions, ts, request id)."""
    count = 0
    while pos < end:
        field, wire, pos = _tag(base, pos, end)
        if pos < 0:
            return -pos, count, ts, request
        if field == 1 and (wire == 2 or wire == 0):
            stop = end
            if wire == 2:
                pos, stop = _length(base, pos, end)
                if pos < 0:
                    return -pos, count, ts, request
            while wire == 0 or pos < stop:
                value, pos = _varint(base, pos, stop)
                if pos < 0:
                    return -pos, count, ts, request
                if regions != 0:
                    store_u64(np.uint64(regions + count * 8), value)
                count += 1
                if wire == 0:
                    break
        elif wire == 0 and (field == 2 or field == 3):
            value, pos = _varint(base, pos, end)
            if pos < 0:
                return -pos, count, ts, request
            if field == 2:
                ts = value
            else:
                request = value
        else:
            pos = _skip(base, pos, end, wire)
            if pos < 0:
                return -pos, count, ts, request
    return 0, count, ts, request


@kernel
def _scan(base: int, size: int, events: int, rows: int, regions: int) -> tuple[int, int, int, int, np.uint64, np.uint64]:
    """Walk a whole message; return (failure, events, rows, regions, ts, request id)."""
    pos = signed(0)
    event_count = 0
    row_count = 0
    region_count = 0
    ts = np.uint64(0)
    request = np.uint64(0)
    while pos < size:
        field, wire, pos = _tag(base, pos, size)
        if pos < 0:
            return -pos, event_count, row_count, region_count, ts, request
        if wire == 2 and (field == 1 or field == 2):
            start, stop = _length(base, pos, size)
            if start < 0:
                return -start, event_count, row_count, region_count, ts, request
            if field == 1:
                event = events + event_count * _EVENT_BYTES if events != 0 else events
                its_rows = rows + row_count * _ROW_BYTES if rows != 0 else rows
                failure, more = _scan_event(base, start, stop, event, its_rows, row_count)
                event_count += 1
                row_count += more
            else:
                its_regions = regions + region_count * 8 if regions != 0 else regions
                failure, more, ts, request = _scan_resolved(base, start, stop, its_regions, ts, request)
                region_count += more
            if failure:
                return failure, event_count, row_count, region_count, ts, request
            pos = stop
        else:
            pos = _skip(base, pos, size, wire)
            if pos < 0:
                return -pos, event_count, row_count, region_count, ts, request
    return 0, event_count, row_count, region_count, ts, request


@kernel
def _scan_message(data: U8) -> _Scanned:
    """Count, allocate, fill; return (failure, events, rows, regions, ts, request id)."""
    base = signed(data.ctypes.data)
    size = signed(len(data))
    nowhere = signed(0)
    failure, event_count, row_count, region_count, ts, request = _scan(base, size, nowhere, nowhere, nowhere)
    if failure:
        event_count = row_count = region_count = 0
    # One more than needed, so that no address is that of an empty array.
    events = np.empty((event_count + 1, EVENT_WORDS), dtype=np.uint64)
    rows = np.empty((row_count + 1, ROW_WORDS), dtype=np.int64)
    regions = np.empty(region_count + 1, dtype=np.uint64)
    if not failure:
        at_events, at_rows, at_regions = signed(events.ctypes.data), signed(rows.ctypes.data), signed(regions.ctypes.data)
        failure, _, _, _, ts, request = _scan(base, size, at_events, at_rows, at_regions)
    return failure, events[:event_count], rows[:row_count], regions[:region_count], ts, request


@short_kernel
def _scan_message_holding_gil(data: U8) -> _Scanned:
    """Do the same, for a small message."""
    return _scan_message(data)
