"""Events that Python reads: statements, new files, format descriptions, compressed transactions. All of them are rare.

Bytes in, values out; malformed ones are ``DECODE_FAILED``. Runs in the log service, in the thread that reads the log.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import msgspec
import pyarrow as pa

from penstock.model.errors import PenstockError
from penstock.source.mysql.rows.charsets import codec_of
from penstock.source.mysql.rows.rows_decoder import INFLATED_BYTES_MAX, inflate
from penstock.source.mysql.wire import constants as wire

_CHECKSUM_CRC32 = 1
_PAYLOAD_END, _PAYLOAD_COMPRESSION, _PAYLOAD_SIZE = 0, 2, 3
_ZSTD, _PLAIN = 0, 255
_QUERY_BYTES, _LOAD_BYTES = 13, 13
"""Of what stands in front of a statement, and what more of it a LOAD DATA has."""
_Q_SQL_MODE, _Q_CHARSET = 1, 4
_COUNTED = -1
_STATUS_BYTES = {0: 4, _Q_SQL_MODE: 8, 3: 4, _Q_CHARSET: 6, 6: _COUNTED}
"""What servers write first of a session, and how long it is: flags, SQL mode, increments, charsets, a catalog with its length."""
_ANSI_QUOTES, _NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`|"(?:[^"\\]|\\.|"")*\"""", re.DOTALL)
_XID = re.compile(r"X'([0-9a-f]*)'\s*,\s*X'([0-9a-f]*)'\s*,\s*(\d+)", re.IGNORECASE)
REFUSED = {
    wire.INCIDENT: ("LOG_PURGED", "the server lost events of its log (an incident event)", None),
    wire.GTID_TAGGED: ("UPSTREAM_MISCONFIGURED", "the log holds tagged GTIDs", "Write with untagged GTIDs: gtid_next = 'AUTOMATIC'."),
}
"""Events behind which a log cannot be read on: code, text and hint of the error."""


class QueryEvent(msgspec.Struct, frozen=True):
    """A statement in the log and the database in which it ran."""

    schema: str
    text: str
    failed: bool = False
    """Whether it ended with an error: then it stands in the log for what it had done by then."""


def parse_query(body: bytes, compressed: bool = False, load: bool = False, charset_of: Callable[[int], str] = lambda _: "") -> QueryEvent:
    """Read the body of a QUERY event, or of one that executes a LOAD DATA; ``charset_of`` tells the charset of a collation."""
    head = _QUERY_BYTES + (_LOAD_BYTES if load else 0)
    if len(body) < head:
        raise PenstockError("DECODE_FAILED", "a statement of the log is malformed")
    name = head + int.from_bytes(body[11:13], "little")
    text = name + body[8] + 1
    if text > len(body):
        raise PenstockError("DECODE_FAILED", "a statement of the log is malformed")
    query = (inflate(body[text:]) if compressed else body[text:]).rstrip(b"\x00")
    status = _status(body[head:name])
    mode = int.from_bytes(status.get(_Q_SQL_MODE, b""), "little")
    return QueryEvent(
        body[name : text - 1].decode("utf-8", errors="replace"),
        _usual(query.decode(_codec(query, status, charset_of), errors="replace"), mode),
        body[9:11] != b"\x00\x00",
    )


