"""Rows of a query as columns: the text protocol taken apart by kernels, so that reading a table costs no Python per row.

``unpack_rows`` copies row packets into one buffer, ``_measure`` finds the fields of every row, ``_fill`` copies them into one byte column
each. Texts become numbers by Arrow's casts afterwards. Runs on executors, and wherever a table is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pymysql

from penstock.access.guarded_mysql import ANSWER_BYTES_MAX, NONSENSE
from penstock.kernels.jit import I64, INT32_MAX, U8, kernel
from penstock.model.errors import PenstockError
from penstock.source.mysql.connection import Session, nonsense, shown_text, translated
from penstock.source.mysql.rows.texts import little_endian
from penstock.source.mysql.wire.framing import CONTINUED, ENDED, LEFT, MORE, PACKET_BYTES_MAX, REFUSED, UNPACK_STATE

T = TypeVar("T", bound=np.generic)
_COM_QUERY = 3
_RECEIVE_BYTES = 1 << 20
_PAGE_BYTES = 16 << 20
_ROW_PACKET_BYTES_MIN = 5


def query_columns(session: Session, query: str, columns: int, page_rows: int) -> Iterator[tuple[pa.Array, ...]]:
    """Run a query and yield its rows as binary columns, in pages of about so many rows."""
    connection = session.raw
    shown = session.address.shown
    try:
        connection._execute_command(_COM_QUERY, query)
        if connection._read_packet().read_length_encoded_integer() != columns:
            raise PenstockError("INTERNAL", f"a query does not give {columns} columns")
        for _ in range(columns + 1):
            # The definitions of the columns, and the end of them; what they say is known already.
            connection._read_packet()
    except pymysql.Error as error:
        raise translated(error, session.address) from error
    except NONSENSE as error:
        raise nonsense(error, session.address) from error
    state: I64 = np.zeros(UNPACK_STATE, dtype=np.int64)
    rows: U8 = np.empty(2 * _RECEIVE_BYTES, dtype=np.uint8)
    starts: I64 = np.empty(_RECEIVE_BYTES // _ROW_PACKET_BYTES_MIN + 2, dtype=np.int64)
    raw, end, count, verdict = b"", 0, 0, MORE
    while verdict == MORE:
        try:
            more = connection._rfile.read1(_RECEIVE_BYTES)
        except OSError as error:
            raise PenstockError("UPSTREAM_UNREACHABLE", f"{shown}: the query broke ({type(error).__name__})") from error
        if not more:
            raise PenstockError("UPSTREAM_UNREACHABLE", f"{shown} closed the connection inside a query")
        raw += more
        rows = _with_room(rows, end, len(raw))
        starts = _with_room(starts, count, len(raw) // _ROW_PACKET_BYTES_MIN + 2)
        used, end, count, verdict = unpack_rows(np.frombuffer(raw, dtype=np.uint8), state, rows, end, starts, count)
        raw = raw[used:]
        if verdict == REFUSED:
            raise PenstockError("UPSTREAM_REFUSED", f"{shown} ended a query: {shown_text(raw[13:].decode('utf-8', errors='replace'))}")
        partial = bool(state[LEFT] or state[CONTINUED])
        whole = count - partial
        if whole and (verdict == ENDED or whole >= page_rows or end >= _PAGE_BYTES):
            stop = int(starts[whole]) if partial else end
            yield split_rows(rows, starts[:whole], stop, columns)
            rows[: end - stop] = rows[stop:end].copy()
            end -= stop
            starts[0] = 0
            count = int(partial)
        elif partial and end - int(starts[whole]) > ANSWER_BYTES_MAX:
            raise PenstockError("DECODE_FAILED", f"{shown}: a row of more than {ANSWER_BYTES_MAX} bytes; is this MySQL?")


def _with_room(array: npt.NDArray[T], used: int, more: int) -> npt.NDArray[T]:
    if used + more <= len(array):
        return array
    grown = np.empty(max(2 * len(array), used + more), dtype=array.dtype)
    grown[:used] = array[:used]
    return grown


def split_rows(rows: U8, starts: I64, end: int, columns: int) -> tuple[pa.Array, ...]:
    """Return whole rows as binary columns."""
    count = len(starts)
    offsets = np.zeros((columns, count + 1), dtype=np.int64)
    validity = np.full((columns, (count + 7) // 8), 255, dtype=np.uint8)
    nulls = np.zeros(columns, dtype=np.int64)
    bad = _measure(rows, starts, end, offsets, validity, nulls)
    if bad >= 0:
        raise PenstockError("DECODE_FAILED", f"row {bad} of {count} of a query does not have {columns} fields")
    if int(offsets[:, -1].max(initial=0)) > INT32_MAX:
        raise PenstockError("DECODE_FAILED", "a column of a query exceeds 2 GiB in one page")
    bases = np.zeros(columns + 1, dtype=np.int64)
    np.cumsum(offsets[:, -1], out=bases[1:])
    flat = np.empty(int(bases[-1]), dtype=np.uint8)
    _fill(rows, starts, offsets, bases, flat)
    return tuple(
        pa.Array.from_buffers(
            pa.binary(),
            count,
            [
                pa.py_buffer(validity[c]) if nulls[c] else None,
                pa.py_buffer(offsets[c].astype(np.int32)),
                pa.py_buffer(flat[int(bases[c]) : int(bases[c + 1])]),
            ],
            null_count=int(nulls[c]),
        )
        for c in range(columns)
    )


@kernel
def unpack_rows(raw: U8, state: I64, out: U8, out_at: int, starts: I64, count: int) -> tuple[int, int, int, int]:
    """Copy rows out of packets, noting where each begins; return what is used up, the end, the count, and what to do."""
    at = 0
    while at < len(raw):
        if state[LEFT] > 0:
            size = min(state[LEFT], len(raw) - at)
            out[out_at : out_at + size] = raw[at : at + size]
            at += size
            out_at += size
            state[LEFT] -= size
            continue
        fresh = state[CONTINUED] == 0
        if len(raw) - at < (5 if fresh else 4):
            break
        length = little_endian(raw, at, 3)
        if fresh:
            if raw[at + 4] == 0xFF:
                return at, out_at, count, REFUSED
            if raw[at + 4] == 0xFE and length < 9:
                return at, out_at, count, ENDED
            starts[count] = out_at
            count += 1
        at += 4
        state[LEFT] = length
        state[CONTINUED] = 1 if length == PACKET_BYTES_MAX else 0
    return at, out_at, count, MORE


@kernel
def _field(rows: U8, at: int, end: int) -> tuple[int, int]:
    """Return where a field begins and its length: -1 for NULL, -2 where it does not fit."""
    if at >= end:
        return at, -2
    first = int(rows[at])
    if first < 251:
        return at + 1, first
    if first == 251:
        return at + 1, -1
    size = 2 if first == 252 else 3 if first == 253 else 8
    if first == 255 or at + 1 + size > end:
        return at, -2
    # A field of more than 4 GiB does not exist.
    return at + 1 + size, little_endian(rows, at + 1, min(size, 7))


@kernel
def _measure(rows: U8, starts: I64, end: int, offsets: I64, validity: U8, nulls: I64) -> int:
    for row in range(len(starts)):
        at = starts[row]
        stop = starts[row + 1] if row + 1 < len(starts) else end
        for column in range(offsets.shape[0]):
            at, length = _field(rows, at, stop)
            if length < -1 or (length > 0 and at + length > stop):
                return row
            if length < 0:
                nulls[column] += 1
                validity[column, row // 8] &= np.uint8(255 ^ (1 << (row % 8)))
                length = 0
            offsets[column, row + 1] = offsets[column, row] + length
            at += length
        if at != stop:
            return row
    return -1


@kernel
def _fill(rows: U8, starts: I64, offsets: I64, bases: I64, flat: U8) -> None:
    for row in range(len(starts)):
        at = starts[row]
        for column in range(offsets.shape[0]):
            at, length = _field(rows, at, len(rows))
            to = bases[column] + offsets[column, row]
            for p in range(max(0, length)):
                flat[to + p] = rows[at + p]
            at += max(0, length)
