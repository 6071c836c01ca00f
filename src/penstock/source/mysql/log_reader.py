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

import msgspec
import numpy as np
import pyarrow as pa

from penstock.ddl.statement import Statement, parse_statement
from penstock.ddl.tokens import tokens
from penstock.kernels.jit import I64, U64
from penstock.model.batch import ChangeBatch
from penstock.model.clock import Clock
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.rows.bag_key import is_bag
from penstock.model.table import TableSchema
from penstock.model.timestamp import compose_ts
from penstock.source.mysql.doubt_book import DoubtBook, doubts_of
from penstock.source.mysql.event_scan import EventScan
from penstock.source.mysql.log_line import LogLine
from penstock.source.mysql.position import LogPlace
from penstock.source.mysql.rows.rows_decoder import ReadRows, decode_rows
from penstock.source.mysql.tables.alter_actions import parts_of
from penstock.source.mysql.tables.composed import compose_drop
from penstock.source.mysql.tables.harmless import is_harmless, plain_words
from penstock.source.mysql.tables.table_slots import TableSlots
from penstock.source.mysql.tables.table_versions import TableVersions, Told
from penstock.source.mysql.transaction_pieces import TransactionPieces, at_ts
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire import framing
from penstock.source.mysql.wire.dump import DumpSettings, EventStream
from penstock.source.mysql.wire.log_events import (
    QueryEvent,
    Xid,
    parse_format,
    parse_payload,
    parse_query,
    parse_rotate,
    parse_xa_prepare,
    parse_xid,
)
from penstock.source.single_log import LogPosition, LogStep, TableDoubt

_OF_ONE_TABLE = frozenset({"SCHEMA_UNKNOWN", "DECODE_FAILED", "TYPE_UNSUPPORTED", "UPSTREAM_MISCONFIGURED"})
"""Errors that concern the table whose rows were decoded, and no other."""
_TEXT_HINT = "Run SET GLOBAL binlog_format = 'ROW' and reconnect the writers."
_MADE_ELSEWHERE = frozenset({"TRIGGER", "FUNCTION"})
_PARTIAL_HINT = "Run SET GLOBAL binlog_row_value_options = '' and reconnect the writers."
_REFUSED = {
    wire.INCIDENT: ("LOG_PURGED", "the server lost events of its log (an incident event)", None),
    wire.GTID_TAGGED: ("UPSTREAM_MISCONFIGURED", "the log holds tagged GTIDs", "Write with untagged GTIDs: gtid_next = 'AUTOMATIC'."),
}


@dataclass(frozen=True)
class LogReaderSettings:
    """How the log is read."""

    idle_s: float = 0.05
    """A log that brings nothing for so long is quiet."""
    mark_interval_s: float = 0.5
    """How often the resolved ts of a quiet log moves on."""
    piece_bytes: int = framing.PIECE_BYTES
    dump: DumpSettings = field(default_factory=DumpSettings)