def _status(status: bytes) -> dict[int, bytes]:
    """Return what is told of the session of a statement, by code, as far as the codes are known."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(status) and status[at] in _STATUS_BYTES:
        code, size = status[at], _STATUS_BYTES[status[at]]
        if size == _COUNTED:
            size = 1 + int.from_bytes(status[at + 1 : at + 2], "little")
        found[code] = status[at + 1 : at + 1 + size]
        at += 1 + size
    return found


def _codec(query: bytes, status: dict[int, bytes], charset_of: Callable[[int], str]) -> str:
    """Return the codec of a statement: it stands in the log as the session wrote it, in the charset of its client."""
    told = status.get(_Q_CHARSET, b"")[:2]
    if query.isascii() or len(told) < 2:
        return "utf-8"
    charset = charset_of(int.from_bytes(told, "little"))
    try:
        return "utf-8" if charset == "binary" else codec_of(charset)
    except LookupError:
        return "utf-8"


def _usual(text: str, sql_mode: int) -> str:
    """Return a statement as it is written under the usual rules for quotes and backslashes, by which others will read it."""
    if sql_mode & _NO_BACKSLASH_ESCAPES:
        text = text.replace("\\", "\\\\")
    return _QUOTED.sub(_in_backticks, text) if sql_mode & _ANSI_QUOTES else text


def _in_backticks(match: re.Match[str]) -> str:
    text = match.group()
    return "`" + text[1:-1].replace('""', '"').replace("`", "``") + "`" if text[0] == '"' else text


def parse_rotate(body: bytes) -> tuple[str, int]:
    """Return the file that comes next and where it begins."""
    if len(body) < 9:
        raise PenstockError("DECODE_FAILED", "a rotate event is malformed")
    return body[8:].rstrip(b"\x00").decode("utf-8", errors="replace"), int.from_bytes(body[:8], "little")


def parse_format(body: bytes) -> int:
    """Return how many bytes of checksum the events that follow have. This event has its own checksum in any case."""
    if len(body) < 57 + 5 or body[56] != wire.HEADER_BYTES:
        raise PenstockError("DECODE_FAILED", "the log's format is not supported: MariaDB 10.2 or MySQL 5.7 is the oldest that is")
    return 4 if body[-5] == _CHECKSUM_CRC32 else 0


def parse_payload(body: bytes, end_position: bytes) -> bytes:
    """Return the events of a compressed transaction; the last of them gets the position at which the whole ends."""
    at, compression, size = 0, _PLAIN, 0
    while True:
        kind, at = _packed(body, at)
        if kind == _PAYLOAD_END:
            break
        length, at = _packed(body, at)
        value, _ = _packed(body, at)
        at += length
        if kind == _PAYLOAD_COMPRESSION:
            compression = value
        elif kind == _PAYLOAD_SIZE:
            size = value
    if compression == _PLAIN:
        events = bytearray(body[at:])
    elif compression == _ZSTD and 0 < size <= INFLATED_BYTES_MAX:
        try:
            events = bytearray(pa.Codec("zstd").decompress(body[at:], size, asbytes=True))
        except (pa.ArrowException, OSError) as error:
            raise PenstockError("DECODE_FAILED", "a compressed transaction does not inflate") from error
    else:
        raise PenstockError("DECODE_FAILED", f"a transaction is compressed in an unknown way ({compression})")
    last = at = 0
    while at + wire.HEADER_BYTES <= len(events):
        last = at
        at += max(wire.HEADER_BYTES, int.from_bytes(events[at + 9 : at + 13], "little"))
    if at != len(events):
        raise PenstockError("DECODE_FAILED", "a compressed transaction ends inside an event")
    events[last + 13 : last + 17] = end_position
    return bytes(events)


Xid = tuple[bytes, bytes, int]
"""The parts of the name of an XA transaction, and their format."""


def parse_xa_prepare(body: bytes) -> tuple[Xid, bool]:
    """Return whose XA transaction is prepared, and whether that commits it."""
    if len(body) < 13:
        raise PenstockError("DECODE_FAILED", "an XA event is malformed")
    one_phase, form, first, second = struct.unpack_from("<BiII", body)
    name = body[13 : 13 + first + second]
    if len(name) != first + second:
        raise PenstockError("DECODE_FAILED", "an XA event is malformed")
    return (name[:first], name[first:], form), bool(one_phase)


def parse_xid(text: str) -> Xid:
    """Return whose XA transaction a statement decides."""
    match = _XID.search(text)
    if match is None:
        raise PenstockError("DECODE_FAILED", "an XA statement of the log is malformed")
    return bytes.fromhex(match.group(1)), bytes.fromhex(match.group(2)), int(match.group(3))


def _packed(body: bytes, at: int) -> tuple[int, int]:
    if at >= len(body):
        raise PenstockError("DECODE_FAILED", "a compressed transaction is malformed")
    first = body[at]
    size = {252: 2, 253: 3, 254: 8}.get(first, 0)
    if not size:
        return first, at + 1
    return int.from_bytes(body[at + 1 : at + 1 + size], "little"), at + 1 + size
