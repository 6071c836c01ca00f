"""Framing: the kernels between the socket and the row images.

``unpack`` takes the packets of the protocol apart, so that binlog events stand one behind the other as in a log file. ``scan`` goes over
events: it follows transactions, notes where each rows event of a wanted table begins, and stops at what only Python can understand (a
statement's text, an unknown table map, a new log file). Nothing here runs per event in Python. Runs in the log service.
"""

from __future__ import annotations

import numpy as np

from penstock.kernels.byte_ranges import same_range
from penstock.kernels.jit import I64, U8, kernel
from penstock.source.mysql.rows.texts import little_endian
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire.constants import (
    DELETE_ROWS_COMPRESSED_V1,
    DELETE_ROWS_V1,
    DUMMY_TABLE_ID,
    END_AT,
    GTID,
    HEADER_BYTES,
    KIND_AT,
    SIZE_AT,
    WRITE_ROWS_COMPRESSED_V1,
)

PIECE_BYTES = 32 << 20
"""A transaction is decoded in pieces that begin at the first rows event beyond a multiple of this many bytes of it, whosever rows."""

EVENT_BYTES_MAX = (1 << 30) + (1 << 20)
"""No server lets a packet be larger than 1 GiB, and an event little more; one that says so is refused before its bytes are waited for."""

# State of ``unpack``.
LEFT, CONTINUED = 0, 1
UNPACK_STATE = 2
PACKET_BYTES_MAX = 0xFFFFFF
MORE, REFUSED, ENDED = 0, 1, 2
"""What ``unpack`` says: go on, an error packet stands at the place, the server ended the stream."""

# State of ``scan``; everything of the transaction that is open.
OPEN, STANDALONE, TIME_MS, DOMAIN, SERVER, SEQUENCE, BEGAN, BYTES, CUT, ROWS_BEGAN, PIECE, UNDONE = range(12)
SCAN_STATE = 12

# Columns of the tables in which ``scan`` notes rows events and whole transactions, and of their counts.
ROW_TXN, ROW_SLOT, ROW_KIND, ROW_START, ROW_END, ROW_PIECE = range(6)
ROW_COLUMNS = 6
TXN_TIME_MS, TXN_DOMAIN, TXN_SERVER, TXN_SEQUENCE, TXN_AT, TXN_END, TXN_PIECE = range(7)
TXN_COLUMNS = 7
COUNT_ROWS, COUNT_TXNS = 0, 1

# Why ``scan`` stopped.
STOP_END, STOP_EVENT, STOP_TABLE, STOP_FULL, STOP_BAD, STOP_CUT, STOP_SID, STOP_CHECKSUM = range(8)

# What an event type asks for.
A_SKIP, A_ROWS, A_TABLE, A_MARIADB_GTID, A_GTID, A_XID, A_QUERY, A_PYTHON = range(8)


def _actions() -> U8:
    actions = np.full(256, A_PYTHON, dtype=np.uint8)
    for skipped in (
        *(wire.INTVAR, wire.RAND, wire.USER_VAR, wire.IGNORABLE, wire.ROWS_QUERY, wire.PREVIOUS_GTIDS, wire.STOP, wire.ANNOTATE_ROWS),
        *(wire.BINLOG_CHECKPOINT, wire.GTID_LIST, wire.START_ENCRYPTION, wire.TRANSACTION_CONTEXT, wire.VIEW_CHANGE),
        *(wire.APPEND_BLOCK, wire.DELETE_FILE, wire.BEGIN_LOAD_QUERY),
    ):
        actions[skipped] = A_SKIP
    for first in (wire.WRITE_ROWS_V1, wire.WRITE_ROWS_V2, wire.WRITE_ROWS_COMPRESSED_V1, wire.WRITE_ROWS_COMPRESSED):
        actions[first : first + 3] = A_ROWS
    actions[wire.TABLE_MAP] = A_TABLE
    actions[wire.MARIADB_GTID] = A_MARIADB_GTID
    actions[wire.GTID] = actions[wire.ANONYMOUS_GTID] = A_GTID
    actions[wire.XID] = A_XID
    actions[wire.QUERY] = A_QUERY
    return actions


ACTIONS = _actions()


