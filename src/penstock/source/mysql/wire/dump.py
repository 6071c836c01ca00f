"""The stream of the binlog: a connection that logged in as a replica, and the buffer in which its events stand.

Events arrive as raw bytes in large chunks and stay where they are until the reader has consumed them; the buffer grows to the largest event
or piece of a transaction. Events come with the checksums that the server writes, if it does. Runs in the log service, in the thread that
reads the log.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pymysql

from penstock.access.guarded_mysql import NONSENSE
from penstock.access.mysql_server import ServerAddress
from penstock.kernels.jit import U8
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.source.mysql.connection import connect, nonsense, shown_text, translated
from penstock.source.mysql.gtid import MariadbGtids, MysqlGtids
from penstock.source.mysql.position import LogPlace
from penstock.source.mysql.wire.framing import ENDED, REFUSED, UNPACK_STATE, unpack

_COM_REGISTER = 0x15
_COM_DUMP = 0x12
_COM_DUMP_GTID = 0x1E
_THROUGH_GTID = 4
_FIRST_OFFSET = 4
_PURGED = frozenset({1236, 1373, 1789})
"""Fatal errors of the dump thread: a file or GTID that is not there (any more). 1236 says more in its text, which is kept."""


@dataclass(frozen=True)
class DumpSettings:
    """Sizes and times of the stream."""

    receive_bytes: int = 1 << 20
    gather_s: float = 0.02
    """After the first bytes, how long to wait for a full chunk."""
    heartbeat_s: float = 1.0
    silence_s: float = 60.0
    """A server that sends nothing for so long, not even a heartbeat, is gone."""


class EventStream(Protocol):
    """Events of a log in a buffer: those between ``begin`` and ``end`` are there, the last one may be incomplete."""

    events: U8
    begin: int
    end: int
    checksum_bytes: int

    def receive(self, wait_s: float) -> bool:
        """Take in what has arrived; return False if nothing came in time."""

    def consume(self, to: int) -> None:
        """Give up the events before a place in the buffer."""

    def splice(self, at: int, end: int, instead: bytes) -> None:
        """Put other events in the place of some."""

    def compact(self) -> int:
        """Move what is not consumed to the front of the buffer; return by how much."""


class BinlogStream:
    """Events of a binlog from a place on. One thread; ``close`` from any."""

    def __init__(
        self, address: ServerAddress, mariadb: bool, start: LogPlace, server_id: int, settings: DumpSettings, clock: Clock
    ) -> None:
        self.events: U8 = np.empty(2 * settings.receive_bytes, dtype=np.uint8)
        self.begin = 0
        self.end = 0
        self.checksum_bytes = 0
        self._address = address
        self._settings = settings
        self._clock = clock
        self._raw = np.empty(settings.receive_bytes, dtype=np.uint8)
        self._view = memoryview(self._raw.data)
        self._left = 0
        self._state = np.zeros(UNPACK_STATE, dtype=np.int64)
        self._heard_s = clock.monotonic_s()
        self._connection = connect(address, None)
        try:
            self._request(mariadb, start, server_id)
        except pymysql.Error as error:
            self.close()
            raise translated(error, address) from error
        except NONSENSE as error:
            self.close()
            raise nonsense(error, address) from error
        except BaseException:
            self.close()
            raise
        self._socket: Any = self._connection._sock

    def receive(self, wait_s: float) -> bool:
        """Take in what has arrived, waiting for the first bytes; return False if none came. Lost connections raise."""
        clock, settings = self._clock, self._settings
        taken = self._receive_once(wait_s)
        if not taken:
            if clock.monotonic_s() - self._heard_s > settings.silence_s:
                raise PenstockError("UPSTREAM_UNREACHABLE", f"{self._address.shown} was silent for {settings.silence_s:.0f} s")
            return False
        self._heard_s = clock.monotonic_s()
        deadline = self._heard_s + settings.gather_s
        while taken < settings.receive_bytes:
            left_s = deadline - clock.monotonic_s()
            if left_s <= 0:
                break
            more = self._receive_once(left_s)
            if not more:
                break
            taken += more
        return True

    def consume(self, to: int) -> None:
        """Give up the events before a place in the buffer."""
        self.begin = to

    def splice(self, at: int, end: int, instead: bytes) -> None:
        """Put other events in the place of some."""
        tail = self.events[end : self.end].copy()
        self._make_room(at + len(instead) + len(tail) - self.end)
        self.events[at : at + len(instead)] = np.frombuffer(instead, dtype=np.uint8)
        self.end = at + len(instead) + len(tail)
        self.events[at + len(instead) : self.end] = tail

    def compact(self) -> int:
        """Move what is not consumed to the front of the buffer; return by how much."""
        moved = self.begin
        if moved:
            rest = self.end - moved
            self.events[:rest] = self.events[moved : self.end].copy()
            self.begin, self.end = 0, rest
        return moved

    def close(self) -> None:
        """Close the connection at once; a thread that receives gets an error."""
        sock = getattr(self._connection, "_sock", None)
        if sock is not None:
            # The driver would say goodbye first, which a server that is gone never answers.
            self._connection._force_close()

    def _receive_once(self, wait_s: float) -> int:
        try:
            self._socket.settimeout(max(0.001, wait_s))
            count = self._socket.recv_into(self._view[self._left :])
        except TimeoutError:
            return 0
        except (OSError, ValueError, AttributeError) as error:
            raise PenstockError("UPSTREAM_UNREACHABLE", f"{self._address.shown}: the stream broke ({type(error).__name__})") from error
        if count == 0:
            raise PenstockError("UPSTREAM_UNREACHABLE", f"{self._address.shown} closed the stream")
        filled = self._left + count
        self._make_room(filled)
        used, self.end, verdict = unpack(self._raw, filled, self._state, self.events, self.end)
        if verdict == REFUSED:
            self._raise_refusal(used, filled)
        if verdict == ENDED:
            raise PenstockError("UPSTREAM_UNREACHABLE", f"{self._address.shown} ended the stream")
        self._left = filled - used
        if self._left:
            self._raw[: self._left] = self._raw[used:filled].copy()
        return int(count)

    def _make_room(self, count: int) -> None:
        if self.end + count > len(self.events):
            grown = np.empty(max(2 * len(self.events), self.end + count), dtype=np.uint8)
            grown[: self.end] = self.events[: self.end]
            self.events = grown

    def _raise_refusal(self, at: int, filled: int) -> None:
        length = int.from_bytes(bytes(self._raw[at : at + 3]), "little")
        packet = bytes(self._raw[at + 4 : min(filled, at + 4 + length)])
        number = int.from_bytes(packet[1:3], "little")
        text = packet[9:].decode("utf-8", errors="replace") if packet[3:4] == b"#" else packet[3:].decode("utf-8", errors="replace")
        code = "LOG_PURGED" if number in _PURGED else "UPSTREAM_UNREACHABLE"
        raise PenstockError(code, f"{self._address.shown} answered {number}: {shown_text(text)}")

    def _request(self, mariadb: bool, start: LogPlace, server_id: int) -> None:
        heartbeat_ns = int(self._settings.heartbeat_s * 1e9)
        statements = [
            f"SET @master_heartbeat_period={heartbeat_ns}, @source_heartbeat_period={heartbeat_ns}",
            "SET @master_binlog_checksum=@@GLOBAL.binlog_checksum, @source_binlog_checksum=@@GLOBAL.binlog_checksum",
            # Backpressure may hold us up for longer than the server's patience with an ordinary client.
            "SET SESSION net_write_timeout=3600, SESSION net_read_timeout=3600",
        ]
        if mariadb:
            statements += ["SET @mariadb_slave_capability=4", "SET @slave_gtid_strict_mode=0, @slave_gtid_ignore_duplicates=0"]
            if isinstance(start.gtids, MariadbGtids):
                statements.append(f"SET @slave_connect_state='{start.gtids}'")
        else:
            identity = uuid.uuid5(uuid.NAMESPACE_URL, f"penstock-{server_id}")
            statements.append(f"SET @slave_uuid='{identity}', @replica_uuid='{identity}'")
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("SELECT @master_binlog_checksum")
            self.checksum_bytes = 4 if str(cursor.fetchone()[0]).upper() == "CRC32" else 0
        register = struct.pack("<IBBBHII", server_id, 0, 0, 0, 0, 0, 0)
        self._connection._execute_command(_COM_REGISTER, register)
        self._connection._read_ok_packet()
        if not mariadb and isinstance(start.gtids, MysqlGtids):
            known = start.gtids.to_wire()
            head = struct.pack("<HII", _THROUGH_GTID, server_id, 0) + struct.pack("<QI", _FIRST_OFFSET, len(known))
            self._connection._execute_command(_COM_DUMP_GTID, head + known)
            return
        by_gtid = isinstance(start.gtids, MariadbGtids) and mariadb
        file = b"" if by_gtid else start.file.encode()
        offset = _FIRST_OFFSET if by_gtid else start.offset
        self._connection._execute_command(_COM_DUMP, struct.pack("<IHI", offset, 0, server_id) + file)
