"""Reads the log: frames what arrives, gives transactions their commit ts, and yields decoded steps.

Rows wait undecoded in the buffer until their transaction is complete, then whole transactions are decoded, relation by relation. One that
grows too large is decoded in pieces and waits on disk, as is one that the server streams before it commits. A transaction's ts does not
depend on what is known of schemas or on how it was sent. Marks while the log is quiet come from the server's keepalives, which say up to
where it has read its log. One thread reads. Runs in the log service.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.kernels.jit import I64, U64
from penstock.model.batch import ChangeBatch
from penstock.model.clock import Clock
from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.model.timestamp import compose_ts
from penstock.source.postgres.commit_log import TS_STEP, CommitLog, chain_ts
from penstock.source.postgres.rows.row_changes import Fetch, build_changes
from penstock.source.postgres.rows.stream_spool import StreamSpool
from penstock.source.postgres.rows.transaction_spool import TransactionSpool, fold_pieces
from penstock.source.postgres.slot import format_lsn, parse_lsn
from penstock.source.postgres.table_follower import TableFollower
from penstock.source.postgres.tables.catalog_watch import CatalogWatch, Changed
from penstock.source.postgres.tables.schema_book import KnownRelation, SchemaBook
from penstock.source.postgres.wire.pgoutput import (
    BAD,
    COMMIT_US,
    END_LSN,
    FINAL_LSN,
    FIRST_ROW,
    FULL,
    KEEPALIVES,
    MORE,
    OPEN,
    POSTGRES_EPOCH_US,
    REL,
    ROWS,
    SPECIAL,
    TXN,
    TXNS,
    WAL_END,
    XID,
    stream_end,
)
from penstock.source.postgres.wire.replication_stream import ReplicationStream, StreamSettings
from penstock.source.postgres.wire.scan_buffer import Notice, ScanBuffer
from penstock.source.single_log import LogPosition, LogStep, TableDoubt

LOOK_SHARE = 20
"""How many times as long as a look took the reader waits until it looks again."""
STEP_BATCHES = 16
"""How many batches of a large transaction make one step."""


@dataclass(frozen=True)
class LogReaderSettings:
    """How much is decoded at once, how long complete transactions wait for more of them, and how often a quiet log is marked.

    Attributes:
        look_interval_s: how often the catalog is asked for dropped tables while the log is not quiet.
        transaction_bytes: the size from which on an open transaction is decoded in pieces, which wait on disk.
    """

    chunk_bytes: int = 4 << 20
    rows_max: int = 1 << 16
    transaction_bytes: int = 64 << 20
    mark_interval_s: float = 0.5
    look_interval_s: float = 5.0
    poll_s: float = 0.2
    linger_s: float = 0.05
    stream: StreamSettings = field(default_factory=StreamSettings)


@dataclass(frozen=True)
class LogSource:
    """What a reader reads and whom it asks.

    Attributes:
        log_now: asks the server for the end of its log and, after that, for its time in milliseconds.
        watch: what the catalog showed last.
        root_of: asks for the oid of the table that a partition belongs to, 0 where there is none, and whether its rows come as its own.
        shown: how messages name the server.
        system: whose log it is; part of every position.
    """

    stream: ReplicationStream
    book: SchemaBook
    watch: CatalogWatch
    fetch: Fetch
    commits: CommitLog
    log_now: Callable[[], tuple[int, int]]
    root_of: Callable[[int], tuple[int, bool]]
    shown: str
    system: str


class LogReader:
    """One reading of the log, from a position until it is stopped or fails."""

    def __init__(self, source: LogSource, settings: LogReaderSettings, clock: Clock) -> None:
        self._stream = source.stream
        self._book = source.book
        self._tables = TableFollower(source.book, source.watch, source.root_of, lambda: source.log_now()[0], source.shown)
        self._found: list[Changed] = []
        self._fetch = source.fetch
        self._commits = source.commits
        self._log_now = source.log_now
        self._shown = source.shown
        self._system = source.system
        self._settings = settings
        self._clock = clock
        self._goal: tuple[int, int] | None = None
        self._again: list[DdlEvent] = []
        self._buffer = ScanBuffer(settings.chunk_bytes * 2, settings.rows_max, source.shown)
        self._streams = StreamSpool()
        self._large: TransactionSpool | None = None
        self._segment_seen = 0
        self._in_pieces = False
        self._last_ts = 0
        self._last_lsn = 0
        self._marks: list[tuple[int, int]] = []
        self._marked_s = 0.0
        self._looked_s = 0.0
        self._look_again_s = 0.0
        self._quiet = False
        self._waiting_s = 0.0
        self._keepalives = 0

    def read(
        self, start: LogPosition, marks: Sequence[LogPosition], wanted: Callable[[int], bool], stop: threading.Event
    ) -> Iterator[LogStep]:
        """Yield steps until ``stop`` is set."""
        self._last_ts, self._last_lsn = start.ts, parse_lsn(start.text)
        self._marks = [(parse_lsn(m.text), m.ts) for m in marks]
        self._tables.wanted = wanted
        try:
            while not stop.is_set():
                waits = self._buffer.complete > 0
                pieces = self._stream.take(self._settings.linger_s if waits else self._settings.poll_s, self._settings.chunk_bytes)
                for piece in pieces:
                    self._buffer.append(piece)
                now_s = self._clock.monotonic_s()
                if not waits:
                    self._waiting_s = now_s
                self._quiet = not pieces
                yield from self._steps(not pieces or now_s - self._waiting_s >= self._settings.linger_s)
        finally:
            self._streams.close()
            if self._large is not None:
                self._large.close()

    def _steps(self, due: bool) -> Iterator[LogStep]:
        """Scan what arrived; yield what is complete if it is due or large."""
        buffer = self._buffer
        while True:
            status = buffer.scan()
            if self._large is not None and buffer.complete:
                yield from self._end_large()
                continue
            if status == SPECIAL:
                kind, body = buffer.special()
                if buffer.note(kind, body):
                    continue
                if buffer.complete:
                    yield self._decode()
                if not (yield from self._streamed(kind, body)):
                    return
                continue
            if buffer.complete and (due or status == FULL or buffer.size >= self._settings.chunk_bytes):
                yield self._decode()
            elif buffer.is_open and not buffer.complete and buffer.size >= self._settings.transaction_bytes:
                self._spill()
            elif status == FULL:
                buffer.grow()
            if status == MORE:
                break
        if buffer.is_empty:
            buffer.forget(buffer.at)
            yield from self._mark()

    def _position(self) -> LogPosition:
        return LogPosition(self._last_ts, f"{format_lsn(self._last_lsn)}@{self._system}")

    def _decode(self) -> LogStep:
        """Decode the transactions that are complete and forget their bytes."""
        buffer, complete = self._buffer, self._buffer.complete
        txns = buffer.txns[:complete]
        ts = self._assign(txns[:, COMMIT_US], txns[:, END_LSN])
        rows = buffer.rows[: buffer.rows_of(complete)]
        changes, ddls = self._changes(buffer, rows, ts, txns[:, FIRST_ROW], [], complete)
        self._reach(txns[:, END_LSN].copy(), ts)
        buffer.drop(complete)
        return LogStep(tuple(changes), self._told(ddls), self._position(), doubts=self._due(), schemas=self._notes())

    def _due(self) -> tuple[TableDoubt, ...]:
        return self._tables.take_doubts(self._last_lsn, self._last_ts)

    def _notes(self) -> tuple[TableSchema, ...]:
        return self._tables.take_notes(self._last_ts)

    def _reach(self, lsns: I64, ts: U64) -> None:
        self._last_lsn = int(lsns[-1])
        self._commits.add(lsns, ts)
        self._stream.received(self._last_lsn)

    def _assign(self, commit_us: I64, lsns: I64) -> U64:
        """Return the ts of transactions, raising the chain at marks."""
        commit_ms = (commit_us + POSTGRES_EPOCH_US) // 1000
        stamps = np.zeros(len(lsns), dtype=np.uint64)
        begin = 0
        while begin < len(lsns):
            while self._marks and self._marks[0][0] < lsns[begin]:
                self._pass_mark()
            end = int(np.searchsorted(lsns, self._marks[0][0], side="right")) if self._marks else len(lsns)
            stamps[begin:end] = chain_ts(self._last_ts, commit_ms[begin:end])
            self._last_ts = int(stamps[end - 1])
            begin = end
        return stamps

    def _pass_mark(self) -> None:
        """Raise the chain at a mark of an earlier reading; what was told there is told again, because it may not have been stored."""
        ts = self._marks.pop(0)[1]
        if ts > self._last_ts:
            self._again += self._tables.tell_again(self._last_ts, ts)
            self._last_ts = ts

    def _told(self, ddls: Sequence[DdlEvent]) -> tuple[DdlEvent, ...]:
        """Return the schema changes of a step, behind those of marks before it."""
        again, self._again = self._again, []
        return (*again, *ddls)

    def _spill(self) -> None:
        """Decode what has arrived of an open transaction and put it aside."""
        txn = self._buffer.txns[:1]
        if self._large is None:
            self._large = TransactionSpool(int(self._assign(txn[:, COMMIT_US], txn[:, FINAL_LSN])[0]))
        self._put_aside(self._buffer, self._large, [])

    def _end_large(self) -> Iterator[LogStep]:
        """Give out the transaction that was put aside, now that it is complete."""
        buffer, spool = self._buffer, self._large
        assert spool is not None
        self._large = None
        self._in_pieces = True
        rows = buffer.rows[: buffer.rows_of(1)]
        changes, ddls = self._changes(buffer, rows, np.array([spool.ts], np.uint64), np.array([-spool.rows]), [], 1)
        spool.add(changes, ddls, len(rows), self._tables.bags())
        lsn = int(buffer.txns[0, END_LSN])
        buffer.drop(1)
        yield from self._give_out(spool, lsn)

    def _put_aside(self, buffer: ScanBuffer, spool: TransactionSpool, aborted: list[int]) -> None:
        rows = buffer.rows[: int(buffer.state[ROWS])]
        self._in_pieces = True
        changes, ddls = self._changes(buffer, rows, np.array([spool.ts], np.uint64), np.array([-spool.rows]), aborted, 1)
        spool.add(changes, ddls, len(rows), self._tables.bags())
        buffer.drop_rows()

    def _give_out(self, spool: TransactionSpool, lsn: int) -> Iterator[LogStep]:
        try:
            batches = spool.batches()
            ddls = self._told(sorted(spool.ddls, key=lambda d: d.commit_ts))
            while some := tuple(itertools.islice(batches, STEP_BATCHES)):
                yield LogStep(some, ddls)
                ddls = ()
        finally:
            spool.close()
        self._reach(np.array([lsn], np.int64), np.array([spool.ts], np.uint64))
        yield LogStep(ddls=ddls, position=self._position(), doubts=self._due(), schemas=self._notes())

    def _streamed(self, kind: str, body: bytes) -> Generator[LogStep, None, bool]:
        """Take a message about a transaction that is sent before it commits; return False while the rest of it has not arrived."""
        buffer = self._buffer
        if kind == "S":
            return self._take_segment(int.from_bytes(body[:4], "big"))
        if kind == "A":
            self._streams.abort(int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big"))
        elif kind == "c" and len(body) == 29:
            xid = int.from_bytes(body[:4], "big")
            end_lsn, commit_us = int.from_bytes(body[13:21], "big"), int.from_bytes(body[21:29], "big", signed=True)
            yield from self._replay(xid, commit_us, end_lsn)
        elif kind in "bPKrp":
            raise PenstockError(
                "UPSTREAM_MISCONFIGURED",
                f"{self._shown}: the slot sends transactions when they are prepared",
                "Drop the slot and let Penstock make it, or make it without two_phase: they are sent then when they commit.",
            )
        else:
            raise PenstockError("DECODE_FAILED", f"{self._shown}: unknown message {kind!r} in the replication stream")
        buffer.pass_special()
        buffer.forget(buffer.at)
        return True

    def _take_segment(self, xid: int) -> bool:
        buffer = self._buffer
        start = buffer.at
        buffer.pass_special()
        begin, buffer.at = buffer.at, start
        status, found = stream_end(buffer.bytes, max(begin, start + self._segment_seen), buffer.size)
        if status == BAD:
            raise PenstockError("DECODE_FAILED", f"{self._shown}: a stream segment makes no sense")
        self._segment_seen = int(found) - start
        if status == MORE:
            return False
        self._segment_seen = 0
        self._streams.add(xid, buffer.bytes[begin : int(found)])
        buffer.at = int(found)
        buffer.pass_special()
        buffer.forget(buffer.at)
        return True

    def _replay(self, xid: int, commit_us: int, end_lsn: int) -> Iterator[LogStep]:
        """Decode a streamed transaction that has committed."""
        ts = int(self._assign(np.array([commit_us], np.int64), np.array([end_lsn], np.int64))[0])
        spool = TransactionSpool(ts)
        buffer = ScanBuffer(self._settings.chunk_bytes * 2, self._settings.rows_max, self._shown, in_stream=True)
        buffer.state[OPEN] = buffer.state[TXNS] = 1
        aborted = self._streams.aborted(xid)
        for piece in self._streams.pieces(xid, self._settings.chunk_bytes):
            buffer.append(piece)
            while (status := buffer.scan()) != MORE:
                if status == FULL:
                    self._put_aside(buffer, spool, aborted)
                    continue
                kind, body = buffer.special()
                if not buffer.note(kind, body):
                    raise PenstockError("DECODE_FAILED", f"{self._shown}: unknown message {kind!r} in a streamed transaction")
            if buffer.size >= self._settings.transaction_bytes:
                self._put_aside(buffer, spool, aborted)
        self._put_aside(buffer, spool, aborted)
        self._streams.forget(xid)
        yield from self._give_out(spool, end_lsn)

    def _changes(
        self, buffer: ScanBuffer, rows: I64, ts: U64, first_rows: I64, aborted: list[int], complete: int
    ) -> tuple[list[ChangeBatch], list[DdlEvent]]:
        """Decode rows of transactions whose ts are given; also the schema changes among them."""
        changes: list[ChangeBatch] = []
        ddls: list[DdlEvent] = []
        notices = [n for n in buffer.notices if n.txn < complete]
        relations = rows[:, REL]
        if aborted:
            relations = np.where(np.isin(rows[:, XID], aborted), -1, relations)
        ordinals = np.arange(len(rows)) - first_rows[rows[:, TXN]]
        self._tables.take_notices(notices)
        borders = [0, *self._tables.name_changes(notices), complete]
        for first, last in itertools.pairwise(borders):
            # Names pass from table to table in the order of transactions; all else of a table can be decoded at once.
            low, high = (int(n) for n in np.searchsorted(rows[:, TXN], (first, last)))
            own = [n for n in notices if first <= n.txn < last]
            for oid in sorted(({int(o) for o in np.unique(relations[low:high])} | {n.oid for n in own}) - {-1}):
                mine = low + np.flatnonzero(relations[low:high] == oid)
                changes += self._table_changes(oid, mine, own, buffer, rows, ts, ordinals, ddls)
        self._tables.end_notices()
        self._in_pieces = False
        return changes, sorted(ddls, key=lambda d: d.commit_ts)

    def _table_changes(
        self, oid: int, mine: I64, notices: list[Notice], buffer: ScanBuffer, rows: I64, ts: U64, ordinals: I64, ddls: list[DdlEvent]
    ) -> list[ChangeBatch]:
        """Decode the rows of one relation, given by their places; what stands between them is applied where it stands."""
        own = self._tables.real_notices(oid, notices)
        pieces: list[tuple[int, ChangeBatch]] = []
        borders = [0, *(int(np.searchsorted(mine, n.row)) for n in own), len(mine)]
        for at, (begin, end) in enumerate(itertools.pairwise(borders)):
            if at:
                self._tables.apply(own[at - 1], int(ts[own[at - 1].txn]), ddls)
            for part in self._by_version(oid, mine[begin:end], ts[rows[mine[begin:end], TXN]]):
                stamps = ts[rows[part, TXN]]
                known = self._tables.resolve(oid, int(stamps[0]), ddls)
                if known is not None:
                    pieces += [(at, change) for change in self._built(known, buffer, rows[part], stamps, ordinals[part])]
        if len({(at, change.header.table_id) for at, change in pieces}) > len({change.header.table_id for _, change in pieces}):
            return self._fold_versions(pieces)
        return [change for _, change in pieces]

    def _built(self, known: KnownRelation, buffer: ScanBuffer, rows: I64, stamps: U64, ordinals: I64) -> list[ChangeBatch]:
        """Decode rows of one table; what keeps it from being decoded is a doubt about this table only."""

        def doubt(reason: str) -> None:
            self._tables.doubt(known.table, int(stamps[-1]), reason)

        if known.deferrable and self._in_pieces:
            doubt("its key is deferrable, and a transaction was too large to be folded at once")
        try:
            return build_changes(known, buffer.bytes, rows, stamps, ordinals, self._fetch, doubt)
        except PenstockError as error:
            self._tables.doubt_left_out(known.table, int(stamps[-1]), error)
            return []

    def _by_version(self, oid: int, rows: I64, stamps: U64) -> list[I64]:
        """Divide rows where a version begins that no relation tells: the one that a capture began with."""
        if len(rows) == 0:
            return []
        starts = self._book.starts_between(oid, int(stamps[0]), int(stamps[-1]))
        borders = [0, *(int(np.searchsorted(stamps, np.uint64(s), side="right")) for s in starts), len(rows)]
        return [rows[begin:end] for begin, end in itertools.pairwise(borders) if begin < end]

    @staticmethod
    def _fold_versions(pieces: Sequence[tuple[int, ChangeBatch]]) -> list[ChangeBatch]:
        """Fold what stands before and after a change of schema, table by table: one transaction may hold both."""
        tables = {change.header.table_id for _, change in pieces}
        return [b for t in sorted(tables) for b in fold_pieces([(at, c) for at, c in pieces if c.header.table_id == t])]

    def _look(self, now_s: float) -> list[Changed]:
        """Look at the catalog, unless that took long and was not long ago: many tables are looked at less often."""
        if now_s < self._look_again_s:
            return []
        self._looked_s = now_s
        found = self._tables.look()
        self._look_again_s = now_s + LOOK_SHARE * (self._clock.monotonic_s() - now_s)
        return found

    def _mark(self) -> Iterator[LogStep]:
        """Move the chain on while the log is quiet, if the server has said where its reading stands."""
        state = self._buffer.state
        now_s = self._clock.monotonic_s()
        if self._goal is None:
            # A log that is being caught up with is not quiet: its own commits move the chain on.
            quiet = self._quiet and now_s - self._marked_s >= self._settings.mark_interval_s
            if quiet or now_s - self._looked_s >= self._settings.look_interval_s:
                # In this order: what is gone by now was dropped before the goal, and all its rows come before that.
                self._found = self._look(now_s)
                if quiet or self._found:
                    self._goal, self._keepalives = self._log_now(), int(state[KEEPALIVES])
            return
        lsn = int(state[WAL_END])
        if int(state[KEEPALIVES]) == self._keepalives or lsn < self._goal[0]:
            return
        ts, self._goal = compose_ts(max(0, self._goal[1])), None
        if self._found:
            # Commits of a busy log may be later than the goal.
            ts = max(ts, self._last_ts + TS_STEP)
        while self._marks and self._marks[0][0] <= lsn:
            self._pass_mark()
        self._marked_s = now_s
        if lsn < self._last_lsn or ts <= self._last_ts:
            return
        self._last_ts = ts
        self._reach(np.array([lsn], dtype=np.int64), np.array([ts], dtype=np.uint64))
        ddls = self._told(self._tables.tell(self._found, ts))
        yield LogStep(ddls=ddls, position=self._position(), mark=True, doubts=self._due(), schemas=self._notes())
