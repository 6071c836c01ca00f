"""Scans serialized change-data messages into columns, without a Python object per entry.

Owns the wire grammar of ``cdcpb.ChangeDataEvent`` (see ``source/proto/cdc.proto``). A message is walked twice by one kernel: the first
pass counts and checks, the second fills. Every read is checked against the end of the field that encloses it, so truncated or mutated
bytes give ``DECODE_FAILED``: never a crash, a hang or bytes of a neighbour. Unknown fields are skipped, as protobuf does; groups,
an event with two different bodies and unknown entry types are refused, because no store sends them. Key, value and old value stay
where they are: the columns hold offsets into the message. Runs in the log service.
"""

# ruff: noqa: C901, PLR0911, PLR0912, PLR1714 - kernels are flat on purpose, and numba compares numbers faster than it builds sets

from __future__ import annotations

from typing import Any

import msgspec
import numba
import numpy as np
import numpy.typing as npt

from penstock.model.errors import PenstockError
from penstock.puller.raw_memory import load_u8

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

KIND_NONE = 0
KIND_ENTRIES = 3
KIND_ERROR = 5
KIND_RESOLVED = 6
"""What an event carries; the numbers are those of the fields."""

PREWRITE, COMMIT, ROLLBACK, COMMITTED, INITIALIZED = 1, 2, 3, 4, 5
OP_UNKNOWN, OP_PUT, OP_DELETE = 0, 1, 2

KEY_OFF, KEY_LEN, VALUE_OFF, VALUE_LEN, OLD_OFF, OLD_LEN = 0, 1, 2, 3, 4, 5
"""Columns of ``ScannedMessage.places``."""


class ScannedMessage(msgspec.Struct, frozen=True):
    """One message as columns. Event ``i`` owns the entries ``entry_from[i]:entry_from[i + 1]``."""

    payload: bytes
    data: U8
    region_id: U64
    request_id: U64
    kind: U8
    resolved_ts: U64
    error_off: I64
    error_len: I64
    entry_from: I64
    start_ts: U64
    commit_ts: U64
    type: U8
    op: U8
    places: I64
    """Per entry: offset and length of key, value and old value in the message."""
    batch_ts: int
    batch_request_id: int
    batch_regions: U64
    """The batched resolved ts; no regions where the message has none."""

    @property
    def events(self) -> int:
        """Return how many region events the message holds."""
        return len(self.region_id)

    def error_bytes(self, event: int) -> bytes:
        """Return the serialized error of an event of kind ``KIND_ERROR``."""
        at = int(self.error_off[event])
        return self.payload[at : at + int(self.error_len[event])]


def scan_message(payload: bytes) -> ScannedMessage:
    """Scan one serialized ``ChangeDataEvent``; raises ``DECODE_FAILED``."""
    data = np.frombuffer(payload, dtype=np.uint8)
    base, size = np.int64(data.ctypes.data), np.int64(len(data))
    counts = np.zeros(3, dtype=np.int64)
    empty = _Columns(0, 0, 0)
    batch = np.zeros(2, dtype=np.uint64)
    _check(_scan(base, size, counts, False, batch, *empty.arrays()), payload)
    columns = _Columns(int(counts[0]), int(counts[1]), int(counts[2]))
    _check(_scan(base, size, counts, True, batch, *columns.arrays()), payload)
    return ScannedMessage(
        payload=payload,
        data=data,
        region_id=columns.event_u64[:, 0],
        request_id=columns.event_u64[:, 1],
        kind=columns.kind,
        resolved_ts=columns.event_u64[:, 2],
        error_off=columns.event_i64[:-1, 0],
        error_len=columns.event_i64[:-1, 1],
        entry_from=columns.event_i64[:, 2],
        start_ts=columns.entry_u64[:, 0],
        commit_ts=columns.entry_u64[:, 1],
        type=columns.entry_u8[:, 0],
        op=columns.entry_u8[:, 1],
        places=columns.places,
        batch_ts=int(batch[0]),
        batch_request_id=int(batch[1]),
        batch_regions=columns.regions,
    )


