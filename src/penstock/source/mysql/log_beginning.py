"""Where the log of a server begins: a log that was reset has the same GTIDs again, for other transactions.

After a reset a server counts from one. Once it has come far enough it finds any place of the log before, and sends what follows there; what
it did since the reset is told to nobody, replicas included. So a log that begins behind the time of a place does not hold it, whatever its
GTIDs say. Times are those of two clocks and of whole seconds, so a log that is about as young as the place is looked at there as well: the
server that wrote the place has it at the file and offset where it was read. Runs in the log service, in the thread that reads the log.
"""

from __future__ import annotations

import re

from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.timestamp import physical_ms
from penstock.source.mysql.position import LogPlace
from penstock.source.mysql.server import FIRST_OFFSET, Server
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire.dump import BinlogStream, DumpSettings
from penstock.source.single_log import LogPosition

_WAIT_S, _ANSWER_S_MAX = 0.2, 30.0
_CLOCKS_MS_MAX = 5_000
"""By how much our clock, which marks of a quiet log have, may be behind the server's."""
_YOUNG_MS_MAX = 3_600_000
"""A log that began so much before the time of a place may have been reset behind it: our clock, or a session's, may be ahead."""
_NO_EVENT = " 1220 "
"""What a server answers that finds no event at an offset."""
_GTID = re.compile(r"\b\d+-\d+-\d+\b(?!-)|\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}:\d+")
_NAMELESS, _HEAD_EVENTS = "Anonymous", 3
"""What begins a transaction without a GTID, and how many events of a file tell: its format, the GTIDs before it, its first transaction."""
_INNER_EVENTS = ("Query", "Xid", "Table_map", "Annotate_rows", "Rows_query", "Write_rows", "Update_rows", "Delete_rows")
"""What stands inside of transactions, and never behind one."""


def check_beginning(server: Server, start: LogPosition, server_id: int, settings: DumpSettings, clock: Clock) -> None:
    """Raise ``LOG_PURGED`` where the log begins behind a place from which it is to be read."""
    place = LogPlace.parse(start.text)
    with server.session() as session:
        sizes = {str(name): int(size) for name, size, *_ in session.rows("SHOW BINARY LOGS")}
    began_ms = _began_ms(server, sizes, server_id, settings, clock)
    is_behind = began_ms > physical_ms(start.ts) + _CLOCKS_MS_MAX
    if is_behind or (began_ms > physical_ms(start.ts) - _YOUNG_MS_MAX and _is_another(server, place, sizes)):
        raise PenstockError(
            "LOG_PURGED", f"{server.address.shown}: its log begins after the place where it was read: it was reset or purged"
        )
    if not server.mariadb and place.gtids is not None and _has_nameless(server, place, list(sizes), sizes.get(place.file, 0)):
        raise PenstockError("LOG_PURGED", f"{server.address.shown}: transactions without GTIDs follow the place where its log was read")


def _has_nameless(server: Server, place: LogPlace, files: list[str], size: int) -> bool:
    """Return whether transactions without GTIDs follow a place: whoever asks by GTIDs is not sent them, and not told.

    MySQL begins another file whenever its ``gtid_mode`` changes, so the first transaction of a file tells for all of it.
    """
    with server.session() as session:
        if place.file not in files or place.gtids is None or not place.gtids.has_server(server.identity(session)):
            return False
        later = files[files.index(place.file) + (place.offset >= size) :]
        return any(
            str(event["event_type"]).startswith(_NAMELESS)
            for file in later
            for event in session.records(f"SHOW BINLOG EVENTS IN '{file}' LIMIT {_HEAD_EVENTS}")
        )


def _is_another(server: Server, place: LogPlace, sizes: dict[str, int]) -> bool:
    """Return whether a server that wrote the transaction before a place has something else at its file and offset.

    One that took over from another has other files, which says nothing.
    """
    with server.session() as session:
        if place.gtids is not None and not place.gtids.has_server(server.identity(session)):
            return False
        if place.file not in sizes:
            return bool(sizes) and not LogPlace(list(sizes)[-1], 0).reached(LogPlace(place.file, 0))
        if place.offset >= sizes[place.file]:
            return place.offset > sizes[place.file]
        try:
            found = session.records(f"SHOW BINLOG EVENTS IN '{place.file}' FROM {place.offset} LIMIT 1")
        except PenstockError as error:
            if _NO_EVENT not in error.detail:
                raise
            return True
    kind = str(found[0]["event_type"]) if found else ""
    if kind != "Gtid":
        return kind.startswith(_INNER_EVENTS)
    gtid = _GTID.search(str(found[0]["info"]))
    return place.gtids is not None and gtid is not None and place.reached(LogPlace.parse(f"{place.file}:{place.offset}@{gtid[0]}"))


def _began_ms(server: Server, sizes: dict[str, int], server_id: int, settings: DumpSettings, clock: Clock) -> int:
    """Return when the oldest file of the log was begun, 0 where the server does not tell."""
    if not sizes:
        return 0
    deadline_s = clock.monotonic_s() + _ANSWER_S_MAX
    try:
        stream = BinlogStream(server.address, server.mariadb, LogPlace(next(iter(sizes)), FIRST_OFFSET), server_id, settings, clock)
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