class HeldTransaction(msgspec.Struct, frozen=True):
    """A transaction that is prepared and not decided: what it changes, at ts 0."""

    changes: list[ChangeBatch]
    doubts: list[TableDoubt]
    was_given: bool = False
    """Whether pieces of it were given all the same."""


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
        self._writes_elsewhere = writes_elsewhere
        self._reach: bool | None = None
        """What it told last."""
        self._ends_at = ends_at
        self._read_rows = read_rows
        self._tables = tables
        self._wanted = wanted
        self._settings = settings
        self._clock = clock
        self._scan = EventScan(stream, settings.piece_bytes)
        self._line = LogLine(start, marks)
        self._slots = TableSlots(tables, self._line.mariadb)
        self._pieces = TransactionPieces()
        self._doubts = DoubtBook()
        self._held: dict[Xid, HeldTransaction] = {}
        """XA transactions that are prepared."""
        self._marked_s = clock.monotonic_s()

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
        unsaved = self._tables.unsaved()
        if unsaved:
            yield LogStep(schemas=unsaved)
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
        self._begin_pieces()
        _, rows = self._scan.whole_transactions()
        changes = self._piece(rows)
        ts = self._pieces.ts_of(last_piece)
        self._line.raise_to(ts)
        self._doubts.date(np.array([ts], dtype=np.uint64))
        self._pieces.end()
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
        self._raise_to_piece()
        yield from self._give_pieces()
        rows = self._scan.open_rows()
        changes = self._piece(rows)
        self._scan.take_piece(len(rows))
        yield self._step(changes)

    def _piece(self, rows: I64) -> list[ChangeBatch]:
        """Decode rows events of one piece, or of none."""
        self._begin_pieces()
        number = int(rows[0, framing.ROW_PIECE]) if len(rows) else 0
        changes = self._decoded(rows, np.full(len(rows), self._pieces.ts_of(number), dtype=np.uint64))
        return self._pieces.separated(changes, number, self._is_bag)

    def _raise_to_piece(self) -> None:
        """Let what comes be above everything of the open transaction up to here."""
        self._begin_pieces()
        self._line.raise_to(self._pieces.ts_of(self._scan.piece))

    def _begin_pieces(self) -> None:
        if not self._pieces.is_begun:
            self._pieces.begin(self._line.next_ts(self._scan.time_ms))

    def _step(self, changes: Sequence[ChangeBatch] = (), position: LogPosition | None = None, told: Sequence[Told] = ()) -> LogStep:
        """Return a step with the doubts that came up; those about tables that nobody captures are kept to ourselves."""
        for found in told:
            self._doubts.add(found.doubts)
        ddls = tuple(found.event for found in told if found.event is not None)
        made = self._made(ddls)
        doubts = tuple(d for d in self._doubts.take() if d.table_id == 0 or d.table_id in made or self._wanted(d.table_id))
        return LogStep(tuple(changes), ddls, position, doubts=doubts, schemas=tuple(ended for found in told for ended in found.ended))

    def _made(self, ddls: Sequence[DdlEvent]) -> set[int]:
        """Return the tables that DDLs make, in the place of none or of one that is captured: nobody can have asked for them yet."""
        made = [d for d in ddls if d.type is DdlType.CREATE_TABLE and all(map(self._wanted, d.dropped_table_ids))]
        return {table.table_id for ddl in made for table in ddl.tables}

    def _given_position(self) -> LogPosition | None:
        return None if self._held else self.position

    def _decoded(self, rows: I64, ts: U64) -> list[ChangeBatch]:
        """Decode rows; those of a table that cannot be decoded are left out, with a doubt about it."""
        changes: list[ChangeBatch] = []
        of_slot = rows[:, framing.ROW_SLOT]
        slots = np.unique(of_slot)
        for slot in slots:
            mine, when = (rows, ts) if len(slots) == 1 else (rows[of_slot == slot], ts[of_slot == slot])
            try:
                binding = self._slots.bind(int(slot))
                changes += decode_rows(self._scan.stream.events, binding, mine, when, self._charset, self._read_rows)
            except PenstockError as error:
                if error.code not in _OF_ONE_TABLE:
                    raise
                self._doubts.add([self._left_out(int(slot), error)], int(when.min()))
            except (pa.ArrowException, ValueError, KeyError, OverflowError) as error:
                self._doubts.add([self._left_out(int(slot), PenstockError("DECODE_FAILED", type(error).__name__))], int(when.min()))
        return changes

    def _left_out(self, slot: int, error: PenstockError) -> TableDoubt:
        """Return the doubt about a table whose rows are left out."""
        mapped, table = self._slots.map_of(slot), self._slots.table_of(slot)
        number = table.table_id if table is not None else 0
        return TableDoubt(number, mapped.schema, mapped.table, 0, error.detail, error.code, error.hint or "")

    def _charset(self, table: TableSchema, column: str) -> str:
        return self._tables.charset((table.schema, table.table), column)

    def _is_bag(self, change: ChangeBatch) -> bool:
        versions = self._tables.history(change.header.table_id)
        return any(v.version == change.header.schema_version and is_bag(v) for v in versions)

    def _mark(self) -> LogStep | None:
        """Let the ts of a quiet log move on; None while that is not due."""
        now_s = self._clock.monotonic_s()
        if not self._scan.is_quiet or self._held or now_s - self._marked_s < self._settings.mark_interval_s:
            return None
        self._marked_s = now_s
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
            self._raise_to_piece()
        told = self._tables.revise(self._slots.map_of(slot), self._line.coming_ts(time_ms))
        if told.event is not None:
            if piece:
                # What came before it in the transaction has its ts already.
                yield from self._give_open()
            self._line.next_ts(time_ms)
            self._slots.unbind()
            if piece:
                self._pieces.begin(self._line.further_ts(time_ms), piece)
            yield self._step(told=(told,))
        else:
            self._doubts.add_undated(self._scan.whole, told.doubts)
        self._slots.choose(self._wanted)

    def _on_event(self) -> Iterator[LogStep]:
        kind = self._scan.kind
        if kind in {wire.QUERY, wire.QUERY_COMPRESSED, wire.EXECUTE_LOAD_QUERY}:
            query = parse_query(self._scan.body(), kind == wire.QUERY_COMPRESSED, kind == wire.EXECUTE_LOAD_QUERY)
            yield from self._on_query(query)
            return
        if kind == wire.TRANSACTION_PAYLOAD:
            self._scan.replace(parse_payload(self._scan.body(), self._scan.end_offset.to_bytes(4, "little")))
            return
        if kind in _REFUSED or kind == wire.ROTATE:
            yield from self._flush()
        if kind in _REFUSED:
            code, text, hint = _REFUSED[kind]
            raise PenstockError(code, text, hint)
        if kind == wire.XA_PREPARE:
            yield from self._on_xa_prepare()
        elif kind == wire.PARTIAL_UPDATE_ROWS:
            self._on_partial_update()
        elif kind == wire.ROTATE:
            file, offset = parse_rotate(self._scan.body())
            self._line.place = LogPlace(file, offset, self._line.place.gtids)
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
        if kind == wire.HEARTBEAT and self._line.place.gtids is None and self._scan.is_quiet:
            told = LogPlace(self._scan.body().decode("utf-8", errors="replace"), self._scan.end_offset)
            if told.reached(self._line.place):
                self._line.place = told

    def _on_partial_update(self) -> None:
        slot = self._slots.slot_of(int.from_bytes(self._scan.body()[:6], "little"))
        if slot is not None and self._slots.wanted[slot]:
            error = PenstockError("UPSTREAM_MISCONFIGURED", "the log holds partial updates of its JSON columns", _PARTIAL_HINT)
            self._doubts.add_undated(self._scan.whole, [self._left_out(slot, error)])

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
        temporary = self._scan.is_of_session and words[:1] in (["ALTER"], ["TRUNCATE"])
        statement = None if temporary else parse_statement(query.text, query.schema)
        doubts = self._text_doubts(exact, query.schema) if statement is None and not temporary else []
        if inside and statement is None:
            self._doubts.add_undated(self._scan.whole, doubts)
            self._scan.skip()
            return
        text = query.text
        if statement is not None and query.failed and statement.type is DdlType.CREATE_TABLE:
            # One that was to replace a table and failed has dropped it.
            text = compose_drop(statement.tables)
            statement = Statement(DdlType.DROP_TABLE, statement.schema, statement.tables) if statement.renamed else None
        yield from self._flush()
        yield from self._on_statement(statement, text, query.schema, inside, doubts)

    def _text_doubts(self, words: Sequence[str], schema: str) -> list[TableDoubt]:
        """Doubt what a statement that is no DDL of a table may have changed."""
        if is_harmless(words):
            if _MADE_ELSEWHERE.intersection(w.upper() for w in words):
                self._reach = None
            return []
        if self._reach is None:
            self._reach = self._writes_elsewhere()
        reason = f"the log holds a change as text ({words[0].upper()}): binlog_format is not ROW"
        named = self._tables.named(words, schema, self._reach)
        return doubts_of(named, reason, "UPSTREAM_MISCONFIGURED", _TEXT_HINT)

    def _on_statement(
        self, statement: Statement | None, text: str, schema: str, inside: bool, doubts: Sequence[TableDoubt]
    ) -> Iterator[LogStep]:
        """Give a statement that is a transaction of its own, or one that creates the table whose rows follow in the same one."""
        self._scan.begin_statement()
        after = self._line.place if inside else self._line.after(self._scan.entry())
        piece = self._scan.piece if inside else 0
        if piece:
            yield from self._give_open()
        parts = parts_of(statement, text, schema) if statement is not None else []
        ts = self._line.next_ts(self._scan.time_ms, after, max(1, len(parts)))
        told = [self._tables.apply(part, said, ts + at, lambda: self._ends_at(after)) for at, (part, said) in enumerate(parts)]
        self._doubts.add(doubts, ts)
        if any(found.event is not None or found.ended for found in told):
            self._slots.unbind()
            self._slots.choose(self._wanted)
        if inside:
            if piece:
                self._pieces.begin(self._line.further_ts(self._scan.time_ms), piece)
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
            self._held[xid] = self._given_up() if self._scan.is_cut else self._prepared()
            self._scan.roll_back(None)
        self._scan.end_transaction(is_noted=True)
        yield from self._flush_alone()

    def _prepared(self) -> HeldTransaction:
        rows = self._scan.open_rows()
        changes = self._decoded(rows, np.zeros(len(rows), dtype=np.uint64))
        return HeldTransaction(changes, self._doubts.take_all())

    def _given_up(self) -> HeldTransaction:
        """Doubt the tables of an XA transaction of which pieces were given already: nobody knew that it was to be decided later."""
        reason = f"an XA transaction of more than {self._settings.piece_bytes} bytes was given before it was decided"
        doubts = self._given_doubts(reason)
        self._doubts.add_undated(self._scan.whole, doubts)
        return HeldTransaction([], doubts, was_given=True)

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
        held = self._held.pop(parse_xid(text), None)
        if held is None:
            reason = "an XA transaction was committed that was prepared before the log was read"
            held = HeldTransaction([], doubts_of(self._tables.list(), reason))
        after = self._line.after(self._scan.entry())
        ts = self._line.next_ts(self._scan.time_ms, after)
        if verb == "COMMIT" or held.was_given:
            self._doubts.add(held.doubts, ts)
        self._end_statement(after)
        yield self._step([at_ts(change, ts) for change in held.changes] if verb == "COMMIT" else [], self._given_position())