@kernel
def unpack(raw: U8, raw_end: int, state: I64, out: U8, out_at: int) -> tuple[int, int, int]:
    """Copy the events out of packets; return how much of ``raw`` is used up, where the events end, and what to do."""
    at = 0
    while at < raw_end:
        if state[LEFT] > 0:
            count = min(state[LEFT], raw_end - at)
            out[out_at : out_at + count] = raw[at : at + count]
            at += count
            out_at += count
            state[LEFT] -= count
            continue
        fresh = state[CONTINUED] == 0
        if raw_end - at < (5 if fresh else 4):
            break
        length = little_endian(raw, at, 3)
        if fresh:
            if raw[at + 4] == 0xFF:
                return at, out_at, REFUSED
            if raw[at + 4] == 0xFE and length < 9:
                return at, out_at, ENDED
            at += 5
            state[LEFT] = length - 1
        else:
            at += 4
            state[LEFT] = length
        state[CONTINUED] = 1 if length == PACKET_BYTES_MAX else 0
    return at, out_at, MORE


def _crc_tables() -> I64:
    tables = np.zeros((8, 256), dtype=np.int64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        tables[0, byte] = value
    for byte in range(256):
        for table in range(1, 8):
            before = tables[table - 1, byte]
            tables[table, byte] = (before >> 8) ^ tables[0, before & 255]
    return tables


CRC_TABLES = _crc_tables()


@kernel
def crc32(data: U8, at: int, end: int, tables: I64) -> int:
    """Return the CRC-32 of bytes, eight at a time."""
    crc = 0xFFFFFFFF
    while end - at >= 8:
        low = little_endian(data, at, 4) ^ crc
        crc = (
            tables[7, low & 255]
            ^ tables[6, (low >> 8) & 255]
            ^ tables[5, (low >> 16) & 255]
            ^ tables[4, (low >> 24) & 255]
            ^ int(tables[3, data[at + 4]])
            ^ int(tables[2, data[at + 5]])
            ^ int(tables[1, data[at + 6]])
            ^ int(tables[0, data[at + 7]])
        )
        at += 8
    while at < end:
        crc = (crc >> 8) ^ tables[0, (crc ^ int(data[at])) & 255]
        at += 1
    return crc ^ 0xFFFFFFFF


@kernel
def table_slot(ids: I64, table_id: int) -> int:
    """Return where a table id stands, or its free place, in a table of open addresses (id + 1, 0 is free)."""
    mask = len(ids) - 1
    place = (table_id * 0x9E3779B1) & mask
    while ids[place] != 0 and ids[place] != table_id + 1:
        place = (place + 1) & mask
    return place


@kernel
def _open(state: I64, at: int, time_ms: int, rows: int) -> None:
    state[OPEN] = 1
    state[STANDALONE] = 0
    state[TIME_MS] = time_ms
    state[BEGAN] = at
    state[BYTES] = 0
    state[CUT] = 0
    state[PIECE] = 0
    state[ROWS_BEGAN] = rows


@kernel
def scan(  # noqa: C901, PLR0911, PLR0912, PLR0915 - one loop, because a call per event would cost more than the event
    events: U8,
    at: int,
    end: int,
    checksum: int,
    piece_bytes: int,
    actions: U8,
    crc_tables: I64,
    state: I64,
    ids: I64,
    id_slot: I64,
    maps: U8,
    map_from: I64,
    map_to: I64,
    wanted: U8,
    sids: U8,
    begin_text: U8,
    commit_text: U8,
    rows: I64,
    txns: I64,
    counts: I64,
) -> tuple[int, int]:
    """Scan whole events from ``at``; return where it stopped and why.

    ``rows`` gets (transaction, table slot, event type, start, end, piece) of each rows event of a wanted table; ``txns`` gets (commit
    time, domain, server, sequence, end in ``events``, end position, last piece) of each whole transaction; ``counts`` how many of both.
    The rows after the last whole transaction belong to the open one. One of several pieces is noted alone: the scan stops where its second
    piece begins while others are noted before it, and behind it.
    """
    while True:
        if end - at < HEADER_BYTES:
            return at, STOP_END
        size = little_endian(events, at + SIZE_AT, 4)
        if size < HEADER_BYTES + checksum or size > EVENT_BYTES_MAX:
            return at, STOP_BAD
        if end - at < size:
            return at, STOP_END
        if checksum == 4 and crc32(events, at, at + size - 4, crc_tables) != little_endian(events, at + size - 4, 4):
            return at, STOP_CHECKSUM
        kind = int(events[at + KIND_AT])
        action = actions[kind]
        body = at + HEADER_BYTES
        body_end = at + size - checksum
        if action == A_PYTHON:
            return at, STOP_EVENT
        if counts[COUNT_ROWS] >= rows.shape[0] or counts[COUNT_TXNS] >= txns.shape[0]:
            return at, STOP_FULL
        ended = False
        if action == A_TABLE:
            if body_end - body < 8:
                return at, STOP_BAD
            place = table_slot(ids, little_endian(events, body, 6))
            if ids[place] == 0:
                return at, STOP_TABLE
            slot = id_slot[place]
            if not same_range(events, body + 6, body_end, maps, map_from[slot], map_to[slot]):
                return at, STOP_TABLE
        elif action == A_ROWS:
            head = 8 if kind <= DELETE_ROWS_V1 or WRITE_ROWS_COMPRESSED_V1 <= kind <= DELETE_ROWS_COMPRESSED_V1 else 10
            if body_end - body < head + 1 or state[OPEN] == 0:
                return at, STOP_BAD
            table_id = little_endian(events, body, 6)
            if head == 10:
                head = 8 + little_endian(events, body + 8, 2)
                if head < 10 or body_end - body < head + 1:
                    return at, STOP_BAD
            place = table_slot(ids, table_id)
            if ids[place] != 0:
                slot = id_slot[place]
                piece = state[BYTES] // piece_bytes
                if piece > 0 and counts[COUNT_TXNS] > 0:
                    return at, STOP_FULL
                state[PIECE] = piece
                if wanted[slot] != 0:
                    n = counts[COUNT_ROWS]
                    rows[n, ROW_TXN] = counts[COUNT_TXNS]
                    rows[n, ROW_SLOT] = slot
                    rows[n, ROW_KIND] = kind
                    rows[n, ROW_START] = body + head
                    rows[n, ROW_END] = body_end
                    rows[n, ROW_PIECE] = piece
                    counts[COUNT_ROWS] = n + 1
            elif table_id != DUMMY_TABLE_ID:
                return at, STOP_BAD
        elif action == A_XID:
            ended = True
        elif action == A_MARIADB_GTID:
            if body_end - body < 13:
                return at, STOP_BAD
            _open(state, at, little_endian(events, at, 4) * 1000, counts[COUNT_ROWS])
            state[SEQUENCE] = little_endian(events, body, 4) | (little_endian(events, body + 4, 4) << 32)
            state[DOMAIN] = little_endian(events, body + 8, 4)
            state[SERVER] = little_endian(events, at + 5, 4)
            flags = events[body + 12]
            state[STANDALONE] = flags & 1
            # More flags stand behind the number of a group commit: of an ALTER in two phases that begins (2), or is taken back (8).
            extra = body + (21 if flags & 2 != 0 else 13)
            state[UNDONE] = int(flags & 0xC0 == 0 and extra < body_end and events[extra] & 10 != 0)
        elif action == A_GTID:
            if body_end - body < 25:
                return at, STOP_BAD
            sid = -1
            for known in range(sids.shape[0]):
                equal = True
                for p in range(16):
                    if sids[known, p] != events[body + 1 + p]:
                        equal = False
                        break
                if equal:
                    sid = known
                    break
            if sid < 0 and kind == GTID:
                return at, STOP_SID
            time_ms = little_endian(events, at, 4) * 1000
            if body_end - body >= 49:
                time_us = little_endian(events, body + 42, 7) & 0x7FFFFFFFFFFFFF
                if time_us > 0:
                    time_ms = time_us // 1000
            _open(state, at, time_ms, counts[COUNT_ROWS])
            state[STANDALONE] = 1
            state[DOMAIN] = sid if kind == GTID else -1
            state[SERVER] = 0
            state[SEQUENCE] = little_endian(events, body + 17, 4) | (little_endian(events, body + 21, 4) << 32)
        elif action == A_QUERY:
            if body_end - body < 13:
                return at, STOP_BAD
            text = body + 13 + little_endian(events, body + 11, 2) + int(events[body + 8]) + 1
            if text > body_end:
                return at, STOP_BAD
            if same_range(events, text, body_end, begin_text, 0, len(begin_text)):
                if state[OPEN] == 0:
                    _open(state, at, little_endian(events, at, 4) * 1000, counts[COUNT_ROWS])
                    state[DOMAIN] = -1
                state[STANDALONE] = 0
            elif same_range(events, text, body_end, commit_text, 0, len(commit_text)) and state[OPEN] == 1:
                ended = True
            else:
                return at, STOP_EVENT
        at += size
        state[BYTES] += size
        if ended:
            if state[OPEN] == 0:
                return at - size, STOP_BAD
            n = counts[COUNT_TXNS]
            txns[n, TXN_TIME_MS] = state[TIME_MS]
            txns[n, TXN_DOMAIN] = state[DOMAIN]
            txns[n, TXN_SERVER] = state[SERVER]
            txns[n, TXN_SEQUENCE] = state[SEQUENCE]
            txns[n, TXN_AT] = at
            txns[n, TXN_END] = little_endian(events, at - size + END_AT, 4)
            txns[n, TXN_PIECE] = state[PIECE]
            counts[COUNT_TXNS] = n + 1
            state[OPEN] = 0
            if state[PIECE] != 0:
                return at, STOP_CUT
