"""The reader of the binlog: raw events to log steps, transaction by transaction, as large as they come.

A step holds every whole transaction that has arrived; rows of one table are decoded together, whatever transactions they are of. A
transaction's ts is known from its first event, so one that is larger than ``PIECE_BYTES`` is given in pieces, without a position until its
end. What the log does not tell of a table, or tells in a way that cannot be read, is a doubt about that table and stops no other. Runs in
the log service; one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.ddl.tokens import tokens
from penstock.kernels.jit import I64, U64
from penstock.model.batch import ChangeBatch
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.timestamp import compose_ts
from penstock.source.mysql.doubt_book import DoubtBook, doubts_of
from penstock.source.mysql.event_scan import EventScan
from penstock.source.mysql.log_line import LogLine, MarkPace
from penstock.source.mysql.position import LogPlace
from penstock.source.mysql.prepared_transactions import PreparedTransaction, PreparedTransactions
from penstock.source.mysql.rows.rows_decoder import ReadRows, RowsDecoder
from penstock.source.mysql.tables.ddl_parts import DdlPart, ddl_parts, makes_table
from penstock.source.mysql.tables.harmless import plain_words
from penstock.source.mysql.tables.table_slots import TableSlots
from penstock.source.mysql.tables.table_versions import TableVersions, Told
from penstock.source.mysql.text_changes import TextChanges
from penstock.source.mysql.transaction_pieces import TransactionPieces
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire import framing
from penstock.source.mysql.wire.dump import DumpSettings, EventStream
from penstock.source.mysql.wire.log_events import (
    REFUSED,
    QueryEvent,
    parse_format,
    parse_payload,
    parse_query,
    parse_rotate,
    parse_xa_prepare,
    parse_xid,
)
from penstock.source.single_log import LogPosition, LogStep, TableDoubt


@dataclass(frozen=True)
class LogReaderSettings:
    """How the log is read."""

    idle_s: float = 0.05
    """A log that brings nothing for so long is quiet."""
    mark_interval_s: float = 0.5
    """How often the resolved ts of a quiet log moves on."""
    piece_bytes: int = framing.PIECE_BYTES
    dump: DumpSettings = field(default_factory=DumpSettings)


class LogReader:
    """Reads one stream to its end. Not thread safe."""

    def __init__(
        self,
        stream: EventStream,
        tables: TableVersions,
        start: LogPosition,
        marks: Sequence[LogPosition],
        wanted: Callable[[int], bool],
        settings: LogReaderSettings,
        clock: Clock,
        ends_at: Callable[[LogPlace], bool] = lambda _: True,
        read_rows: ReadRows | None = None,
        writes_elsewhere: Callable[[], bool] = lambda: False,
    ) -> None:
        """``ends_at`` tells whether the log ends at a place now, ``read_rows`` reads by key what the log leaves out.

        ``writes_elsewhere`` tells whether a change may reach tables that its text does not name.
        """
        self._ends_at = ends_at
        self._tables = tables
        self._wanted = wanted
        self._settings = settings
        self._clock = clock
        self._scan = EventScan(stream, settings.piece_bytes)
        self._line = LogLine(start, marks)
        self._slots = TableSlots(tables, self._line.mariadb)
        self._rows = RowsDecoder(self._slots, tables, read_rows)
        self._texts = TextChanges(tables, writes_elsewhere)
        self._pieces = TransactionPieces(self._line)
        self._doubts = DoubtBook()
        self._held = PreparedTransactions()
        self._pace = MarkPace(settings.mark_interval_s, self._line.last_ts, clock)

    @property
    def position(self) -> LogPosition:
        """Return where the reader is."""
        return self._line.position

    @property
    def place(self) -> tuple[int, LogPlace]:
        """Return the ts up to which everything was read, and its place."""
        return self._line.last_ts, self._line.place

    def steps(self, stop: threading.Event) -> Iterator[LogStep]:
        """Yield the log until it is stopped."""
        while not stop.is_set():
            self._slots.choose(self._wanted)
            yield from self._read()
            self._scan.compact()
            if not self._scan.stream.receive(self._settings.idle_s):
                yield self._mark() or LogStep()

    def _read(self) -> Iterator[LogStep]:
        """Go over all whole events of the buffer."""
        while True:
            why = self._scan.run(self._slots, self._line.sid_bytes)
            if why == framing.STOP_END:
                yield from self._flush()
                yield from self._give_pieces()
                return
            if why == framing.STOP_TABLE:
                yield from self._on_table_map()
            elif why == framing.STOP_SID:
                self._line.add_sid(self._scan.body()[1:17])
            elif why == framing.STOP_EVENT:
                yield from self._on_event()
            elif why in {framing.STOP_CHECKSUM, framing.STOP_BAD}:
                what = "fails its checksum" if why == framing.STOP_CHECKSUM else "is malformed"
                raise PenstockError("DECODE_FAILED", f"an event of the log near {self._line.place.file}:{self._line.place.offset} {what}")
            else:
                yield from self._flush()

    # -- giving

    def _flush(self) -> Iterator[LogStep]:
        """Give every whole transaction; the rows of the open one stay."""
        if self._scan.whole == 0:
            return
        txns, rows = self._scan.whole_transactions()
        after = self._line.after(txns)
        last_piece = int(txns[0, framing.TXN_PIECE])
        if last_piece:
            yield from self._flush_pieces(last_piece, after)
            return
        ts = self._line.chained(txns, after)
        self._doubts.date(ts)
        changes = self._decoded(rows, ts[rows[:, framing.ROW_TXN]])
        self._line.place = after
        self._scan.take_transactions(len(rows))
        yield self._step(changes, self._given_position())

    def _flush_pieces(self, last_piece: int, after: LogPlace) -> Iterator[LogStep]:
        """Give what is left of a transaction of several pieces, the only one that is whole."""
        yield from self._give_pieces()
        self._pieces.ensure_begun(self._scan.time_ms)
        _, rows = self._scan.whole_transactions()
        changes = self._piece(rows)
        self._doubts.date(np.array([self._pieces.end(last_piece)], dtype=np.uint64))
        self._line.place = after
        self._scan.take_transactions(len(rows))
        yield self._step(changes, self._given_position())

    def _flush_alone(self) -> Iterator[LogStep]:
        """Give a transaction of several pieces that just ended, before others are noted behind it."""
        if self._scan.piece and not self._scan.is_open:
            yield from self._flush()

    def _give_pieces(self) -> Iterator[LogStep]:
        """Give the finished pieces of a transaction."""
        while len(rows := self._scan.finished_piece()):
            changes = self._piece(rows)
            self._scan.take_piece(len(rows))
            yield self._step(changes)

    def _give_open(self) -> Iterator[LogStep]:
        """Give everything of the open transaction, which has several pieces, up to here."""
        self._pieces.raise_line(self._scan.time_ms, self._scan.piece)
        yield from self._give_pieces()
        rows = self._scan.open_rows()
        changes = self._piece(rows)
        self._scan.take_piece(len(rows))
        yield self._step(changes)

    def _piece(self, rows: I64) -> list[ChangeBatch]:
        """Decode rows events of one piece, or of none."""
        self._pieces.ensure_begun(self._scan.time_ms)
        number = int(rows[0, framing.ROW_PIECE]) if len(rows) else 0
        changes = self._decoded(rows, np.full(len(rows), self._pieces.ts_of(number), dtype=np.uint64))
        return self._pieces.separated(changes, number, self._rows.is_counted)

    def _step(self, changes: Sequence[ChangeBatch] = (), position: LogPosition | None = None, told: Sequence[Told] = ()) -> LogStep:
        """Return a step with the doubts that came up; those about tables that nobody captures are kept to ourselves."""
        for found in told:
            self._doubts.add(found.doubts)
        ddls = tuple(found.event for found in told if found.event is not None)
        doubts = self._doubts.take_for(self._wanted, ddls)
        schemas, gone = tuple(ended for found in told for ended in found.ended), tuple(name for found in told for name in found.gone)
        return LogStep(tuple(changes), ddls, position, doubts=doubts, schemas=schemas, gone=gone)

    def _given_position(self) -> LogPosition | None:
        return None if self._held else self.position

    def _decoded(self, rows: I64, ts: U64) -> list[ChangeBatch]:
        """Decode rows; those of a table that cannot be decoded are left out, with a doubt about it."""
        changes, doubts = self._rows.decoded(self._scan.stream.events, rows, ts)
        self._doubts.add(doubts)
        return changes

    def _mark(self) -> LogStep | None:
        """Let the ts of a quiet log move on; None while that is not due."""
        if not self._scan.is_quiet or self._held or not self._pace.is_due(self._line.last_ts):
            return None
        marked = self._line.mark(compose_ts(self._clock.now_ms()), self._ends_at)
        return LogStep(position=self.position, mark=True) if marked else None

    # -- events

    def _on_table_map(self) -> Iterator[LogStep]:
        """Make a table map known; where it tells another table than the one that is known, that begins in front of the open transaction."""
        body = self._scan.body()
        slot = self._slots.add(int.from_bytes(body[:6], "little"), body[6:])
        if not self._slots.unchecked(slot):
            return
        yield from self._flush()
        time_ms, piece = self._scan.time_ms, self._scan.piece
        if piece:
            self._pieces.raise_line(self._scan.time_ms, self._scan.piece)
        told = self._tables.revise(self._slots.map_of(slot), self._line.coming_ts(time_ms))
        if told.event is not None:
            if piece:
                # What came before it in the transaction has its ts already.
                yield from self._give_open()
            self._line.next_ts(time_ms)
            self._slots.unbind()
            if piece:
                self._pieces.go_on(time_ms, piece)
            yield self._step(told=(told,))
        else:
            self._doubts.add_undated(self._scan.whole, told.doubts)
        self._slots.choose(self._wanted)

    def _on_event(self) -> Iterator[LogStep]:
        kind = self._scan.kind
        if kind in {wire.QUERY, wire.QUERY_COMPRESSED, wire.EXECUTE_LOAD_QUERY}:
            is_load = kind == wire.EXECUTE_LOAD_QUERY
            query = parse_query(self._scan.body(), kind == wire.QUERY_COMPRESSED, is_load, self._tables.collation_charset)
            yield from self._on_query(query)
            return
        if kind == wire.TRANSACTION_PAYLOAD:
            self._scan.replace(parse_payload(self._scan.body(), self._scan.end_offset.to_bytes(4, "little")))
            return
        if kind in REFUSED or kind == wire.ROTATE:
            yield from self._flush()
        if kind in REFUSED:
            code, text, hint = REFUSED[kind]
            raise PenstockError(code, text, hint)
        if kind == wire.XA_PREPARE:
            yield from self._on_xa_prepare()
        elif kind == wire.PARTIAL_UPDATE_ROWS:
            self._on_partial_update()
        elif kind == wire.ROTATE:
            self._line.rotate(*parse_rotate(self._scan.body()))
        elif kind == wire.FORMAT_DESCRIPTION:
            self._scan.checksum_bytes = 0
            self._scan.checksum_bytes = parse_format(self._scan.body())
            self._slots.forget_ids()
        elif kind in {wire.HEARTBEAT, wire.HEARTBEAT_V2}:
            self._on_heartbeat(kind)
        elif not self._scan.is_ignorable:
            raise PenstockError("DECODE_FAILED", f"the log holds an event of type {kind}, which is not supported")
        self._scan.skip()

    def _on_heartbeat(self, kind: int) -> None:
        """Without GTIDs, go on to the place that a quiet server tells: behind events that are no transactions, such as a file's first."""
        if kind == wire.HEARTBEAT and self._scan.is_quiet:
            self._line.come_to(self._scan.body().decode("utf-8", errors="replace"), self._scan.end_offset)

    def _on_partial_update(self) -> None:
        slot = self._slots.slot_of(int.from_bytes(self._scan.body()[:6], "little"))
        if slot is not None and self._slots.wanted[slot]:
            self._doubts.add_undated(self._scan.whole, [self._rows.partly_told(slot)])

    # -- statements

    def _on_query(self, query: QueryEvent) -> Iterator[LogStep]:
        exact = plain_words(tokens(query.text))
        words = [t.upper() for t in exact[:4]]
        inside = self._scan.is_inside
        if words[:1] == ["XA"]:
            yield from self._on_xa(words[1], query.text)
            return
        if inside and words[:1] == ["SAVEPOINT"]:
            self._scan.save_point(exact[1])
            self._scan.skip()
            return
        if inside and words[:1] == ["ROLLBACK"]:
            self._roll_back(words, exact)
            self._scan.skip()
            yield from self._flush_alone()
            return
        parts = ddl_parts(query, self._scan.is_of_session, self._scan.is_undone)
        doubts = self._texts.doubts(exact, query.schema) if parts is None else []
        # MariaDB marks every CREATE OR REPLACE as one of its session, and whatever read a temporary table.
        if inside and (parts is None or (self._scan.is_of_session and not makes_table(parts))):
            self._doubts.add_undated(self._scan.whole, doubts)
            self._scan.skip()
            return
        yield from self._flush()
        yield from self._on_statement(parts or [], inside, doubts)

    def _on_statement(self, parts: Sequence[DdlPart], inside: bool, doubts: Sequence[TableDoubt]) -> Iterator[LogStep]:
        """Give a statement that is a transaction of its own, or one that creates the table whose rows follow in the same one."""
        self._scan.begin_statement()
        after = self._line.place if inside else self._line.after(self._scan.entry())
        piece = self._scan.piece if inside else 0
        if piece:
            yield from self._give_open()
        ts = self._line.next_ts(self._scan.time_ms, after, max(1, len(parts)))
        told = [self._tables.apply(part, said, ts + at, lambda: self._ends_at(after)) for at, (part, said) in enumerate(parts)]
        self._doubts.add(doubts, ts)
        if any(found.event is not None or found.ended for found in told):
            self._slots.unbind()
            self._slots.choose(self._wanted)
        if inside:
            if piece:
                self._pieces.go_on(self._scan.time_ms, piece)
            self._scan.skip()
            yield self._step(told=told)
            return
        self._end_statement(after)
        yield self._step((), self._given_position(), told)

    def _end_statement(self, after: LogPlace) -> None:
        """End a transaction that is one statement, behind it."""
        self._scan.end_transaction(is_noted=False)
        self._scan.skip()
        self._line.place = after

    def _roll_back(self, words: Sequence[str], exact: Sequence[str]) -> None:
        """Forget rows of the open transaction: those since a savepoint, or all and with them the transaction."""
        if self._scan.is_cut:
            reason = f"a transaction of more than {self._settings.piece_bytes} bytes was given before it was rolled back"
            self._doubts.add_undated(self._scan.whole, self._given_doubts(reason))
        if "TO" in words:
            self._scan.roll_back(exact[3] if words[2:3] == ["SAVEPOINT"] else exact[words.index("TO") + 1])
            return
        self._scan.roll_back(None)
        self._scan.end_transaction(is_noted=True)

    # -- XA transactions

    def _on_xa_prepare(self) -> Iterator[LogStep]:
        """Hold the rows of an XA transaction until it is decided; no position is given meanwhile, so that a restart reads them again."""
        xid, one_phase = parse_xa_prepare(self._scan.body())
        yield from self._flush()
        if not one_phase:
            self._held.hold(xid, self._given_up() if self._scan.is_cut else self._prepared())
            self._scan.roll_back(None)
        self._scan.end_transaction(is_noted=True)
        yield from self._flush_alone()

    def _prepared(self) -> PreparedTransaction:
        rows = self._scan.open_rows()
        changes = self._decoded(rows, np.zeros(len(rows), dtype=np.uint64))
        return PreparedTransaction(changes, self._doubts.take_all())

    def _given_up(self) -> PreparedTransaction:
        """Doubt the tables of an XA transaction of which pieces were given already: nobody knew that it was to be decided later."""
        reason = f"an XA transaction of more than {self._settings.piece_bytes} bytes was given before it was decided"
        doubts = self._given_doubts(reason)
        self._doubts.add_undated(self._scan.whole, doubts)
        return PreparedTransaction([], doubts, was_given=True)

    def _given_doubts(self, reason: str) -> list[TableDoubt]:
        """Doubt the tables of the open transaction, of which pieces were given."""
        numbers = self._pieces.table_ids
        for slot in np.unique(self._scan.open_rows()[:, framing.ROW_SLOT]):
            table = self._slots.table_of(int(slot))
            numbers |= {table.table_id} if table is not None else set()
        return doubts_of([t for t in self._tables.list() if t.table_id in numbers], reason)

    def _on_xa(self, verb: str, text: str) -> Iterator[LogStep]:
        if verb not in {"COMMIT", "ROLLBACK"}:
            self._scan.skip()
            return
        yield from self._flush()
        held = self._held.take(parse_xid(text), self._tables.list())
        after = self._line.after(self._scan.entry())
        ts = self._line.next_ts(self._scan.time_ms, after)
        changes, doubts = held.decided(verb, ts)
        self._doubts.add(doubts, ts)
        self._end_statement(after)
        yield self._step(changes, self._given_position())
