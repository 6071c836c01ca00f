"""Framing of a replication stream: a kernel walks protocol messages and notes where rows and transactions stand.

The kernel takes Begin, Commit, Insert, Update, Delete and keepalives by itself, many thousands at a call, and stops before anything that
is rare (relations, truncate, stream control, errors), which Python reads. Every bound is checked: bytes that make no sense give the status
BAD and the place, never a row. Runs in the log service.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np

from penstock.kernels.jit import I64, U8, kernel
from penstock.model.errors import PenstockError

MORE, FULL, SPECIAL, BAD = 0, 1, 2, 3
"""Why a scan ended: bytes are missing, outputs are full, a message for Python, or bytes that make no sense."""
STATUS, ROWS, TXNS, OPEN, WAL_END, SENT_US, REPLY, KEEPALIVES = range(8)
STATE_SLOTS = 8
REL, OP, OLD_KIND, OLD_AT, NEW_AT, END, TXN, XID = range(8)
ROW_SLOTS = 8
COMMIT_US, END_LSN, FIRST_ROW, FINAL_LSN = range(4)
TXN_SLOTS = 4
INSERT, UPDATE, DELETE = 0, 1, 2
NO_OLD, OLD_KEY, OLD_FULL = 0, 1, 2
FRAME_BYTES = 5
MESSAGE_BYTES_MAX = 1 << 30
"""A server cannot put more together; a message that says so is refused before its bytes are waited for."""
XLOG_BYTES = 25
"""What stands before a pgoutput message inside CopyData: ``w``, start, end, send time."""
POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01 in microseconds since the Unix epoch."""


class RelationColumn(msgspec.Struct, frozen=True):
    """A column as a Relation message describes it."""

    name: str
    type_oid: int
    typmod: int
    in_identity: bool


class Relation(msgspec.Struct, frozen=True):
    """A Relation message: the shape of the rows that follow."""

    oid: int
    schema: str
    table: str
    identity: str
    """``d`` default, ``f`` full, ``i`` index, ``n`` nothing."""
    columns: tuple[RelationColumn, ...]


def read_relation(body: bytes) -> Relation:
    """Read a Relation message, without its type byte and, in a stream, without its xid."""
    try:
        oid = int.from_bytes(body[:4], "big")
        schema_end = body.index(0, 4)
        table_end = body.index(0, schema_end + 1)
        identity, count = chr(body[table_end + 1]), int.from_bytes(body[table_end + 2 : table_end + 4], "big")
        at, columns = table_end + 4, []
        for _ in range(count):
            flags = body[at]
            name_end = body.index(0, at + 1)
            type_oid, typmod = struct.unpack_from("!Ii", body, name_end + 1)
            columns.append(RelationColumn(body[at + 1 : name_end].decode(), type_oid, typmod, bool(flags & 1)))
            at = name_end + 9
        schema = body[4:schema_end].decode() or "pg_catalog"
        relation = Relation(oid, schema, body[schema_end + 1 : table_end].decode(), identity, tuple(columns))
    except (ValueError, IndexError, struct.error) as error:
        raise PenstockError("DECODE_FAILED", "a malformed Relation message") from error
    if at != len(body):
        raise PenstockError("DECODE_FAILED", "a Relation message with bytes after its end")
    return relation


def read_truncate(body: bytes) -> tuple[int, ...]:
    """Return the oids of a Truncate message, without its type byte and xid."""
    count = int.from_bytes(body[:4], "big")
    if len(body) != 5 + 4 * count:
        raise PenstockError("DECODE_FAILED", "a malformed Truncate message")
    return tuple(int.from_bytes(body[5 + 4 * i : 9 + 4 * i], "big") for i in range(count))


@kernel
def u32(buf: U8, at: int) -> Any:
    """Return four bytes as a number."""
    return (np.int64(buf[at]) << 24) | (np.int64(buf[at + 1]) << 16) | (np.int64(buf[at + 2]) << 8) | np.int64(buf[at + 3])


@kernel
def _i64(buf: U8, at: int) -> Any:
    value = np.int64(0)
    for k in range(8):
        value = (value << 8) | np.int64(buf[at + k])
    return value


@kernel
def tuple_end(buf: U8, at: int, end: int) -> int:
    """Return where the tuple that begins here ends, or -1 where it does not fit."""
    if at + 2 > end:
        return -1
    count = (np.int64(buf[at]) << 8) | np.int64(buf[at + 1])
    at += 2
    for _ in range(count):
        if at >= end:
            return -1
        kind = buf[at]
        at += 1
        if kind == 116 or kind == 98:  # noqa: PLR1714 - numba compares numbers faster than it searches sets
            if at + 4 > end:
                return -1
            length = u32(buf, at)
            at += 4 + length
            if at > end:
                return -1
        elif kind not in (110, 117):
            return -1
    return at