class _Columns:
    """The arrays that the kernel fills."""

    def __init__(self, events: int, entries: int, regions: int) -> None:
        self.event_u64 = np.zeros((events, 3), dtype=np.uint64)
        self.event_i64 = np.zeros((events + 1, 3), dtype=np.int64)
        self.kind = np.zeros(events, dtype=np.uint8)
        self.entry_u64 = np.zeros((entries, 2), dtype=np.uint64)
        self.entry_u8 = np.zeros((entries, 2), dtype=np.uint8)
        self.places = np.zeros((entries, 6), dtype=np.int64)
        self.regions = np.zeros(regions, dtype=np.uint64)

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return (self.event_u64, self.event_i64, self.kind, self.entry_u64, self.entry_u8, self.places, self.regions)


_FAILURES = {
    1: "a varint is truncated or too long",
    2: "a field reaches beyond the message that encloses it",
    3: "a field has number 0 or an unknown wire type",
    4: "an event has two different bodies",
    5: "an entry has an unknown type or operation",
}


def _check(failure: int, payload: bytes) -> None:
    if failure:
        raise PenstockError("DECODE_FAILED", f"change-data message of {len(payload)} bytes: {_FAILURES[failure]}")


# The kernels pass a position in and out as a signed number: a negative one is the failure's number.


@numba.njit(nogil=True, cache=True)
def _varint(base, pos, end):  # type: ignore[no-untyped-def]
    """Read a varint; return (value, next position)."""
    value = np.uint64(0)
    shift = np.uint64(0)
    stop = min(end, pos + 10)
    while pos < stop:
        byte = np.uint64(load_u8(np.uintp(base + pos)))
        pos += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            return np.uint64(0), np.int64(-1)
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return value, pos
        shift += np.uint64(7)
    return np.uint64(0), np.int64(-1)


@numba.njit(nogil=True, cache=True)
def _tag(base, pos, end):  # type: ignore[no-untyped-def]
    """Read a field's tag; return (field number, wire type, next position)."""
    tag, pos = _varint(base, pos, end)
    if pos < 0:
        return 0, 0, pos
    if tag >= np.uint64(1 << 32) or tag < np.uint64(8):
        return 0, 0, -3
    return np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7)), pos


@numba.njit(nogil=True, cache=True)
def _length(base, pos, end):  # type: ignore[no-untyped-def]
    """Read a length prefix; return (start of the content, its end), the start negative on failure."""
    size, pos = _varint(base, pos, end)
    if pos < 0:
        return pos, pos
    if size > np.uint64(end - pos):
        return -2, -2
    return pos, pos + np.int64(size)


@numba.njit(nogil=True, cache=True)
def _skip(base, pos, end, wire):  # type: ignore[no-untyped-def]
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


@numba.njit(nogil=True, cache=True)
def _scan_row(base, pos, end, at, entry_u64, entry_u8, places):  # type: ignore[no-untyped-def]
    """Scan one ``Event.Row``; return 0 or the failure."""
    kind = np.uint64(0)
    op = np.uint64(0)
    while pos < end:
        field, wire, pos = _tag(base, pos, end)
        if pos < 0:
            return -pos
        if wire == 0 and field <= 4:
            value, pos = _varint(base, pos, end)
            if pos < 0:
                return -pos
            if field == 3:
                kind = value
            elif field == 4:
                op = value
            else:
                entry_u64[at, field - 1] = value
        elif wire == 2 and 5 <= field <= 7:
            start, stop = _length(base, pos, end)
            if start < 0:
                return -start
            places[at, 2 * (field - 5)] = start
            places[at, 2 * (field - 5) + 1] = stop - start
            pos = stop
        else:
            pos = _skip(base, pos, end, wire)
            if pos < 0:
                return -pos
    if kind < np.uint64(1) or kind > np.uint64(5) or op > np.uint64(2):
        return 5
    entry_u8[at, 0] = kind
    entry_u8[at, 1] = op
    return 0


