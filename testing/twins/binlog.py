"""A binlog made by hand: events as a MariaDB server writes them, and a stream that brings them in pieces of any size.

The writer knows two column kinds, BIGINT and VARCHAR, which is enough to test framing, transactions, folding and damage; the types are
tested against real servers. Runs in tests.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from penstock.kernels.jit import U8
from penstock.model.table import Column
from penstock.model.types import ColumnType, TypeKind
from penstock.source.mysql.tables.columns import ServerTable
from penstock.source.mysql.wire import constants as wire

Row = tuple[int, str | None]
"""A BIGINT key and a VARCHAR that may be NULL."""
SCHEMA = "shop"


def server_table(name: str) -> ServerTable:
    """Return the table that the writer's rows are of, as a server would describe it."""
    columns = (
        Column(1, "id", ColumnType(TypeKind.BIGINT), nullable=False, primary_key=True),
        Column(2, "note", ColumnType(TypeKind.VARCHAR, length=40)),
    )
    return ServerTable(SCHEMA, name, columns, ("", "utf8mb4"), ("id",))


class BinlogWriter:
    """Writes events one behind the other."""

    def __init__(self, checksum: bool = True) -> None:
        self.data = bytearray()
        self._checksum = checksum
        self._sequence = 0
        self.event(wire.FORMAT_DESCRIPTION, struct.pack("<H50sIB", 4, b"10.11-MariaDB", 0, 19) + bytes(40) + bytes([int(checksum)]), 0)

    def event(self, kind: int, body: bytes, seconds: int) -> None:
        """Add an event of any kind."""
        tail = 4 if self._checksum or kind == wire.FORMAT_DESCRIPTION else 0
        size = wire.HEADER_BYTES + len(body) + tail
        header = struct.pack("<IBIIIH", seconds, kind, 1, size, len(self.data) + size + 4, 0)
        self.data += header + body
        if tail:
            self.data += struct.pack("<I", zlib.crc32(header + body))

    def begin(self, seconds: int, standalone: bool = False) -> None:
        """Begin a transaction."""
        self._sequence += 1
        self.event(wire.MARIADB_GTID, struct.pack("<QIB", self._sequence, 0, int(standalone)) + bytes(6), seconds)

    def commit(self, seconds: int) -> None:
        """End a transaction."""
        self.event(wire.XID, struct.pack("<Q", self._sequence), seconds)

    def query(self, text: str, seconds: int, schema: str = SCHEMA) -> None:
        """Add a statement."""
        name = schema.encode()
        self.event(wire.QUERY, struct.pack("<IIBHH", 1, 0, len(name), 0, 0) + name + b"\x00" + text.encode(), seconds)

    def table_map(self, table_id: int, name: str, seconds: int) -> None:
        """Add the table map of a table."""
        body = table_id.to_bytes(6, "little") + b"\x01\x00"
        for text in (SCHEMA.encode(), name.encode()):
            body += bytes([len(text)]) + text + b"\x00"
        body += bytes([2, wire.TYPE_LONGLONG, wire.TYPE_VARCHAR, 2]) + struct.pack("<H", 160) + bytes([2])
        self.event(wire.TABLE_MAP, body, seconds)

    def rows(self, kind: int, table_id: int, images: Iterable[Row], seconds: int) -> None:
        """Add a rows event; an update's images are before, after, before, after."""
        bitmaps = 2 if kind == wire.UPDATE_ROWS_V1 else 1
        body = table_id.to_bytes(6, "little") + b"\x01\x00" + bytes([2]) + b"\xff" * bitmaps
        self.event(kind, body + b"".join(map(_image, images)), seconds)


def _image(row: Row) -> bytes:
    key, note = row
    text = note.encode() if note is not None else b""
    return bytes([0xFC | (2 if note is None else 0)]) + struct.pack("<q", key) + (bytes([len(text)]) + text if note is not None else b"")


class MemoryEventStream:
    """A stream of events that are there already, given in pieces of chosen sizes. Implements ``EventStream``.

    A size of 0 is a pause: nothing comes, ``on_pause`` is told for how long, and the log may go on behind it.
    """

    def __init__(
        self, data: bytes, sizes: Sequence[int] = (), checksum_bytes: int = 0, on_pause: Callable[[float], None] = lambda _: None
    ) -> None:
        self.events: U8 = np.zeros(max(1, len(data)), dtype=np.uint8)
        self.begin = 0
        self.end = 0
        self.checksum_bytes = checksum_bytes
        self._data = data
        self._sizes = list(sizes)
        self._on_pause = on_pause
        self.given = 0
        """How many bytes have been given."""
        self.ended = threading.Event()
        """Set when a reader asks for more than there is."""

    def receive(self, wait_s: float) -> bool:
        """Give the next piece."""
        size = self._sizes.pop(0) if self._sizes else len(self._data)
        if size == 0:
            self._on_pause(wait_s)
            return False
        piece = np.frombuffer(self._data[self.given : self.given + size], dtype=np.uint8)
        if len(piece) == 0:
            self.ended.set()
            return False
        if self.end + len(piece) > len(self.events):
            self.events = np.concatenate([self.events[: self.end], np.zeros(len(piece), dtype=np.uint8)])
        self.events[self.end : self.end + len(piece)] = piece
        self.end += len(piece)
        self.given += len(piece)
        return True

    def consume(self, to: int) -> None:
        """Give up the events before a place."""
        self.begin = to

    def splice(self, at: int, end: int, instead: bytes) -> None:
        """Put other events in the place of some."""
        tail = self.events[end : self.end].copy()
        self.events = np.concatenate([self.events[:at], np.frombuffer(instead, dtype=np.uint8), tail])
        self.end = len(self.events)

    def compact(self) -> int:
        """Move the rest to the front."""
        moved = self.begin
        rest = self.events[moved : self.end].copy()
        self.events[: len(rest)] = rest
        self.begin, self.end = 0, len(rest)
        return moved
