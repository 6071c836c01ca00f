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
from penstock.model.clock import Clock
from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.model.timestamp import compose_ts
from penstock.source.postgres.catalog_looks import CatalogLooks
from penstock.source.postgres.commit_log import TS_STEP, CommitLog, chain_ts
from penstock.source.postgres.rows.row_changes import Fetch
from penstock.source.postgres.rows.stream_spool import StreamSpool
from penstock.source.postgres.rows.transaction_spool import TransactionSpool
from penstock.source.postgres.slot import format_lsn, parse_lsn
from penstock.source.postgres.table_follower import TableFollower
from penstock.source.postgres.tables.catalog_watch import CatalogWatch
from penstock.source.postgres.tables.histories import DDL_SLOTS
from penstock.source.postgres.tables.schema_book import SchemaBook
from penstock.source.postgres.transaction_decoder import TransactionDecoder
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
    ROWS,
    SPECIAL,
    TXNS,
    WAL_END,
    stream_end,
)
from penstock.source.postgres.wire.replication_stream import ReplicationStream, StreamSettings
from penstock.source.postgres.wire.scan_buffer import ScanBuffer
from penstock.source.single_log import LogPosition, LogStep, TableDoubt

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
        self._decoder = TransactionDecoder(source.book, self._tables, source.fetch)
        self._looks = CatalogLooks(self._tables.look, settings.look_interval_s, clock)
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
        self._last_ts = 0
        self._last_lsn = 0
        self._marks: list[tuple[int, int]] = []
        self._marked_s = 0.0
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
        self._looks.begin(self._last_lsn)
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
        yield from self._mark_or_look()

    def _mark_or_look(self) -> Iterator[LogStep]:
        """See to what the log does not tell, behind what has arrived of it."""
        if self._buffer.is_empty:
            self._buffer.forget(self._buffer.at)
            yield from self._mark()
        elif self._goal is None and self._looks.is_due():
            # Where a transaction is always under way nothing can be told yet, but there is mostly nothing to tell.
            self._look(quiet=False)

    @property
    def confirmable_lsn(self) -> int:
        """Return up to where the log may be let go of, as far as tables are concerned."""
        return self._looks.seen_lsn

    def _position(self) -> LogPosition:
        return LogPosition(self._last_ts, f"{format_lsn(self._last_lsn)}@{self._system}")

    def _decode(self) -> LogStep:
        """Decode the transactions that are complete and forget their bytes."""
        buffer, complete = self._buffer, self._buffer.complete
        txns = buffer.txns[:complete]
        ts = self._assign(txns[:, COMMIT_US], txns[:, END_LSN])
        rows = buffer.rows[: buffer.rows_of(complete)]
        changes, ddls = self._decoder.decode(buffer, rows, ts, txns[:, FIRST_ROW], complete)
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
            self._tell_passed(self._last_ts, stamps[begin:end])
            self._last_ts = int(stamps[end - 1])
            begin = end
        return stamps

    def _pass_mark(self) -> None:
        """Raise the chain at a mark of an earlier reading; what was told there is told again, because it may not have been stored."""
        ts = self._marks.pop(0)[1]
        if ts > self._last_ts:
            self._again += self._tables.tell_again(self._last_ts, ts)
            self._last_ts = ts

    def _tell_passed(self, last_ts: int, stamps: U64) -> None:
        """Tell what a mark told that never came to be: its versions were kept, and nothing else of it. Rows tell those of their own."""
        for version in self._book.begun_between(last_ts, int(stamps[-1])):
            behind = int(stamps[int(np.searchsorted(stamps, np.uint64(version), side="right"))])
            if behind - version > DDL_SLOTS:
                self._again += self._tables.tell_again(version - 1, version + 1)

    def _told(self, ddls: Sequence[DdlEvent]) -> tuple[DdlEvent, ...]:
        """Return the schema changes of a step, behind those of marks before it."""
        again, self._again = self._again, []
        return tuple(sorted((*again, *ddls), key=lambda d: d.commit_ts)) if again else tuple(ddls)

    def _spill(self) -> None:
        """Decode what has arrived of an open transaction and put it aside."""
        txn = self._buffer.txns[:1]
        if self._large is None:
            self._large = TransactionSpool(int(self._assign(txn[:, COMMIT_US], txn[:, FINAL_LSN])[0]))
        self._put_aside(self._buffer, self._large)

    def _end_large(self) -> Iterator[LogStep]:
        """Give out the transaction that was put aside, now that it is complete."""
        buffer, spool = self._buffer, self._large
        assert spool is not None
        self._large = None
        self._add(buffer, buffer.rows[: buffer.rows_of(1)], spool)
        lsn = int(buffer.txns[0, END_LSN])
        buffer.drop(1)
        yield from self._give_out(spool, lsn)

    def _put_aside(self, buffer: ScanBuffer, spool: TransactionSpool, aborted: Sequence[int] = ()) -> None:
        self._add(buffer, buffer.rows[: int(buffer.state[ROWS])], spool, aborted)
        buffer.drop_rows()

    def _add(self, buffer: ScanBuffer, rows: I64, spool: TransactionSpool, aborted: Sequence[int] = ()) -> None:
        ts, first_rows = np.array([spool.ts], np.uint64), np.array([-spool.rows])
        changes, ddls = self._decoder.decode(buffer, rows, ts, first_rows, 1, aborted, in_pieces=True)
        spool.add(changes, ddls, len(rows), self._tables.bags())

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

    def _look(self, quiet: bool) -> None:
        """Look at the catalog, and fix up to where the log must be read before what it showed can be told."""
        # In this order: what is gone by now was dropped before the goal, and all its rows come before that.
        self._looks.look(self._last_lsn)
        if quiet or self._looks.found:
            self._goal, self._keepalives = self._log_now(), int(self._buffer.state[KEEPALIVES])

    def _mark(self) -> Iterator[LogStep]:
        """Move the chain on while the log is quiet, if the server has said where its reading stands."""
        state = self._buffer.state
        now_s = self._clock.monotonic_s()
        if self._goal is None:
            # A log that is being caught up with is not quiet: its own commits move the chain on.
            quiet = self._quiet and now_s - self._marked_s >= self._settings.mark_interval_s
            if quiet or self._looks.is_due():
                self._look(quiet)
            return
        lsn = int(state[WAL_END])
        if int(state[KEEPALIVES]) == self._keepalives or lsn < self._goal[0]:
            return
        ts, self._goal = compose_ts(max(0, self._goal[1])), None
        while self._marks and self._marks[0][0] <= lsn:
            self._pass_mark()
        if self._looks.found or lsn > self._last_lsn:
            # Commits of a busy log may be later than the goal, and a server's clock may have been set back.
            ts = max(ts, self._last_ts + TS_STEP)
        self._marked_s = now_s
        if lsn < self._last_lsn or ts <= self._last_ts:
            return
        self._tell_passed(self._last_ts, np.array([ts + DDL_SLOTS], dtype=np.uint64))
        self._last_ts = ts
        self._reach(np.array([lsn], dtype=np.int64), np.array([ts], dtype=np.uint64))
        ddls = self._told(self._tables.tell(self._looks.found, ts))
        yield LogStep(ddls=ddls, position=self._position(), mark=True, doubts=self._due(), schemas=self._notes())
        # Whoever takes steps keeps what one says before the next is asked for.
        self._looks.note_kept()