@numba.njit(nogil=True, cache=True)
def _scan_entries(base, pos, end, fill, counts, entry_u64, entry_u8, places):  # type: ignore[no-untyped-def]
    """Scan one ``Event.Entries``."""
    while pos < end:
        field, wire, pos = _tag(base, pos, end)
        if pos < 0:
            return -pos
        if field == 1 and wire == 2:
            start, stop = _length(base, pos, end)
            if start < 0:
                return -start
            # The first pass counts rows by their lengths; what is in them is looked at, and checked, once.
            if fill:
                failure = _scan_row(base, start, stop, counts[1], entry_u64, entry_u8, places)
                if failure:
                    return failure
            counts[1] += 1
            pos = stop
        else:
            pos = _skip(base, pos, end, wire)
            if pos < 0:
                return -pos
    return 0


@numba.njit(nogil=True, cache=True)
def _scan_event(base, pos, end, fill, counts, event_u64, event_i64, kinds, entry_u64, entry_u8, places):  # type: ignore[no-untyped-def]
    """Scan one ``Event``."""
    at = counts[0]
    kind = 0
    while pos < end:
        field, wire, pos = _tag(base, pos, end)
        if pos < 0:
            return -pos
        is_body = (wire == 2 and (field == 3 or field == 5)) or (wire == 0 and field == 6)
        if is_body:
            # Protobuf lets the last body win, and merges two errors; a store sends one.
            if kind != 0 and (kind != field or field == 5):
                return 4
            kind = field
        if wire == 2 and (field == 3 or field == 5):
            start, stop = _length(base, pos, end)
            if start < 0:
                return -start
            if field == 3:
                failure = _scan_entries(base, start, stop, fill, counts, entry_u64, entry_u8, places)
                if failure:
                    return failure
            elif fill:
                event_i64[at, 0] = start
                event_i64[at, 1] = stop - start
            pos = stop
        elif wire == 0:
            value, pos = _varint(base, pos, end)
            if pos < 0:
                return -pos
            if fill:
                if field == 1:
                    event_u64[at, 0] = value
                elif field == 7:
                    event_u64[at, 1] = value
                elif field == 6:
                    event_u64[at, 2] = value
        else:
            pos = _skip(base, pos, end, wire)
            if pos < 0:
                return -pos
    if fill:
        kinds[at] = kind
        event_i64[at + 1, 2] = counts[1]
    counts[0] += 1
    return 0


@numba.njit(nogil=True, cache=True)
def _scan_resolved(base, pos, end, fill, counts, batch, regions):  # type: ignore[no-untyped-def]
    """Scan the batched ``ResolvedTs``; regions may be packed or not."""
    while pos < end:
        field, wire, pos = _tag(base, pos, end)
        if pos < 0:
            return -pos
        if field == 1 and (wire == 2 or wire == 0):
            stop = pos
            if wire == 2:
                pos, stop = _length(base, pos, end)
                if pos < 0:
                    return -pos
            while True:
                if wire == 2 and pos >= stop:
                    break
                value, pos = _varint(base, pos, stop if wire == 2 else end)
                if pos < 0:
                    return -pos
                if fill:
                    regions[counts[2]] = value
                counts[2] += 1
                if wire == 0:
                    break
        elif wire == 0 and (field == 2 or field == 3):
            value, pos = _varint(base, pos, end)
            if pos < 0:
                return -pos
            batch[field - 2] = value
        else:
            pos = _skip(base, pos, end, wire)
            if pos < 0:
                return -pos
    return 0


@numba.njit(nogil=True, cache=True)
def _scan(base, size, counts, fill, batch, event_u64, event_i64, kinds, entry_u64, entry_u8, places, regions):  # type: ignore[no-untyped-def]
    """Walk a whole message; count, or fill arrays of the counted sizes. Returns 0 or the failure."""
    counts[:] = 0
    batch[:] = 0
    pos = np.int64(0)
    end = size
    while pos < end:
        field, wire, pos = _tag(base, pos, end)
        if pos < 0:
            return -pos
        if wire == 2 and (field == 1 or field == 2):
            start, stop = _length(base, pos, end)
            if start < 0:
                return -start
            if field == 1:
                failure = _scan_event(base, start, stop, fill, counts, event_u64, event_i64, kinds, entry_u64, entry_u8, places)
            else:
                failure = _scan_resolved(base, start, stop, fill, counts, batch, regions)
            if failure:
                return failure
            pos = stop
        else:
            pos = _skip(base, pos, end, wire)
            if pos < 0:
                return -pos
    return 0
