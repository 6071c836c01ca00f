"""A PostgreSQL database as an upstream with one log.

Owns the connections: one for questions, one for each reading of the log, one for each snapshot that is held open. What is confirmed to the
server never passes a snapshot whose log is still to be captured. Everything here only reads, except that the slot and the publication are
made where they are missing. Runs in the log service, in the server, and (``read_snapshot``) on executors.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import pyarrow as pa

from penstock.model.batch import ChangeBatch
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.errors import PenstockError
from penstock.model.span import Span, cut
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import TS_MAX, compose_ts
from penstock.source.contract import Capability, SnapshotTicket
from penstock.source.postgres.commit_log import CommitLog
from penstock.source.postgres.log_reader import LogReader, LogReaderSettings, LogSource
from penstock.source.postgres.slot import (
    INSUFFICIENT_PRIVILEGE,
    check_slot,
    create_slot,
    ensure_slot,
    flushed_end,
    format_lsn,
    parse_lsn,
    read_slot,
    release_slot,
)
from penstock.source.postgres.snapshot.key_ranges import RangeSettings, cut_keys
from penstock.source.postgres.snapshot.table_scan import fetch_rows, plan_remains, plan_scan, scan_table
from penstock.source.postgres.tables.catalog import OID_MASK, read_domains, read_tables
from penstock.source.postgres.tables.catalog_notes import is_note
from penstock.source.postgres.tables.catalog_watch import CatalogWatch
from penstock.source.postgres.tables.schema_book import SchemaBook
from penstock.source.postgres.tables.versions import base_version
from penstock.source.postgres.warm_kernels import warm_kernels
from penstock.source.postgres.wire.address import PostgresAddress, parse_address
from penstock.source.postgres.wire.connection import Connection, PostgresError, quote_ident, quote_literal
from penstock.source.postgres.wire.replication_stream import ReplicationStream
from penstock.source.single_log import LogPosition, LogStep

T = TypeVar("T")
_TS_ROOM = 1 << 13
_PAGE_ROWS = 16_384
STREAMING_VERSION = 14
_SLOT_POLL_S = 0.05
_IN_USE = "55006"
_INVALID_SNAPSHOT, _NO_SNAPSHOT_FILE = "22023", "42704"


@dataclass(frozen=True)
class PostgresSettings:
    """The settings of the parts.

    Attributes:
        reader_wait_s: how long a snapshot waits for somebody to read the log at all.
        snapshot_wait_s: how long a snapshot waits for the log reader to reach its place.
        slot_wait_s: how long a reader waits for a slot that another one is leaving.
        settled_s: how long after the first reading every span that was captured before has joined again.
    """

    reader: LogReaderSettings = field(default_factory=LogReaderSettings)
    ranges: RangeSettings = field(default_factory=RangeSettings)
    reader_wait_s: float = 30.0
    snapshot_wait_s: float = 300.0
    slot_wait_s: float = 10.0
    settled_s: float = 30.0


class _Hold(NamedTuple):
    """A snapshot that is open or being opened: nothing after ``lsn`` is confirmed meanwhile."""

    lsn: int
    ts: int = 0
    connection: Connection | None = None


class PostgresUpstream:
    """A PostgreSQL database. Implements ``LoggedUpstream``."""

    capabilities = Capability.LOG

    def __init__(self, uri: str, settings: PostgresSettings | None = None, clock: Clock | None = None) -> None:
        self.address: PostgresAddress = parse_address(uri)
        self._settings = settings or PostgresSettings()
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._closed = False
        self._book = SchemaBook(
            lambda oids: self._ask(lambda c: read_tables(c, oids)),
            lambda: self._ask(read_domains),
            lambda oids: {oid: (place.schema, place.table) for oid, place in self._watch.places(oids).items()},
        )
        self._watch = CatalogWatch(
            lambda oids: self._ask(lambda c: read_tables(c, oids)),
            lambda sql: self._ask(lambda c: c.query(sql)),
        )
        self._commits = CommitLog()
        self._stream: ReplicationStream | None = None
        self._holds: dict[str, _Hold] = {}
        self._wanted: Callable[[int], bool] | None = None
        self._reading_since_s: float | None = None
        self._own_marks: list[LogPosition] = []
        self._identity = ""

    def current_ts(self) -> int:
        """Return a ts above every commit that was acknowledged before the call, by the server's clock and what has been read."""
        return max(compose_ts(self._server_ms() + 1), self._commits.last_ts() + _TS_ROOM)

    def list_tables(self) -> Sequence[TableSchema]:
        """Return the newest version of every table that can be captured."""
        return self._book.adopt_base(self._ask(read_tables))

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        """Return every version of a table that is known, oldest first."""
        self._begin_capture(table_id)
        return list(self._book.versions(table_id))

    def adopt_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Take over table versions that the store knows."""
        self._watch.adopt_notes(versions)
        tables = [v for v in versions if not is_note(v)]
        self._book.adopt(tables)
        self._book.adopt_ends([v for v in versions if is_note(v)])
        self._book.announce(v.table_id for v in tables)

    def notes(self) -> Sequence[TableSchema]:
        """Return how tables were seen, where the journal does not have it yet."""
        return self._watch.notes(max(self._commits.last_ts(), 1))

    def divide(self, span: Span, pieces_max: int | None = None) -> Sequence[Span]:
        """Cut a span by what the server knows of the distribution of keys."""
        return cut(span, self._cuts(span.table_id), pieces_max)

    def read_now(self, span: Span) -> Iterator[ChangeBatch]:
        """Yield the rows of a span now, in one snapshot: an older state is not kept by the server."""
        table = self.schema_history(span.table_id)[-1]
        with self._open() as connection:
            connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            with self._naming_privileges(table):
                yield from scan_table(connection, plan_scan(connection, table), span, self.current_ts(), _PAGE_ROWS)

    def log_end(self) -> str:
        """Return the end of the log now, all of which can be read."""
        return format_lsn(self._ask(flushed_end))

    def reached(self, position: str, end: str) -> bool:
        """Return whether everything before ``end`` stands before ``position`` too."""
        return parse_lsn(position) >= parse_lsn(end)

    def first_position(self) -> LogPosition:
        """Return the end of the log; slot and publication are there afterwards."""
        with self._open(replication=True) as replication:
            self._ask(lambda c: ensure_slot(c, replication, self.address))
        # In this order: a commit between the two has a place after the first and a ts below the second, and the chain lifts it.
        end = self.log_end()
        tables = self._ask(read_tables)
        self._book.announce(t.table_id for t in self._book.adopt_base(tables))
        self._watch.accept(tables, first=True)
        # Whatever was captured begins anew here, also where slot and publication were given up before.
        self._watch.accept(tables)
        return LogPosition(self.current_ts(), self._text(parse_lsn(end)))

    def read_log(
        self, start: LogPosition, marks: Sequence[LogPosition], wanted: Callable[[int], bool], stop: threading.Event
    ) -> Iterator[LogStep]:
        """Yield the log from a position on; one thread reads."""
        # Before the stream is open, so that its server does not wait for a compiler.
        warm_kernels()
        start_lsn = parse_lsn(start.text)
        system = self._system()
        # Compiled while nobody waits: a server ends a stream that nobody reads for long.
        warm_kernels()
        replication = self._start_replication(start, start_lsn)
        stream = ReplicationStream(replication, 0, self._settings.reader.stream, self._clock)
        try:
            self._commits.begin(start)
            with self._lock:
                self._stream = stream
                self._wanted = wanted
                self._reading_since_s = self._reading_since_s or self._clock.monotonic_s()
            source = LogSource(
                stream, self._book, self._watch, self._fetch, self._commits, self._log_now, self._root_of, self.address.shown, system
            )
            reader = LogReader(source, self._settings.reader, self._clock)
            for step in reader.read(start, self._with_own_marks(start, marks), wanted, stop):
                try:
                    yield step
                except BaseException:
                    # Whoever ends a reading may not have taken what it told last.
                    self._watch.take_back(step.doubts)
                    raise
        finally:
            with self._lock:
                self._stream = None
            self._commits.end()
            stream.close()

    def confirm(self, position: LogPosition) -> None:
        """Tell the server that everything before a position is durable, unless a snapshot before it is open."""
        with self._lock:
            lsn = parse_lsn(position.text)
            # Nothing between is confirmed either: the reader goes back to a position that it gave, not to a snapshot's own place.
            if self._stream is not None and all(lsn <= held.lsn for held in self._holds.values()):
                self._stream.confirm(lsn)

    def begin_snapshot(self) -> SnapshotTicket:
        """Export a snapshot at an exact place of the log, and hold it until ``end_snapshot``.

        The reader of the log tells the ts of that place, so one that is about to begin is waited for: it must not begin behind it.
        """
        is_read = self._commits.wait_reading(self._settings.reader_wait_s)
        # Nothing after this place is confirmed, so that the log from the snapshot on stays readable.
        floor = parse_lsn(self.log_end())
        name = f"penstock_{system_random().getrandbits(48):012x}"
        with self._lock:
            self._holds[name] = _Hold(floor)
        self._commits.hold()
        try:
            holder = self._open(replication=True)
            try:
                made = create_slot(holder, name, temporary=True)
                start = LogPosition(self._ts_at(made.lsn, is_read), self._text(made.lsn))
            except BaseException:
                holder.close()
                raise
            with self._lock:
                self._holds[made.snapshot] = _Hold(floor, start.ts, holder)
        finally:
            self._commits.release()
            with self._lock:
                self._holds.pop(name, None)
        return SnapshotTicket(start, made.snapshot, exact=True)

    def read_snapshot(self, ticket: SnapshotTicket, span: Span, table: TableSchema, page_rows: int) -> Iterator[ChangeBatch]:
        """Yield the rows of a span in key order as INSERT at the ticket's ts."""
        with self._open() as connection:
            connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                connection.query(f"SET TRANSACTION SNAPSHOT {quote_literal(ticket.token)}")
            except PostgresError as error:
                if error.sqlstate in {_INVALID_SNAPSHOT, _NO_SNAPSHOT_FILE}:
                    # Whoever asked begins a new one; what was read of this one is of no use then.
                    raise PenstockError("UPSTREAM_UNREACHABLE", f"{self.address.shown}: the snapshot is no longer held") from None
                raise
            # Asked outside of the snapshot: statements go by the names of now, whatever the snapshot's own catalog says.
            if self._ask(lambda c: plan_remains(c, table)) is None:
                # Dropped since the snapshot began; the log tells it.
                return
            with self._naming_privileges(table):
                yield from scan_table(connection, self._ask(lambda c: plan_scan(c, table)), span, ticket.start.ts, page_rows)

    def end_snapshot(self, ticket: SnapshotTicket) -> None:
        """Release a snapshot. May be called twice."""
        with self._lock:
            held = self._holds.pop(ticket.token, None)
        if held is not None and held.connection is not None:
            held.connection.close()

    def release(self) -> None:
        """Drop the slot, and the publication if it was made here; a reading that goes on ends, so that the slot is free."""
        with self._lock:
            if self._stream is not None:
                self._stream.fail(PostgresError("LOG_PURGED", f"{self.address.shown}: the slot is given up, because no feed needs it"))
        release_slot(self.address, self._clock, self._settings.slot_wait_s)

    def close(self) -> None:
        """Release all connections."""
        with self._lock:
            self._closed = True
            holders = [h.connection for h in self._holds.values() if h.connection is not None]
            self._holds.clear()
            if self._connection is not None:
                holders.append(self._connection)
                self._connection = None
        for connection in holders:
            connection.close()

    def _cuts(self, table_id: int) -> list[bytes]:
        """Return where a table is cut, by its shape now: the log may not have told it yet."""
        found = self._ask(lambda c: read_tables(c, [table_id & OID_MASK]))
        if not found:
            # Dropped since it was listed: it has no rows to divide, and the log tells that it is gone.
            return []
        silence = found[0].silence
        if silence is not None and self._wanted is not None and self._wanted(table_id):
            # Whoever reads a table again that is captured would take it for right from then on.
            raise PenstockError("UPSTREAM_MISCONFIGURED", f"{found[0].schema}.{found[0].table}: {silence.reason}", f"Run: {silence.way}")
        try:
            return self._ask(lambda c: cut_keys(c, plan_scan(c, base_version(found[0])), self._settings.ranges))
        except PenstockError as error:
            if error.code not in {"TABLE_UNKNOWN", "UPSTREAM_CHANGING"}:
                raise
            return []

    def _begin_capture(self, table_id: int) -> None:
        """While a snapshot is open and nobody reads a table's log, it is this table whose capture begins there."""
        with self._lock:
            open_ts = [h.ts for h in self._holds.values() if h.ts]
            reading, wanted = self._reading_since_s, self._wanted
        if not open_ts or (wanted is not None and wanted(table_id)):
            return
        # After a start, spans that were captured before join one after the other: their tables change in the log, not here.
        again = reading is not None and self._clock.monotonic_s() - reading > self._settings.settled_s
        for table in self._ask(lambda c: read_tables(c, [table_id & OID_MASK])):
            if self._book.table_id(table.oid, TS_MAX) == table_id:
                held = {table.oid: self._book.held(table.oid)}
                self._book.begin_capture(table, min(open_ts), again)
                if self._watch.seen(table.oid) is None:
                    # It may be one that was captured before this process, and goes on behind what happened while nobody read.
                    for oid, reason in self._watch.rewritten([table], lambda _: False, held.get).items():
                        self._watch.put_off(parse_lsn(self.log_end()), oid, reason)
                self._watch.accept([table], first=True)

    def _ts_at(self, lsn: int, is_read: bool) -> int:
        """Return the chain's ts at a place of the log; where nobody reads it, one that the reader from there on begins with."""
        if not is_read:
            ts = self.current_ts()
            with self._lock:
                self._own_marks.append(LogPosition(ts, format_lsn(lsn)))
            return ts
        found = self._commits.ts_at(lsn, self._settings.snapshot_wait_s)
        if found is None:
            raise PenstockError("CONGESTED", f"{self.address.shown}: the log was not read up to where a snapshot begins")
        return found

    def _start_replication(self, start: LogPosition, start_lsn: int) -> Connection:
        address = self.address
        replication = self._open(replication=True)
        try:
            self._check_server(replication, start)
            slot = self._ask(lambda c: read_slot(c, address.slot))
            if slot is None:
                raise PenstockError("LOG_PURGED", f"{address.shown}: slot {address.slot} is gone, and with it the log since {start.text}")
            check_slot(slot, address)
            self._watch.begin(slot.catalog_xmin)
            if slot.confirmed_lsn > start_lsn:
                raise PenstockError(
                    "LOG_PURGED",
                    f"{address.shown}: slot {address.slot} was moved on to {format_lsn(slot.confirmed_lsn)}, past {start.text}",
                )
            names = quote_literal(quote_ident(address.publication)).strip()
            self._take_slot(
                replication,
                f"START_REPLICATION SLOT {quote_ident(address.slot)} LOGICAL {format_lsn(start_lsn)} "
                f"({self._protocol(replication)}, publication_names {names})",
            )
        except BaseException:
            replication.close()
            raise
        return replication

    def _protocol(self, replication: Connection) -> str:
        if not self.address.streaming:
            return "proto_version '1'"
        if replication.server_version < STREAMING_VERSION:
            raise PenstockError("CONFIG_INVALID", f"source: streaming=on needs PostgreSQL {STREAMING_VERSION} or newer")
        return "proto_version '2', streaming 'on'"

    def _log_now(self) -> tuple[int, int]:
        end = parse_lsn(self.log_end())
        return end, self._server_ms()

    def _root_of(self, oid: int) -> tuple[int, bool]:
        publication = quote_literal(self.address.publication)
        rows = self._ask(
            lambda c: c.query(
                f"SELECT pg_partition_root({oid})::oid,"
                f" NOT EXISTS (SELECT 1 FROM pg_publication WHERE pubname = {publication} AND pubviaroot)"
                f" WHERE EXISTS (SELECT 1 FROM pg_class WHERE oid = {oid})"
            )
        )
        return (int(rows[0][0] or 0), rows[0][1] == "t") if rows else (0, False)

    def _server_ms(self) -> int:
        text = self._ask(lambda c: c.query("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"))[0][0]
        return int(text or 0)

    def _with_own_marks(self, start: LogPosition, marks: Sequence[LogPosition]) -> list[LogPosition]:
        with self._lock:
            own = [m for m in self._own_marks if parse_lsn(m.text) >= parse_lsn(start.text)]
        return sorted([*marks, *own], key=lambda m: parse_lsn(m.text))

    def _take_slot(self, replication: Connection, statement: str) -> None:
        """Start replication; a slot that an earlier reader is just leaving is waited for."""
        deadline_s = self._clock.monotonic_s() + self._settings.slot_wait_s
        pause = threading.Event()
        while True:
            try:
                replication.start_copy_both(statement)
            except PostgresError as error:
                if error.sqlstate != _IN_USE or self._clock.monotonic_s() >= deadline_s:
                    raise
                self._clock.wait(pause, _SLOT_POLL_S)
            else:
                return

    def _check_server(self, replication: Connection, start: LogPosition) -> None:
        """Raise where this is another server than the one whose log was read, or the same one at an earlier time."""
        system, _, end, _ = replication.query("IDENTIFY_SYSTEM")[0]
        wanted = start.text.partition("@")[2]
        if wanted and wanted != system:
            raise PenstockError(
                "UPSTREAM_MISCONFIGURED",
                f"{self.address.shown}: the log that was read is of system {wanted}, this server is {system}",
                "Point the source at the server that was captured, or remove the feed and create it anew.",
            )
        if parse_lsn(end or "") < parse_lsn(start.text):
            raise PenstockError(
                "LOG_PURGED", f"{self.address.shown}: the log ends at {end}, before {start.text}: the server was restored or failed over"
            )

    def _text(self, lsn: int) -> str:
        return f"{format_lsn(lsn)}@{self._system()}"

    def _system(self) -> str:
        if not self._identity:
            with self._open(replication=True) as replication:
                self._identity = replication.query("IDENTIFY_SYSTEM")[0][0] or ""
        return self._identity

    def _fetch(
        self, table: TableSchema, _keys: pa.Array, key_columns: list[pa.Array], wanted: list[Column]
    ) -> tuple[pa.Array, list[pa.Array]]:
        def read(connection: Connection) -> tuple[pa.Array, list[pa.Array]]:
            plan = plan_remains(connection, table)
            if plan is None:
                return pa.array([], pa.binary()), [pa.array([], c.type.arrow()) for c in wanted]
            return fetch_rows(connection, plan, key_columns, wanted)

        with self._naming_privileges(table):
            return self._ask(read)

    @contextlib.contextmanager
    def _naming_privileges(self, table: TableSchema) -> Iterator[None]:
        """Say what the user lacks where the server does not let it read a table, or not all of its rows."""
        try:
            yield
        except PostgresError as error:
            if error.sqlstate != INSUFFICIENT_PRIVILEGE:
                raise
            name, user = f"{quote_ident(table.schema)}.{quote_ident(table.table)}", quote_ident(self.address.user)
            hint = f"Run: GRANT SELECT ON {name} TO {user}; where a policy of row-level security hides rows: ALTER ROLE {user} BYPASSRLS"
            raise PostgresError(error.code, error.detail, hint, error.sqlstate) from None

    def _open(self, replication: bool = False) -> Connection:
        if self._closed:
            raise PenstockError("UPSTREAM_UNREACHABLE", f"{self.address.shown}: the upstream is closed")
        return Connection(self.address, replication)

    def _ask(self, question: Callable[[Connection], T]) -> T:
        """Ask on the shared connection; one that was lost meanwhile is opened again once."""
        with self._lock:
            for attempt in (1, 2):
                fresh = self._connection is None
                connection = self._connection or self._open()
                self._connection = connection
                try:
                    return question(connection)
                except PostgresError as error:
                    if error.code == "UPSTREAM_UNREACHABLE":
                        connection.close()
                        self._connection = None
                        if attempt == 1 and not fresh:
                            continue
                    raise
                except BaseException:
                    # A question that was left half way leaves an answer on the wire.
                    connection.close()
                    self._connection = None
                    raise
        raise PenstockError("UPSTREAM_UNREACHABLE", f"{self.address.shown}: no answer")