@kernel
def scan(buf: U8, at: int, end: int, in_stream: bool, state: I64, rows: I64, txns: I64) -> int:  # noqa: C901, PLR0911, PLR0912, PLR0915
    """Walk messages from ``at``; fill ``rows`` and ``txns`` from where ``state`` says; return where it stopped."""
    while True:
        if at + 5 > end:
            state[STATUS] = MORE
            return at
        length = u32(buf, at + 1)
        after = at + 1 + length
        if length < 4 or length > MESSAGE_BYTES_MAX:
            state[STATUS] = BAD
            return at
        if after > end:
            state[STATUS] = MORE
            return at
        if buf[at] != 100 or length < 5:
            state[STATUS] = SPECIAL
            return at
        body = at + 5
        if buf[body] == 107:
            if after - body != 18:
                state[STATUS] = BAD
                return at
            state[WAL_END] = _i64(buf, body + 1)
            state[SENT_US] = _i64(buf, body + 9)
            if buf[body + 17]:
                state[REPLY] = 1
            state[KEEPALIVES] += 1
            at = after
            continue
        if buf[body] != 119 or after - body < 26:
            state[STATUS] = BAD
            return at
        msg = body + 25
        kind = buf[msg]
        if kind == 66:
            if after - msg != 21 or state[OPEN] != 0 or in_stream:
                state[STATUS] = BAD
                return at
            count = state[TXNS]
            if count == txns.shape[0]:
                state[STATUS] = FULL
                return at
            txns[count, COMMIT_US] = _i64(buf, msg + 9)
            txns[count, END_LSN] = -1
            txns[count, FINAL_LSN] = _i64(buf, msg + 1)
            txns[count, FIRST_ROW] = state[ROWS]
            state[TXNS] = count + 1
            state[OPEN] = 1
            at = after
            continue
        if kind == 67:
            if after - msg != 26 or state[OPEN] == 0 or in_stream:
                state[STATUS] = BAD
                return at
            txns[state[TXNS] - 1, END_LSN] = _i64(buf, msg + 10)
            state[OPEN] = 0
            at = after
            continue
        if kind != 73 and kind != 85 and kind != 68:  # noqa: PLR1714
            state[STATUS] = SPECIAL
            return at
        if state[OPEN] == 0:
            state[STATUS] = BAD
            return at
        row = state[ROWS]
        if row == rows.shape[0]:
            state[STATUS] = FULL
            return at
        p = msg + 1
        rows[row, XID] = 0
        if in_stream:
            if p + 4 > after:
                state[STATUS] = BAD
                return at
            rows[row, XID] = u32(buf, p)
            p += 4
        if p + 5 > after:
            state[STATUS] = BAD
            return at
        rows[row, REL] = u32(buf, p)
        p += 4
        rows[row, OLD_KIND] = NO_OLD
        rows[row, OLD_AT] = -1
        rows[row, NEW_AT] = -1
        if buf[p] == 75 or buf[p] == 79:
            if kind == 73:
                state[STATUS] = BAD
                return at
            rows[row, OLD_KIND] = OLD_KEY if buf[p] == 75 else OLD_FULL
            rows[row, OLD_AT] = p + 1
            p = tuple_end(buf, p + 1, after)
            if p < 0 or (kind == 68 and p != after) or (kind == 85 and p >= after):
                state[STATUS] = BAD
                return at
        elif kind == 68:
            state[STATUS] = BAD
            return at
        if kind != 68:
            if buf[p] != 78:
                state[STATUS] = BAD
                return at
            rows[row, NEW_AT] = p + 1
        rows[row, OP] = INSERT if kind == 73 else (UPDATE if kind == 85 else DELETE)
        rows[row, END] = after
        rows[row, TXN] = state[TXNS] - 1
        state[ROWS] = row + 1
        at = after


@kernel
def stream_end(buf: U8, at: int, end: int) -> tuple[int, int]:
    """Look for the Stream Stop message from ``at`` on; return MORE, SPECIAL (found) or BAD, and the place.

    Keepalives may stand between the messages of a stream.
    """
    while True:
        if at + 5 > end:
            return MORE, at
        length = u32(buf, at + 1)
        if length < 5 or length > MESSAGE_BYTES_MAX or buf[at] != 100:
            return BAD, at
        if at + 1 + length > end:
            return MORE, at
        if buf[at + 5] == 119 and length >= 4 + 26 and buf[at + 5 + 25] == 69:
            return SPECIAL, at
        at += 1 + length
