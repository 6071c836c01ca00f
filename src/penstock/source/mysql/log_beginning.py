"""Where the log of a server begins: a log that was reset has the same GTIDs again, for other transactions.

After a reset a server counts from one. Once it has come far enough it finds any place of the log before, and sends what follows there; what
it did since the reset is told to nobody, replicas included. So a log that begins behind the time of a place does not hold it, whatever its
GTIDs say. Runs in the log service, in the thread that reads the log.
"""

from __future__ import annotations

from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.timestamp import physical_ms
from penstock.source.mysql.position import LogPlace
from penstock.source.mysql.server import Server
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire.dump import BinlogStream, DumpSettings
from penstock.source.single_log import LogPosition

_FIRST_OFFSET = 4
_WAIT_S, _ANSWER_S_MAX = 0.2, 30.0
_CLOCKS_MS_MAX = 5_000
"""By how much our clock, which marks of a quiet log have, may be behind the server's."""


def check_beginning(server: Server, start: LogPosition, server_id: int, settings: DumpSettings, clock: Clock) -> None:
    """Raise ``LOG_PURGED`` where the log begins behind a place from which it is to be read."""
    began_ms = _began_ms(server, server_id, settings, clock)
    if began_ms > physical_ms(start.ts) + _CLOCKS_MS_MAX:
        raise PenstockError(
            "LOG_PURGED", f"{server.address.shown}: its log begins after the place where it was read: it was reset or purged"
        )


def _began_ms(server: Server, server_id: int, settings: DumpSettings, clock: Clock) -> int:
    """Return when the oldest file of the log was begun, 0 where the server does not tell."""
    with server.session() as session:
        files = session.rows("SHOW BINARY LOGS")
    if not files:
        return 0
    deadline_s = clock.monotonic_s() + _ANSWER_S_MAX
    try:
        stream = BinlogStream(server.address, server.mariadb, LogPlace(str(files[0][0]), _FIRST_OFFSET), server_id, settings, clock)
        try:
            while clock.monotonic_s() < deadline_s:
                stream.receive(_WAIT_S)
                if (found_ms := _first_ms(stream)) is not None:
                    return found_ms
        finally:
            stream.close()
    except PenstockError as error:
        # The file was purged between the two questions; whether what is needed is there is told where it is asked for.
        if error.code != "LOG_PURGED":
            raise
    return 0


def _first_ms(stream: BinlogStream) -> int | None:
    """Return the time of the first event that describes a file, None where it has not come yet."""
    at = stream.begin
    while at + wire.HEADER_BYTES <= stream.end:
        head = stream.events[at : at + wire.HEADER_BYTES].tobytes()
        if head[wire.KIND_AT] == wire.FORMAT_DESCRIPTION:
            return int.from_bytes(head[:4], "little") * 1000
        at += max(wire.HEADER_BYTES, int.from_bytes(head[wire.SIZE_AT : wire.SIZE_AT + 4], "little"))
    return None
