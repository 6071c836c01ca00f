"""MariaDB and MySQL as an upstream with one log.

Owns the table versions and the places that the reader has passed, from which a snapshot's start is chosen. Nothing is ever written to the
server. Runs in the log service and the server; snapshots are read on executors, each from a connection of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from penstock.access.mysql_server import parse_uri
from penstock.model.batch import ChangeBatch
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.errors import PenstockError
from penstock.model.span import Span, cut
from penstock.model.table import TableSchema
from penstock.model.timestamp import compose_ts
from penstock.source.contract import Capability, SnapshotTicket
from penstock.source.mysql.log_beginning import check_beginning
from penstock.source.mysql.log_reader import LogReader, LogReaderSettings
from penstock.source.mysql.position import LogPlace
from penstock.source.mysql.server import LogEnd, Server
from penstock.source.mysql.snapshot.key_ranges import cut_keys
from penstock.source.mysql.snapshot.keyed_read import keyed_reader
from penstock.source.mysql.snapshot.snapshot import read_rows
from penstock.source.mysql.tables.table_versions import TableVersions
from penstock.source.mysql.warm_kernels import warm_kernels
from penstock.source.mysql.wire.dump import BinlogStream
from penstock.source.single_log import Beginning, LogPosition, LogStep

_PASSED_MAX = 4096
_SETTLE_S, _SETTLE_POLL_S = 60.0, 0.02
_SERVER_IDS = range(1 << 30, (1 << 32) - 1)
"""Far above what administrators give their servers."""


class MySqlUpstream:
    """A MariaDB or MySQL server. Implements ``LoggedUpstream``."""

    capabilities = Capability.LOG

    def __init__(self, uri: str, settings: LogReaderSettings | None = None, clock: Clock | None = None) -> None:
        self.settings = settings or LogReaderSettings()
        self._clock = clock or SystemClock()
        address = parse_uri(uri)
        self.address = address.shown
        self._server = Server(address)
        self._server_id = address.server_id or system_random().choice(_SERVER_IDS)
        self._opened_ts = compose_ts(self._server.now_ms())
        self._tables = TableVersions(self._server.table, self._server.collations, self._server.lower_case)
        self._follows = False
        """Whether a log is read beside, so that it tells which tables there are."""
        self._begun = threading.Event()
        self._lock = threading.Lock()
        self._passed: deque[tuple[LogPosition, LogPlace]] = deque(maxlen=_PASSED_MAX)
        self._furthest: tuple[int, LogPlace] | None = None
        """The highest ts that any reading came to, and its place; a reader that goes back takes nothing of it away."""
        self._is_read = False
        self._is_same_log = False
        """Whether the log is known to be the one that was read before."""
        self._streams: set[BinlogStream] = set()

    # -- Upstream

    def current_ts(self) -> int:
        """Return a ts above every commit that the reader has seen and above the server's clock."""
        now_ts = compose_ts(self._server.now_ms())
        with self._lock:
            newest = self._passed[-1][0].ts if self._passed else 0
        return max(now_ts, newest) + 1

    def list_tables(self) -> Sequence[TableSchema]:
        """Return the newest version of every table: where the log is read, of those at its end, which is waited for.

        Whoever decides by it that a table is gone must not be told of a place to which the reader went back.
        """
        self._settle()
        return self._tables.newest()

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        """Return every version of a table, oldest first."""
        if not self._follows:
            self._load()
        return self._tables.history(table_id)

    def adopt_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Take over table versions of earlier runs."""
        self._follows = True
        self._tables.adopt(versions)

    def divide(self, span: Span, pieces_max: int | None = None) -> Sequence[Span]:
        """Cut a span in pieces of about equal width."""
        return cut(span, cut_keys(self._server, self._newest(span.table_id), span), pieces_max)

    def read_now(self, span: Span) -> Iterator[ChangeBatch]:
        """Yield the rows of a span now, seen at one moment."""
        return read_rows(self._server, span, self._newest(span.table_id), self.current_ts(), consistent=True)

    def close(self) -> None:
        """End every stream."""
        with self._lock:
            streams, self._streams = list(self._streams), set()
            self._is_read = False
        for stream in streams:
            stream.close()

    # -- LoggedUpstream

    def log_end(self) -> str:
        """Return the end of the log."""
        return str(self._server.log_end())

    def reached(self, position: str, end: str) -> bool:
        """Return whether a position lies at or behind an end."""
        return LogPlace.parse(position).reached(LogPlace.parse(end))

    def first_position(self) -> LogPosition:
        """Return the end of the log with the server's time; the tables as they are now are known from there on."""
        place = self._server.log_end()
        position = LogPosition(compose_ts(self._server.now_ms()), str(place))
        self._tables.load(self._server.tables(), position.ts)
        self._begun.set()
        return position

    def begin_again(self, told_ts: int, above_ts: int) -> Beginning:
        """Return the end of the log, behind what became of the tables in the part that is lost."""
        place = self._server.log_end()
        from_ts = max(compose_ts(self._server.now_ms()), above_ts)
        crossed = self._tables.cross_hole(self._server.tables(), told_ts, from_ts)
        self._begun.set()
        return Beginning(LogPosition(from_ts + 1 + len(crossed.ddls), str(place)), crossed.ddls, crossed.schemas)

    def read_log(
        self, start: LogPosition, marks: Sequence[LogPosition], wanted: Callable[[int], bool], stop: threading.Event
    ) -> Iterator[LogStep]:
        """Yield the log from a position on. The position counts as passed when this returns, before the first step."""
        # Before the stream is open, so that its server does not wait for a compiler.
        warm_kernels()
        self._tables.rewind(start.ts)
        self._note(start)
        self._come_to(start.ts, LogPlace.parse(start.text))
        self._is_read = True
        self._begun.set()
        return self._steps(start, marks, wanted, stop)

    def _steps(
        self, start: LogPosition, marks: Sequence[LogPosition], wanted: Callable[[int], bool], stop: threading.Event
    ) -> Iterator[LogStep]:
        place = LogPlace.parse(start.text)
        if place.gtids is None:
            place = self._server.own(place)
            start = LogPosition(start.ts, str(place))
        if not self._is_same_log:
            check_beginning(self._server, start, self._server_id, self.settings.dump, self._clock)
        stream = BinlogStream(self._server.address, self._server.mariadb, place, self._server_id, self.settings.dump, self._clock)
        ends_at = LogEnd(self._server)
        with self._lock:
            self._streams.add(stream)
        try:
            read_rows = keyed_reader(self._server, self._clock)
            elsewhere = self._server.writes_elsewhere
            reader = LogReader(stream, self._tables, start, marks, wanted, self.settings, self._clock, ends_at, read_rows, elsewhere)
            # A stream that does not break leaves no gap in which the log could become another one.
            self._is_same_log = True
            for step in reader.steps(stop):
                # Also where a transaction that is not decided yet keeps positions back: its tables are known.
                self._come_to(*reader.place)
                if step.position is not None:
                    self._note(step.position)
                yield step
        except PenstockError:
            self._is_same_log = False
            raise
        finally:
            stream.close()
            ends_at.close()
            with self._lock:
                self._streams.discard(stream)

    def notes(self) -> Sequence[TableSchema]:
        """Return nothing: what happens while nobody reads is in the log."""
        return ()

    def confirm(self, position: LogPosition) -> None:
        """Do nothing: the server keeps its logs by its own rules."""

    def begin_snapshot(self) -> SnapshotTicket:
        """Return the newest place that the reader has passed and whose commits every query sees; it is waited for."""
        with self._lock:
            passed = list(self._passed)
        first = passed[0][0] if passed else self.first_position()
        deadline_s, never = self._clock.monotonic_s() + _SETTLE_S, threading.Event()
        while True:
            visible = self._server.visible_place()
            with self._lock:
                passed = list(self._passed)
            for position, place in (*reversed(passed), (first, LogPlace.parse(first.text))):
                if visible.reached(place):
                    return SnapshotTicket(position)
            if self._clock.monotonic_s() > deadline_s:
                raise PenstockError("CONGESTED", f"{self.address}: commits of the log do not become visible")
            self._clock.wait(never, _SETTLE_POLL_S)

    def read_snapshot(self, ticket: SnapshotTicket, span: Span, table: TableSchema, page_rows: int) -> Iterator[ChangeBatch]:
        """Yield the rows of a span as they are when each page is read, as INSERT at the ticket's ts."""
        return read_rows(self._server, span, table, ticket.start.ts, page_rows)

    def end_snapshot(self, ticket: SnapshotTicket) -> None:
        """Do nothing: a snapshot holds nothing open."""

    def release(self) -> None:
        """Do nothing: nothing is made at the server."""

    # -- parts

    def _load(self) -> None:
        """Take over the server's tables once, for one who reads no log."""
        if not self._begun.is_set():
            self._tables.load(self._server.tables(), self._opened_ts)
            self._begun.set()

    def _settle(self) -> None:
        """Know the tables: those that the server shows where nobody reads the log, else those where its reader has come to the end."""
        if not self._follows:
            self._load()
            return
        deadline_s = self._clock.monotonic_s() + _SETTLE_S
        if not self._begun.is_set():
            # What the server refuses here it refuses to the reader too, which would be waited for in vain.
            self._server.log_end()
        self._clock.wait(self._begun, _SETTLE_S)
        end = self._server.log_end() if self._is_read else None
        never = threading.Event()
        while end is not None and self._is_read:
            with self._lock:
                if self._furthest is not None and self._furthest[1].reached(end):
                    return
            if self._clock.monotonic_s() > deadline_s:
                raise PenstockError("CONGESTED", f"{self.address}: the log is not read to its end yet, so its tables are not known")
            self._clock.wait(never, _SETTLE_POLL_S)

    def _newest(self, table_id: int) -> TableSchema:
        return self.schema_history(table_id)[-1]

    def _note(self, position: LogPosition) -> None:
        with self._lock:
            if self._passed and self._passed[-1][0].ts > position.ts:
                self._passed.clear()
            self._passed.append((position, LogPlace.parse(position.text)))

    def _come_to(self, ts: int, place: LogPlace) -> None:
        with self._lock:
            if self._furthest is None or ts >= self._furthest[0]:
                self._furthest = (ts, place)
