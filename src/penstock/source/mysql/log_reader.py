"""The reader of the binlog: raw events to log steps, transaction by transaction, as large as they come.

Owns the place in the log, the chain of commit ts and the open transaction. A step holds every whole transaction that has arrived; rows of
one table are decoded together, whatever transactions they are of. A transaction's ts is known from its first event, so one that is
larger than ``PIECE_BYTES`` is given in pieces at one ts, without a position until its end; where a later piece changes a key
of an earlier one again, it gets the next ts, because a store holds a key once per ts. Pieces depend on the log alone, so do their ts.
Runs in the log service; one thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ddl.statement import Statement, parse_statement
from penstock.ddl.tokens import tokens
from penstock.kernels.jit import I64, U8, U64
from penstock.model.bag_key import CONTENT_BYTES, is_bag
from penstock.model.batch import KEY, ChangeBatch
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.model.timestamp import compose_ts
from penstock.source.mysql.gtid import MariadbGtids, MysqlGtids
from penstock.source.mysql.position import LogPlace
from penstock.source.mysql.rows.rows_decoder import ReadRows, decode_rows
from penstock.source.mysql.tables.harmless import is_harmless, plain_words
from penstock.source.mysql.tables.table_slots import TableSlots
from penstock.source.mysql.tables.table_versions import TableVersions, Told
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
from penstock.source.single_log import CommitChain, LogPosition, LogStep, TableDoubt

BEGIN_TEXT: U8 = np.frombuffer(b"BEGIN", dtype=np.uint8)
COMMIT_TEXT: U8 = np.frombuffer(b"COMMIT", dtype=np.uint8)
_EVENTS_MAX = 1 << 16
_OF_ONE_TABLE = frozenset({"SCHEMA_UNKNOWN", "DECODE_FAILED", "TYPE_UNSUPPORTED", "UPSTREAM_MISCONFIGURED"})
"""Errors that concern the table whose rows were decoded, and no other."""
_TEXT_HINT = "Run SET GLOBAL binlog_format = 'ROW' and reconnect the writers."
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
    ) -> None:
        """``ends_at`` tells whether the log ends at a place now, ``read_rows`` reads by key what the log leaves out."""
        self._stream = stream
        self._ends_at = ends_at
        self._read_rows = read_rows
        self._tables = tables
        self._wanted = wanted
        self._settings = settings
        self._clock = clock
        self._place = LogPlace.parse(start.text)
        self._chain = CommitChain(start.ts)
        self._marks = deque((LogPlace.parse(m.text), m.ts) for m in marks if m.ts > start.ts)
        self._slots = TableSlots(tables, isinstance(self._place.gtids, MariadbGtids))
        self._sids: list[str] = []
        self._sid_bytes: U8 = np.zeros((0, 16), dtype=np.uint8)
        self._checksum = stream.checksum_bytes
        self._plain_end = 0
        """Up to here the buffer holds events of a compressed transaction, which have no checksums."""
        self._state: I64 = np.zeros(framing.SCAN_STATE, dtype=np.int64)
        self._rows: I64 = np.zeros((_EVENTS_MAX, 6), dtype=np.int64)
        self._txns: I64 = np.zeros((_EVENTS_MAX, 7), dtype=np.int64)
        self._counts: I64 = np.zeros(2, dtype=np.int64)
        self._at = 0
        self._cut_ts = 0
        self._cut_keys: dict[int, list[U64]] = {}
        self._savepoints: dict[str, int] = {}
        self._held: dict[Xid, HeldTransaction] = {}
        """XA transactions that are prepared."""
        self._doubts: list[TableDoubt] = []
        """What the next step tells."""
        self._open_doubts: list[tuple[int, TableDoubt]] = []
        """Doubts whose ts is that of a transaction, by its number among those that were not given yet."""
        self._marked_s = clock.monotonic_s()

    @property
    def position(self) -> LogPosition:
        """Return where the reader is."""
        return LogPosition(self._chain.last_ts, str(self._place))

    def steps(self, stop: threading.Event) -> Iterator[LogStep]:
        """Yield the log until it is stopped."""
        unsaved = self._tables.unsaved()
        if unsaved:
            yield LogStep(schemas=unsaved)
        while not stop.is_set():
            self._slots.choose(self._wanted)
            yield from self._scan()
            self._compact()
            if not self._stream.receive(self._settings.idle_s):
                yield self._mark() or LogStep()

    # -- scanning

    def _scan(self) -> Iterator[LogStep]:
        """Go over all whole events of the buffer."""
        while True:
            stream, slots = self._stream, self._slots
            plain = self._at < self._plain_end
            self._at, why = framing.scan(
                stream.events, self._at, self._plain_end if plain else stream.end, 0 if plain else self._checksum,
                self._settings.piece_bytes, framing.ACTIONS, framing.CRC_TABLES, self._state,
                slots.ids, slots.id_slot, slots.maps, slots.map_from, slots.map_to, slots.wanted, self._sid_bytes, BEGIN_TEXT, COMMIT_TEXT,
                self._rows, self._txns, self._counts,
            )  # fmt: skip
            if why == framing.STOP_END and plain and self._at == self._plain_end:
                continue
            if why == framing.STOP_END:
                yield from self._flush()
                yield from self._give_piece()
                return
            if why == framing.STOP_TABLE:
                yield from self._on_table_map()
            elif why == framing.STOP_SID:
                sid = self._body()[1:17]
                self._sids.append(_uuid_text(sid))
                self._sid_bytes = np.concatenate([self._sid_bytes, np.frombuffer(sid, dtype=np.uint8).reshape(1, 16)])
            elif why == framing.STOP_EVENT:
                yield from self._on_event()
            elif why == framing.STOP_CHECKSUM:
                raise PenstockError("DECODE_FAILED", f"an event near {self._place.file}:{self._place.offset} fails its checksum")
            elif why == framing.STOP_BAD:
                raise PenstockError("DECODE_FAILED", f"the log holds a malformed event near {self._place.file}:{self._place.offset}")
            elif why == framing.STOP_FULL and self._counts[1] == 0:
                self._grow()
            else:
                yield from self._flush()

    def _body(self) -> bytes:
        """Return the body of the event at which the scan stopped."""
        size = int.from_bytes(self._stream.events[self._at + 9 : self._at + 13].tobytes(), "little")
        checksum = 0 if self._at < self._plain_end else self._checksum
        return self._stream.events[self._at + wire.HEADER_BYTES : self._at + size - checksum].tobytes()

    def _skip(self) -> None:
        size = int.from_bytes(self._stream.events[self._at + 9 : self._at + 13].tobytes(), "little")
        self._at += size
        self._state[framing.BYTES] += size

    def _grow(self) -> None:
        self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._txns = np.concatenate([self._txns, np.zeros_like(self._txns)])

    def _compact(self) -> None:
        """Free the buffer in front of the first rows event that is still needed."""
        open_rows = int(self._counts[0])
        self._stream.consume(int(self._rows[0, 3]) if open_rows else self._at)
        moved = self._stream.compact()
        if moved:
            self._at -= moved
            self._plain_end -= moved
            self._rows[:open_rows, 3:5] -= moved

    # -- giving

    def _flush(self) -> Iterator[LogStep]:
        """Give every whole transaction; the rows of the open one stay."""
        done, total = int(self._counts[1]), int(self._counts[0])
        if done == 0:
            return
        txns = self._txns[:done]
        after = self._after(txns)
        ts = np.array([self._cut_ts], dtype=np.uint64) if txns[0, 6] else self._chained(txns, after)
        rows = self._rows[:total]
        mine = int(np.searchsorted(rows[:, 0], done))
        self._doubts += [msgspec.structs.replace(doubt, ts=int(ts[number])) for number, doubt in self._open_doubts if number < done]
        self._open_doubts = [(number - done, doubt) for number, doubt in self._open_doubts if number >= done]
        changes = self._decoded(rows[:mine], ts[rows[:mine, 0]])
        if txns[0, 6]:
            changes = self._separated(changes)
            self._cut_keys = {}
        self._place = after
        kept = total - mine
        self._rows[:kept] = self._rows[mine:total].copy()
        self._rows[:kept, 0] = 0
        self._counts[:] = (kept, 0)
        yield self._step(changes, self._given_position())

    def _step(self, changes: Sequence[ChangeBatch] = (), position: LogPosition | None = None, told: Told | None = None) -> LogStep:
        """Return a step with the doubts that came up; those about tables that nobody captures are kept to ourselves."""
        doubts = [*self._doubts, *(told.doubts if told is not None else ())]
        mine = tuple(d for d in dict.fromkeys(doubts) if d.table_id == 0 or self._wanted(d.table_id))
        self._doubts = []
        ddls = (told.event,) if told is not None and told.event is not None else ()
        return LogStep(tuple(changes), ddls, position, doubts=mine, schemas=told.ended if told is not None else ())

    def _after(self, txns: I64) -> LogPlace:
        """Return the place behind some transactions."""
        gtids = self._place.gtids
        if isinstance(gtids, MariadbGtids):
            gtids = gtids.advanced(txns[:, 1], txns[:, 2], txns[:, 3])
        elif isinstance(gtids, MysqlGtids):
            gtids = gtids.advanced(self._sids, txns[:, 1], txns[:, 3])
        return LogPlace(self._place.file, int(txns[-1, 5]), gtids)

    def _chained(self, txns: I64, after: LogPlace) -> U64:
        """Return the ts of transactions, raising the chain at every mark among them."""
        parts = []
        first = 0
        while self._marks and after.reached(self._marks[0][0]):
            place, mark_ts = self._marks.popleft()
            low, high = first, len(txns)
            # The smallest number of transactions behind which the mark's place is reached.
            while low < high:
                middle = (low + high) // 2
                here = self._after(txns[:middle]) if middle else self._place
                low, high = (low, middle) if here.reached(place) else (middle + 1, high)
            parts.append(self._chain.next_many(txns[first:low, 0]))
            self._chain.raise_to(mark_ts)
            first = low
        parts.append(self._chain.next_many(txns[first:, 0]))
        return np.concatenate(parts)

    def _next_ts(self, after: LogPlace) -> int:
        """Return the ts of the one transaction that begins here."""
        self._pass_marks()
        ts = self._chain.next(int(self._state[framing.TIME_MS]))
        while self._marks and after.reached(self._marks[0][0]):
            self._chain.raise_to(self._marks.popleft()[1])
        return ts

    def _pass_marks(self) -> None:
        """Raise the chain at the marks that stand here."""
        while self._marks and self._place.reached(self._marks[0][0]):
            self._chain.raise_to(self._marks.popleft()[1])

    def _decoded(self, rows: I64, ts: U64) -> list[ChangeBatch]:
        """Decode rows; those of a table that cannot be decoded are left out, with a doubt about it."""
        changes: list[ChangeBatch] = []
        if len(rows) == 0:
            return changes
        slots = np.unique(rows[:, 1])
        for slot in slots:
            mine, when = (rows, ts) if len(slots) == 1 else (rows[rows[:, 1] == slot], ts[rows[:, 1] == slot])
            try:
                binding = self._slots.bind(int(slot))
                changes += decode_rows(self._stream.events, binding, mine, when, self._charset, self._read_rows)
            except PenstockError as error:
                if error.code not in _OF_ONE_TABLE:
                    raise
                self._doubts.append(self._left_out(int(slot), int(when.min()), error))
            except (pa.ArrowException, ValueError, KeyError, OverflowError) as error:
                self._doubts.append(self._left_out(int(slot), int(when.min()), PenstockError("DECODE_FAILED", type(error).__name__)))
        return changes

    def _left_out(self, slot: int, ts: int, error: PenstockError) -> TableDoubt:
        """Return the doubt about a table whose rows are left out."""
        mapped, table = self._slots.map_of(slot), self._slots.table_of(slot)
        number = table.table_id if table is not None else 0
        return TableDoubt(number, mapped.schema, mapped.table, ts, error.detail, error.code, error.hint or "")

    def _charset(self, table: TableSchema, column: str) -> str:
        return self._tables.charset((table.schema, table.table), column)

    def _give_piece(self) -> Iterator[LogStep]:
        """Give the finished pieces of a transaction that does not end yet."""
        total = int(self._counts[0])
        pieces = self._rows[:total, 5]
        if total == 0 or pieces[0] == pieces[-1]:
            return
        if not self._state[framing.CUT]:
            self._cut_ts = self._next_ts(self._place)
            self._state[framing.CUT] = 1
        while pieces[0] != pieces[-1]:
            mine = int(np.searchsorted(pieces, pieces[0], side="right"))
            changes = self._decoded(self._rows[:mine], np.full(mine, self._cut_ts, dtype=np.uint64))
            changes = self._separated(changes)
            kept = total - mine
            self._rows[:kept] = self._rows[mine:total].copy()
            self._counts[0] = total = kept
            pieces = self._rows[:total, 5]
            yield self._step(changes)

    def _separated(self, changes: list[ChangeBatch]) -> list[ChangeBatch]:
        """Give a piece the next ts where it changes a key that an earlier piece at this ts has changed."""
        hashes: dict[int, list[U64]] = {}
        for change in changes:
            keys = change.records.column(KEY)
            # Which copy of a row changed cannot be told, so of a bag any two changes to one content are apart.
            named = pc.binary_slice(keys, 0, CONTENT_BYTES) if self._is_bag(change) else keys
            hashes.setdefault(change.header.table_id, []).append(pl.Series(named).hash().to_numpy())
        repeated = any(
            bool(np.isin(np.concatenate(found), np.concatenate(self._cut_keys[table])).any())
            for table, found in hashes.items()
            if table in self._cut_keys
        )
        if repeated:
            self._cut_ts = self._chain.next(int(self._state[framing.TIME_MS]))
            self._cut_keys = {}
            changes = [_at_ts(change, self._cut_ts) for change in changes]
        for table, found in hashes.items():
            self._cut_keys.setdefault(table, []).extend(found)
        return changes

    def _is_bag(self, change: ChangeBatch) -> bool:
        versions = self._tables.history(change.header.table_id)
        return any(v.version == change.header.schema_version and is_bag(v) for v in versions)

    def _mark(self) -> LogStep | None:
        """Raise the chain to the present where the log ends; None while that is not due.

        A server that is slow to send looks quiet too: behind a mark where the log goes on, commits would get other ts than those
        under which they may be stored already. So the server is asked, and no mark is put before one that is known.
        """
        now_s = self._clock.monotonic_s()
        quiet = not self._state[framing.OPEN] and not self._counts.any() and not self._held
        if not quiet or now_s - self._marked_s < self._settings.mark_interval_s:
            return None
        self._marked_s = now_s
        self._pass_marks()
        now_ts = compose_ts(self._clock.now_ms())
        if self._marks or now_ts <= self._chain.last_ts or not self._ends_at(self._place):
            return None
        self._chain.raise_to(now_ts)
        return LogStep(position=self.position, mark=True)

    # -- events

    def _on_table_map(self) -> Iterator[LogStep]:
        """Make a table map known; where it tells another table than the one that is known, that begins in front of the open transaction."""
        body = self._body()
        slot = self._slots.add(int.from_bytes(body[:6], "little"), body[6:])
        if not self._slots.unchecked(slot):
            return
        yield from self._flush()
        mapped = self._slots.map_of(slot)
        self._pass_marks()
        time_ms = int(self._state[framing.TIME_MS])
        told = self._tables.revise(mapped, CommitChain(self._chain.last_ts).next(time_ms))
        if told.event is not None:
            self._chain.next(time_ms)
            self._slots.unbind()
            if self._state[framing.CUT]:
                self._cut_ts, self._cut_keys = self._chain.next(time_ms), {}
            yield self._step(told=told)
        else:
            self._open_doubts += [(int(self._counts[1]), doubt) for doubt in told.doubts]
        self._slots.choose(self._wanted)

    def _on_event(self) -> Iterator[LogStep]:
        kind = int(self._stream.events[self._at + 4])
        if kind in {wire.QUERY, wire.QUERY_COMPRESSED}:
            yield from self._on_query(parse_query(self._body(), kind == wire.QUERY_COMPRESSED))
            return
        if kind == wire.EXECUTE_LOAD_QUERY:
            yield from self._on_query(parse_query(self._body(), load=True))
            return
        if kind == wire.TRANSACTION_PAYLOAD:
            position = self._stream.events[self._at + 13 : self._at + 17].tobytes()
            size = int.from_bytes(self._stream.events[self._at + 9 : self._at + 13].tobytes(), "little")
            events = parse_payload(self._body(), position)
            self._stream.splice(self._at, self._at + size, events)
            self._plain_end = self._at + len(events)
            return
        if kind == wire.XA_PREPARE:
            yield from self._on_xa_prepare()
            return
        if kind == wire.PARTIAL_UPDATE_ROWS:
            slot = self._slots.slot_of(int.from_bytes(self._body()[:6], "little"))
            if slot is not None and self._slots.wanted[slot]:
                error = PenstockError("UPSTREAM_MISCONFIGURED", "the log holds partial updates of its JSON columns", _PARTIAL_HINT)
                self._open_doubts.append((int(self._counts[1]), self._left_out(slot, 0, error)))
            self._skip()
            return
        if kind in _REFUSED:
            code, text, hint = _REFUSED[kind]
            yield from self._flush()
            raise PenstockError(code, text, hint)
        if kind == wire.ROTATE:
            yield from self._flush()
            file, offset = parse_rotate(self._body())
            self._place = LogPlace(file, offset, self._place.gtids)
        elif kind == wire.FORMAT_DESCRIPTION:
            self._checksum = 0
            self._checksum = parse_format(self._body())
            self._slots.forget_ids()
        elif kind in {wire.HEARTBEAT, wire.HEARTBEAT_V2}:
            self._on_heartbeat(kind)
        else:
            ignorable = int.from_bytes(self._stream.events[self._at + 17 : self._at + 19].tobytes(), "little") & 0x80
            if not ignorable:
                raise PenstockError("DECODE_FAILED", f"the log holds an event of type {kind}, which is not supported")
        self._skip()

    def _on_heartbeat(self, kind: int) -> None:
        """Without GTIDs, go on to the place that a quiet server tells: behind events that are no transactions, such as a file's first."""
        if kind == wire.HEARTBEAT and self._place.gtids is None and not self._state[framing.OPEN] and not self._counts.any():
            file = self._body().decode("utf-8", errors="replace")
            offset = int.from_bytes(self._stream.events[self._at + 13 : self._at + 17].tobytes(), "little")
            told = LogPlace(file, offset)
            if told.reached(self._place):
                self._place = told

    def _on_query(self, query: QueryEvent) -> Iterator[LogStep]:
        state = self._state
        exact = plain_words(tokens(query.text))
        words = [t.upper() for t in exact[:4]]
        inside = bool(state[framing.OPEN]) and not state[framing.STANDALONE]
        if words[:1] == ["XA"]:
            yield from self._on_xa(words[1], query.text)
            return
        if inside and words[:1] == ["SAVEPOINT"]:
            self._savepoints[exact[1]] = int(self._counts[0])
            self._skip()
            return
        if inside and words[:1] == ["ROLLBACK"]:
            self._roll_back(words, exact)
            self._skip()
            return
        statement = parse_statement(query.text, query.schema)
        doubts: list[TableDoubt] = []
        if statement is None and not is_harmless(exact):
            reason = f"the log holds a change as text ({words[0]}): binlog_format is not ROW"
            named = self._tables.named(exact, query.schema)
            doubts = [TableDoubt(t.table_id, t.schema, t.table, 0, reason, "UPSTREAM_MISCONFIGURED", _TEXT_HINT) for t in named]
        if inside and statement is None:
            self._open_doubts += [(int(self._counts[1]), doubt) for doubt in doubts]
            self._skip()
            return
        yield from self._flush()
        yield from self._on_statement(statement, query.text, inside, doubts)

    def _on_xa_prepare(self) -> Iterator[LogStep]:
        """Hold the rows of an XA transaction until it is decided; no position is given meanwhile, so that a restart reads them again."""
        xid, one_phase = parse_xa_prepare(self._body())
        yield from self._flush()
        if not one_phase:
            self._held[xid] = self._given_up() if self._state[framing.CUT] else self._prepared()
            self._counts[0] = 0
        self._end_transaction()
        self._skip()

    def _prepared(self) -> HeldTransaction:
        rows = self._rows[: int(self._counts[0])]
        changes = self._decoded(rows, np.zeros(len(rows), dtype=np.uint64))
        held = HeldTransaction(changes, [*self._doubts, *(doubt for _, doubt in self._open_doubts)])
        self._doubts, self._open_doubts = [], []
        return held

    def _given_up(self) -> HeldTransaction:
        """Doubt the tables of an XA transaction of which pieces were given already: nobody knew that it was to be decided later."""
        numbers = set(self._cut_keys)
        for slot in np.unique(self._rows[: int(self._counts[0]), 1]):
            table = self._slots.table_of(int(slot))
            numbers |= {table.table_id} if table is not None else set()
        reason = f"an XA transaction of more than {self._settings.piece_bytes} bytes was given before it was decided"
        doubts = [TableDoubt(t.table_id, t.schema, t.table, 0, reason) for t in self._tables.list() if t.table_id in numbers]
        self._open_doubts += [(int(self._counts[1]), doubt) for doubt in doubts]
        return HeldTransaction([], doubts, was_given=True)

    def _on_xa(self, verb: str, text: str) -> Iterator[LogStep]:
        if verb not in {"COMMIT", "ROLLBACK"}:
            self._skip()
            return
        yield from self._flush()
        xid = parse_xid(text)
        held = self._held.pop(xid, None)
        if held is None:
            reason = "an XA transaction was committed that was prepared before the log was read"
            held = HeldTransaction([], [TableDoubt(t.table_id, t.schema, t.table, 0, reason) for t in self._tables.list()])
        entry = self._entry()
        after = self._after(entry)
        ts = self._next_ts(after)
        self._skip()
        self._place = after
        self._state[framing.OPEN] = 0
        if verb == "COMMIT" or held.was_given:
            self._doubts += [msgspec.structs.replace(doubt, ts=ts) for doubt in held.doubts]
        yield self._step([_at_ts(change, ts) for change in held.changes] if verb == "COMMIT" else [], self._given_position())

    def _entry(self) -> I64:
        """Return the open transaction as one that ends with the event at which the scan stopped."""
        entry = np.zeros((1, 7), dtype=np.int64)
        entry[0, :4] = self._state[[framing.TIME_MS, framing.DOMAIN, framing.SERVER, framing.SEQUENCE]]
        entry[0, 5] = int.from_bytes(self._stream.events[self._at + 13 : self._at + 17].tobytes(), "little")
        entry[0, 6] = self._state[framing.CUT]
        return entry

    def _end_transaction(self) -> None:
        """End the open transaction with the event at which the scan stopped."""
        done = int(self._counts[1])
        self._txns[done] = self._entry()[0]
        self._counts[1] = done + 1
        self._state[framing.OPEN] = 0
        self._savepoints.clear()

    def _given_position(self) -> LogPosition | None:
        return None if self._held else self.position

    def _on_statement(self, statement: Statement | None, text: str, inside: bool, doubts: Sequence[TableDoubt]) -> Iterator[LogStep]:
        """Give a statement that is a transaction of its own, or one that creates the table whose rows follow in the same one."""
        state = self._state
        header = self._stream.events[self._at : self._at + wire.HEADER_BYTES].tobytes()
        if not state[framing.OPEN]:
            state[framing.TIME_MS] = int.from_bytes(header[:4], "little") * 1000
            state[framing.DOMAIN] = -1
        after = self._place if inside else self._after(self._entry())
        ts = self._next_ts(after)
        told = self._tables.apply(statement, text, ts, lambda: self._ends_at(after)) if statement is not None else Told()
        self._doubts += [msgspec.structs.replace(doubt, ts=ts) for doubt in doubts]
        if told.event is not None or told.ended:
            self._slots.unbind()
            self._slots.choose(self._wanted)
        self._skip()
        if inside:
            yield self._step(told=told)
            return
        self._place = after
        state[framing.OPEN] = 0
        yield self._step((), self._given_position(), told)

    def _roll_back(self, words: Sequence[str], exact: Sequence[str]) -> None:
        """Forget rows of the open transaction: those since a savepoint, or all and with them the transaction."""
        kept = int(np.searchsorted(self._rows[: self._counts[0], 0], self._counts[1]))
        if "TO" in words:
            name = exact[3] if words[2:3] == ["SAVEPOINT"] else exact[words.index("TO") + 1]
            self._counts[0] = max(kept, self._savepoints.get(name, kept))
            return
        self._counts[0] = kept
        self._end_transaction()


def _at_ts(change: ChangeBatch, ts: int) -> ChangeBatch:
    column = pa.array(np.full(change.header.rows, ts, dtype=np.uint64))
    records = change.records.set_column(0, change.records.schema.field(0), column)
    return ChangeBatch(msgspec.structs.replace(change.header, min_ts=ts, max_ts=ts), records)


def _uuid_text(sid: bytes) -> str:
    text = sid.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
