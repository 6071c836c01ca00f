"""A PostgreSQL database as an upstream with one log.

Owns the connections: one for questions, one for each reading of the log, one for each snapshot that is held open. What is confirmed to the
server never passes a snapshot whose log is still to be captured. Everything here only reads, except that the slot and the publication are
made where they are missing. Runs in the log service, in the server, and (``read_snapshot``) on executors.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.model.batch import ChangeBatch
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError
from penstock.model.span import Span, cut
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import TS_MAX, compose_ts
from penstock.source.contract import Capability, SnapshotTicket
from penstock.source.postgres.commit_log import CommitLog
from penstock.source.postgres.log_reader import LogReader, LogReaderSettings, LogSource
from penstock.source.postgres.replication_start import Readers, identity_of, start_replication
from penstock.source.postgres.slot import (
    INSUFFICIENT_PRIVILEGE,
    ensure_slot,
    flushed_end,
    format_lsn,
    give_up_unreadable,
    parse_lsn,
    release_slot,
)
from penstock.source.postgres.snapshot.key_ranges import RangeSettings, cut_keys
from penstock.source.postgres.snapshot.open_snapshots import OpenSnapshots
from penstock.source.postgres.snapshot.table_scan import fetch_rows, plan_remains, plan_scan, scan_table
from penstock.source.postgres.tables.catalog import OID_MASK, CatalogTable, read_domains, read_tables
from penstock.source.postgres.tables.catalog_notes import is_note
from penstock.source.postgres.tables.catalog_watch import CatalogWatch
from penstock.source.postgres.tables.schema_book import SchemaBook
from penstock.source.postgres.tables.versions import base_version
from penstock.source.postgres.warm_kernels import warm_kernels
from penstock.source.postgres.wire.address import PostgresAddress, parse_address
from penstock.source.postgres.wire.connection import Connection, PostgresError, quote_ident, quote_literal
from penstock.source.postgres.wire.questions import Questions
from penstock.source.postgres.wire.replication_stream import ReplicationStream
from penstock.source.single_log import Beginning, LogPosition, LogStep

_TS_ROOM = 1 << 13
_PAGE_ROWS = 16_384
_DURABLE_MAX = 1_024
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


class PostgresUpstream:
    """A PostgreSQL database. Implements ``LoggedUpstream``."""

    capabilities = Capability.LOG

    def __init__(self, uri: str, settings: PostgresSettings | None = None, clock: Clock | None = None) -> None:
        self.address: PostgresAddress = parse_address(uri)
        self._settings = settings or PostgresSettings()
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._questions = Questions(self.address)
        self._book = SchemaBook(
            lambda oids: self._questions.ask(lambda c: read_tables(c, oids)),
            lambda: self._questions.ask(read_domains),
            lambda oids: {oid: (place.schema, place.table) for oid, place in self._watch.places(oids).items()},
        )
        self._watch = CatalogWatch(
            lambda oids: self._questions.ask(lambda c: read_tables(c, oids)),
            lambda sql: self._questions.ask(lambda c: c.query(sql)),
        )
        self._commits = CommitLog()
        self._stream: ReplicationStream | None = None
        self._reader: LogReader | None = None
        self._durable: deque[int] = deque(maxlen=_DURABLE_MAX)
        """Places of this reading that are durable, and that may not be let go of yet."""
        self._snapshots = OpenSnapshots(
            lambda: self._questions.open(replication=True),
            lambda: parse_lsn(self.log_end()),
            self.current_ts,
            self._commits,
            self.address.shown,
        )
        self._wanted: Callable[[int], bool] | None = None
        self._reading_since_s: float | None = None
        self._identity = ""
        self._readers = Readers()

    def current_ts(self) -> int:
        """Return a ts above every commit that was acknowledged before the call, by the server's clock and what has been read."""
        return max(compose_ts(self._server_ms() + 1), self._commits.last_ts() + _TS_ROOM)

    def list_tables(self) -> Sequence[TableSchema]:
        """Return the newest version of every table that can be captured."""
        return self._book.adopt_base(self._questions.ask(read_tables))

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        """Return every version of a table that is known, oldest first."""
        self._begin_capture(table_id)
        return list(self._book.versions(table_id))

    def adopt_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Take over table versions that the store knows, and what was noted among them."""
        versions = self._snapshots.adopt_notes(versions)
        self._watch.adopt_notes(versions)
        tables = [v for v in versions if not is_note(v)]
        self._book.adopt(tables)
        self._book.adopt_ends([v for v in versions if is_note(v)])
        self._book.announce(v.table_id for v in tables)

    def notes(self) -> Sequence[TableSchema]:
        """Return how tables were seen, where the journal does not have it yet, and the marks of snapshots that nobody read the log of."""
        return (*self._watch.notes(max(self._commits.last_ts(), 1)), *self._snapshots.notes())

    def divide(self, span: Span, pieces_max: int | None = None) -> Sequence[Span]:
        """Cut a span by what the server knows of the distribution of keys."""
        return cut(span, self._cuts(span.table_id), pieces_max)

    def read_now(self, span: Span) -> Iterator[ChangeBatch]:
        """Yield the rows of a span now, in one snapshot: an older state is not kept by the server."""
        table = self.schema_history(span.table_id)[-1]
        with self._questions.open() as connection:
            connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            with self._naming_privileges(table):
                yield from scan_table(connection, plan_scan(connection, table), span, self.current_ts(), _PAGE_ROWS)

    def log_end(self) -> str:
        """Return the end of the log now, all of which can be read."""
        return format_lsn(self._questions.ask(flushed_end))

    def reached(self, position: str, end: str) -> bool:
        """Return whether everything before ``end`` stands before ``position`` too."""
        return parse_lsn(position) >= parse_lsn(end)

    def first_position(self) -> LogPosition:
        """Return the end of the log; slot and publication are there afterwards."""
        with self._questions.open(replication=True) as replication:
            self._questions.ask(lambda c: ensure_slot(c, replication, self.address))
            self._identity = identity_of(replication)
        # In this order: a commit between the two has a place after the first and a ts below the second, and the chain lifts it.
        end = self.log_end()
        tables = self._questions.ask(read_tables)
        self._book.announce(t.table_id for t in self._book.adopt_base(tables))
        self._see_anew(tables)
        return LogPosition(self.current_ts(), self._text(parse_lsn(end)))

    def begin_again(self, told_ts: int, above_ts: int) -> Beginning:
        """Return the end of the log, behind what became of the tables in the part that is lost; slot and publication are there."""
        with self._questions.open(replication=True) as replication:
            self._questions.ask(lambda c: ensure_slot(c, replication, self.address))
            self._identity = identity_of(replication)
        end = self.log_end()
        tables = self._questions.ask(read_tables)
        places = self._watch.places([t.table_id & OID_MASK for t in self._book.announced()])
        gone = [t for t in self._book.announced() if (place := places.get(t.table_id & OID_MASK)) is None or place.partition]
        position = LogPosition(max(self.current_ts(), above_ts) + _TS_ROOM, self._text(parse_lsn(end)))
        ddls, schemas = self._book.cross_hole([t for t in tables if t.published], gone, told_ts, position.ts)
        self._see_anew(tables)
        return Beginning(position, ddls, schemas)

    def _see_anew(self, tables: Sequence[CatalogTable]) -> None:
        """Take tables as seen where their capture begins, also where slot and publication were given up before."""
        self._watch.accept(tables, first=True)
        self._watch.accept(tables)

    def read_as(self, name: str, before: str, check: Callable[[], None]) -> None:
        """Tell who reads from now on and who did before; a slot that one of the two holds is taken from it."""
        self._readers = Readers(name, before, check)

    def told_up_to(self, ts: int) -> None:
        """Begin no version at or below a ts because of what the catalog shows by now: nobody would be told."""
        self._book.told_ts = ts

    def read_log(
        self, start: LogPosition, marks: Sequence[LogPosition], wanted: Callable[[int], bool], stop: threading.Event
    ) -> Iterator[LogStep]:
        """Yield the log from a position on; one thread reads."""
        # Compiled while nobody waits: a server ends a stream that nobody reads for long.
        warm_kernels()
        wait_s = self._settings.slot_wait_s
        started = start_replication(self._questions, self.address, start, self._clock, wait_s, self._readers)
        replication, slot, self._identity = started
        self._watch.begin(slot.catalog_xmin)
        stream = ReplicationStream(replication, 0, self._settings.reader.stream, self._clock)
        try:
            self._commits.begin(start)
            with self._lock:
                self._stream = stream
                self._wanted = wanted
                self._reading_since_s = self._reading_since_s or self._clock.monotonic_s()
            source = LogSource(
                stream,
                self._book,
                self._watch,
                self._fetch,
                self._commits,
                self._log_now,
                self._root_of,
                self.address.shown,
                self._identity,
            )
            reader = LogReader(source, self._settings.reader, self._clock)
            with self._lock:
                self._reader = reader
                self._durable.clear()
            for step in reader.read(start, self._snapshots.with_own_marks(start, marks), wanted, stop):
                try:
                    yield step
                except BaseException:
                    # Whoever ends a reading may not have taken what it told last.
                    self._watch.take_back(step.doubts)
                    raise
        except PostgresError as error:
            stream.close()
            raise give_up_unreadable(error, self.address, self._clock, self._settings.slot_wait_s) from None
        finally:
            with self._lock:
                self._stream = self._reader = None
            self._commits.end()
            stream.close()

    def confirm(self, position: LogPosition) -> None:
        """Tell the server that everything before a position is durable, unless a snapshot before it is open.

        And unless the catalog was not looked at behind it: what happened to tables before then could be found no more after a crash.
        """
        with self._lock:
            if self._stream is None or self._reader is None:
                return
            self._durable.append(parse_lsn(position.text))
            # Nothing between is confirmed either: the reader goes back to a position that it gave, not to a snapshot's own place.
            ready = [lsn for lsn in self._durable if lsn <= self._reader.confirmable_lsn and self._snapshots.lets_go(lsn)]
            if ready:
                self._stream.confirm(max(ready))
                self._durable = deque((lsn for lsn in self._durable if lsn > max(ready)), _DURABLE_MAX)

    def begin_snapshot(self) -> SnapshotTicket:
        """Export a snapshot at an exact place of the log, and hold it until ``end_snapshot``.

        The reader of the log tells the ts of that place, so one that is about to begin is waited for: it must not begin behind it.
        """
        name, lsn, ts = self._snapshots.begin(self._settings.reader_wait_s, self._settings.snapshot_wait_s)
        return SnapshotTicket(LogPosition(ts, self._text(lsn)), name, exact=True)

    def read_snapshot(self, ticket: SnapshotTicket, span: Span, table: TableSchema, page_rows: int) -> Iterator[ChangeBatch]:
        """Yield the rows of a span in key order as INSERT at the ticket's ts."""
        with self._questions.open() as connection:
            connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                connection.query(f"SET TRANSACTION SNAPSHOT {quote_literal(ticket.token)}")
            except PostgresError as error:
                if error.sqlstate in {_INVALID_SNAPSHOT, _NO_SNAPSHOT_FILE}:
                    # Whoever asked begins a new one; what was read of this one is of no use then.
                    raise PenstockError("UPSTREAM_UNREACHABLE", f"{self.address.shown}: the snapshot is no longer held") from None
                raise
            # Asked outside of the snapshot: statements go by the names of now, whatever the snapshot's own catalog says.
            if self._questions.ask(lambda c: plan_remains(c, table)) is None:
                # Dropped since the snapshot began; the log tells it.
                return
            with self._naming_privileges(table):
                yield from scan_table(connection, self._questions.ask(lambda c: plan_scan(c, table)), span, ticket.start.ts, page_rows)

    def end_snapshot(self, ticket: SnapshotTicket) -> None:
        """Release a snapshot. May be called twice."""
        self._snapshots.end(ticket.token)

    def release(self) -> None:
        """Drop the slot, and the publication if it was made here; a reading that goes on ends, so that the slot is free."""
        with self._lock:
            if self._stream is not None:
                self._stream.fail(PostgresError("LOG_PURGED", f"{self.address.shown}: the slot is given up, because no feed needs it"))
        release_slot(self.address, self._clock, self._settings.slot_wait_s)

    def close(self) -> None:
        """Release all connections."""
        self._questions.close()
        self._snapshots.close()

    def _cuts(self, table_id: int) -> list[bytes]:
        """Return where a table is cut, by its shape now: the log may not have told it yet."""
        found = self._questions.ask(lambda c: read_tables(c, [table_id & OID_MASK]))
        if not found:
            # Dropped since it was listed: it has no rows to divide, and the log tells that it is gone.
            return []
        silence = found[0].silence
        if silence is not None and self._wanted is not None and self._wanted(table_id):
            # Whoever reads a table again that is captured would take it for right from then on.
            raise PenstockError("UPSTREAM_MISCONFIGURED", f"{found[0].schema}.{found[0].table}: {silence.reason}", f"Run: {silence.way}")
        try:
            return self._questions.ask(lambda c: cut_keys(c, plan_scan(c, base_version(found[0])), self._settings.ranges))
        except PenstockError as error:
            if error.code not in {"TABLE_UNKNOWN", "UPSTREAM_CHANGING"}:
                raise
            return []

    def _begin_capture(self, table_id: int) -> None:
        """While a snapshot is open and nobody reads a table's log, it is this table whose capture begins there."""
        open_ts = self._snapshots.first_ts()
        with self._lock:
            reading, wanted = self._reading_since_s, self._wanted
        if open_ts is None or (wanted is not None and wanted(table_id)):
            return
        # After a start, spans that were captured before join one after the other: their tables change in the log, not here.
        again = reading is not None and self._clock.monotonic_s() - reading > self._settings.settled_s
        for table in self._questions.ask(lambda c: read_tables(c, [table_id & OID_MASK])):
            if self._book.table_id(table.oid, TS_MAX) == table_id:
                held = {table.oid: self._book.held(table.oid)}
                self._book.begin_capture(table, open_ts, again)
                if self._watch.seen(table.oid) is None:
                    # It may be one that was captured before this process, and goes on behind what happened while nobody read.
                    for oid, reason in self._watch.rewritten([table], lambda _: False, held.get).items():
                        self._watch.put_off(parse_lsn(self.log_end()), oid, reason)
                self._watch.accept([table], first=True)
                if not self._book.is_told(table):
                    # Told before this process, and changed since without a row: the next look tells it.
                    self._watch.leave_untold(table.oid)

    def _log_now(self) -> tuple[int, int]:
        end = parse_lsn(self.log_end())
        return end, self._server_ms()

    def _root_of(self, oid: int) -> tuple[int, bool]:
        publication = quote_literal(self.address.publication)
        rows = self._questions.ask(
            lambda c: c.query(
                f"SELECT pg_partition_root({oid})::oid,"
                f" NOT EXISTS (SELECT 1 FROM pg_publication WHERE pubname = {publication} AND pubviaroot)"
                f" WHERE EXISTS (SELECT 1 FROM pg_class WHERE oid = {oid})"
            )
        )
        return (int(rows[0][0] or 0), rows[0][1] == "t") if rows else (0, False)

    def _server_ms(self) -> int:
        text = self._questions.ask(lambda c: c.query("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"))[0][0]
        return int(text or 0)

    def _text(self, lsn: int) -> str:
        return f"{format_lsn(lsn)}@{self._system()}"

    def _system(self) -> str:
        if not self._identity:
            with self._questions.open(replication=True) as replication:
                self._identity = identity_of(replication)
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
            return self._questions.ask(read)

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
