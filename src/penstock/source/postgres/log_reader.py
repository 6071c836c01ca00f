"""Reads the log: frames what arrives, gives transactions their commit ts, and yields decoded steps.

Rows wait undecoded in the buffer until their transaction is complete, then whole transactions are decoded, relation by relation. A
transaction's ts leaves room below it for the schema changes that it holds, whether it has any or not, so the ts of the log do not depend
on what is known of schemas. Marks while the log is quiet come from the server's keepalives, which say up to where it has read its log.
One thread reads. Runs in the log service.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from penstock.model.batch import ChangeBatch
from penstock.model.clock import Clock
from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.timestamp import LOGICAL_BITS, compose_ts
from penstock.source.dataserver.kernel import I64, U8, U64
from penstock.source.postgres.connection import server_error
from penstock.source.postgres.pgoutput import (
    BAD,
    COMMIT_US,
    END,
    END_LSN,
    FIRST_ROW,
    FULL,
    KEEPALIVES,
    MORE,
    NEW_AT,
    OLD_AT,
    OPEN,
    POSTGRES_EPOCH_US,
    REL,
    ROW_SLOTS,
    ROWS,
    SENT_US,
    SPECIAL,
    STATE_SLOTS,
    STATUS,
    TXN,
    TXN_SLOTS,
    TXNS,
    WAL_END,
    Relation,
    read_relation,
    read_truncate,
    scan,
)
from penstock.source.postgres.replication_stream import ReplicationStream, StreamSettings
from penstock.source.postgres.row_changes import Fetch, build_changes
from penstock.source.postgres.schema_book import DDL_SLOTS, KnownRelation, SchemaBook
from penstock.source.postgres.slot import format_lsn, parse_lsn
from penstock.source.single_log import LogPosition, LogStep

TS_STEP = DDL_SLOTS + 1


@dataclass(frozen=True)
class LogReaderSettings:
    """How much is decoded at once, how long complete transactions wait for more of them, and how often a quiet log is marked."""

    chunk_bytes: int = 4 << 20
    rows_max: int = 1 << 16
    mark_interval_s: float = 0.5
    poll_s: float = 0.2
    linger_s: float = 0.05
    stream: StreamSettings = field(default_factory=StreamSettings)


class _Notice(msgspec.Struct, frozen=True):
    """A relation or a truncate, at the place where it stands between rows."""

    row: int
    txn: int
    oid: int
    relation: Relation | None


class CommitLog:
    """Which ts the chain had at recent places of the log. Thread safe."""

    def __init__(self, entries_max: int = 256) -> None:
        self._entries_max = entries_max
        self._entries: list[tuple[I64, U64]] = []
        self._start = LogPosition(0, "0/0")
        self._reached = 0
        self._changed = threading.Condition()
        self._keep = 0
        self._reading = False

    def begin(self, start: LogPosition) -> None:
        """Forget everything: a reader begins here."""
        with self._changed:
            self._entries = []
            self._start = start
            self._reached = parse_lsn(start.text)
            self._reading = True
            self._changed.notify_all()

    def add(self, lsns: I64, ts: U64) -> None:
        """Note transactions or a mark, in log order."""
        with self._changed:
            self._entries.append((lsns, ts))
            if len(self._entries) > self._entries_max and self._keep == 0:
                dropped = self._entries.pop(0)
                self._start = LogPosition(int(dropped[1][-1]), format_lsn(int(dropped[0][-1])))
            self._reached = int(lsns[-1])
            self._changed.notify_all()

    def end(self) -> None:
        """Say that nobody reads any more."""
        with self._changed:
            self._reading = False
            self._changed.notify_all()

    @property
    def reading(self) -> bool:
        """Return whether a reader is at work."""
        return self._reading

    def last_ts(self) -> int:
        """Return the newest ts; 0 before anything was read."""
        with self._changed:
            return int(self._entries[-1][1][-1]) if self._entries else self._start.ts

    def hold(self) -> None:
        """Keep everything from now on until ``release``."""
        with self._changed:
            self._keep += 1

    def release(self) -> None:
        """End a ``hold``."""
        with self._changed:
            self._keep -= 1

    def ts_at(self, lsn: int, timeout_s: float) -> int | None:
        """Return the chain's ts at a place, waiting until the reader is there; None where it is not known."""
        with self._changed:
            if not self._reading or lsn < parse_lsn(self._start.text):
                return None
            if not self._changed.wait_for(lambda: self._reached >= lsn or not self._reading, timeout_s) or self._reached < lsn:
                return None
            ts = self._start.ts
            for lsns, stamps in self._entries:
                at = int(np.searchsorted(lsns, lsn, side="right"))
                if at == 0:
                    break
                ts = int(stamps[at - 1])
            return ts


class LogReader:
    """One reading of the log, from a position until it is stopped or fails."""

    def __init__(
        self,
        stream: ReplicationStream,
        book: SchemaBook,
        fetch: Fetch,
        commits: CommitLog,
        settings: LogReaderSettings,
        clock: Clock,
        shown: str,
        system: str,
    ) -> None:
        self._stream = stream
        self._book = book
        self._fetch = fetch
        self._commits = commits
        self._settings = settings
        self._clock = clock
        self._shown = shown
        self._system = system
        self._buf: U8 = np.zeros(settings.chunk_bytes * 2, dtype=np.uint8)
        self._size = 0
        self._at = 0
        self._state = np.zeros(STATE_SLOTS, dtype=np.int64)
        self._rows = np.zeros((settings.rows_max, ROW_SLOTS), dtype=np.int64)
        self._txns = np.zeros((settings.rows_max, TXN_SLOTS), dtype=np.int64)
        self._notices: list[_Notice] = []
        self._relations: dict[int, Relation] = {}
        self._known: dict[int, KnownRelation] = {}
        self._last_ts = 0
        self._last_lsn = 0
        self._marks: list[tuple[int, int]] = []
        self._marked_s = 0.0
        self._waiting_s = 0.0
        self._keepalives = 0
        self._wanted: Callable[[int], bool] = lambda _table_id: True

    def read(
        self, start: LogPosition, marks: Sequence[LogPosition], wanted: Callable[[int], bool], stop: threading.Event
    ) -> Iterator[LogStep]:
        """Yield steps until ``stop`` is set."""
        self._last_ts, self._last_lsn = start.ts, parse_lsn(start.text)
        self._marks = [(parse_lsn(m.text), m.ts) for m in marks]
        self._wanted = wanted
        while not stop.is_set():
            waits = self._complete() > 0
            pieces = self._stream.take(self._settings.linger_s if waits else self._settings.poll_s, self._settings.chunk_bytes)
            for piece in pieces:
                self._append(piece)
            now_s = self._clock.monotonic_s()
            if not waits:
                self._waiting_s = now_s
            yield from self._steps(not pieces or now_s - self._waiting_s >= self._settings.linger_s)

    def _steps(self, due: bool) -> Iterator[LogStep]:
        """Scan what arrived; yield what is complete if it is due or large."""
        while True:
            self._at = int(scan(self._buf, self._at, self._size, False, self._state, self._rows, self._txns))
            status = int(self._state[STATUS])
            if status == BAD:
                raise PenstockError("DECODE_FAILED", f"{self._shown}: bytes of the replication stream make no sense")
            if status == SPECIAL:
                self._take_special()
                continue
            complete = self._complete()
            if complete and (due or status == FULL or self._size >= self._settings.chunk_bytes):
                yield self._decode(complete)
            elif status == FULL:
                self._grow()
            if status == MORE:
                break
        if int(self._state[TXNS]) == 0:
            self._forget(self._at)
            yield from self._mark()

    def _position(self) -> LogPosition:
        return LogPosition(self._last_ts, f"{format_lsn(self._last_lsn)}@{self._system}")

    def _complete(self) -> int:
        return int(self._state[TXNS] - self._state[OPEN])

    def _append(self, piece: bytes | bytearray) -> None:
        need = self._size + len(piece)
        if need > len(self._buf):
            bigger = np.zeros(max(need, 2 * len(self._buf)), dtype=np.uint8)
            bigger[: self._size] = self._buf[: self._size]
            self._buf = bigger
        self._buf[self._size : need] = np.frombuffer(piece, dtype=np.uint8)
        self._size = need

    def _grow(self) -> None:
        self._rows = np.vstack([self._rows, np.zeros_like(self._rows)])
        self._txns = np.vstack([self._txns, np.zeros_like(self._txns)])

    def _take_special(self) -> None:
        """Read one rare message."""
        at = self._at
        length = int.from_bytes(self._buf[at + 1 : at + 5].tobytes(), "big")
        after = at + 1 + length
        outer = self._buf[at]
        if outer == ord("E"):
            raise server_error(self._shown, self._buf[at + 5 : after].tobytes())
        if outer != ord("d"):
            if outer in (ord("N"), ord("S")):
                self._at = after
                return
            raise PenstockError("UPSTREAM_UNREACHABLE", f"{self._shown}: the server ended the replication stream")
        message = at + 5 + 25
        self._special(chr(self._buf[message]), self._buf[message + 1 : after].tobytes())
        self._at = after

    def _special(self, kind: str, body: bytes) -> None:
        row, txn = int(self._state[ROWS]), int(self._state[TXNS]) - 1
        if kind == "R":
            relation = read_relation(body)
            self._notices.append(_Notice(row, txn, relation.oid, relation))
        elif kind == "T":
            self._notices.extend(_Notice(row, txn, oid, None) for oid in read_truncate(body))
        elif kind not in "YOM":
            raise PenstockError("DECODE_FAILED", f"{self._shown}: unknown message {kind!r} in the replication stream")

    def _decode(self, complete: int) -> LogStep:
        """Decode the transactions that are complete and forget their bytes."""
        txns = self._txns[:complete]
        rows_end = int(self._txns[complete, FIRST_ROW]) if self._state[OPEN] else int(self._state[ROWS])
        ts = self._assign(txns)
        rows = self._rows[:rows_end]
        changes, ddls = self._changes(rows, ts, txns, complete)
        self._last_lsn = int(txns[-1, END_LSN])
        self._commits.add(txns[:, END_LSN].copy(), ts)
        self._stream.received(self._last_lsn)
        step = LogStep(tuple(changes), tuple(ddls), self._position())
        self._drop(complete, rows_end)
        return step

    def _assign(self, txns: I64) -> U64:
        """Return the ts of transactions, raising the chain at marks."""
        commit_ms = (txns[:, COMMIT_US] + POSTGRES_EPOCH_US) // 1000
        lsns = txns[:, END_LSN]
        stamps = np.zeros(len(txns), dtype=np.uint64)
        begin = 0
        while begin < len(txns):
            while self._marks and self._marks[0][0] < lsns[begin]:
                self._last_ts = max(self._last_ts, self._marks.pop(0)[1])
            end = int(np.searchsorted(lsns, self._marks[0][0], side="right")) if self._marks else len(txns)
            stamps[begin:end] = chain_ts(self._last_ts, commit_ms[begin:end])
            self._last_ts = int(stamps[end - 1])
            begin = end
        return stamps

    def _changes(self, rows: I64, ts: U64, txns: I64, complete: int) -> tuple[list[ChangeBatch], list[DdlEvent]]:
        changes: list[ChangeBatch] = []
        ddls: list[DdlEvent] = []
        notices = [n for n in self._notices if n.txn < complete]
        oids = {int(o) for o in np.unique(rows[:, REL])} | {n.oid for n in notices}
        ordinals = np.arange(len(rows)) - txns[rows[:, TXN], FIRST_ROW]
        for oid in sorted(oids):
            mine = np.flatnonzero(rows[:, REL] == oid)
            own = [n for n in notices if n.oid == oid]
            borders = [0, *(int(np.searchsorted(mine, n.row)) for n in own), len(mine)]
            for at, (begin, end) in enumerate(itertools.pairwise(borders)):
                if at:
                    self._apply(own[at - 1], int(ts[own[at - 1].txn]), ddls)
                part = mine[begin:end]
                if len(part) == 0:
                    continue
                stamps = ts[rows[part, TXN]]
                known = self._resolve(oid, int(stamps[0]), ddls)
                if known is not None:
                    changes += build_changes(known, self._buf, rows[part], stamps, ordinals[part], self._fetch)
        return changes, sorted(ddls, key=lambda d: d.commit_ts)

    def _apply(self, notice: _Notice, ts: int, ddls: list[DdlEvent]) -> None:
        if notice.relation is not None:
            self._relations[notice.oid] = notice.relation
            self._known.pop(notice.oid, None)
        elif self._wanted(self._book.table_id(notice.oid, ts)):
            ddls.append(self._book.truncate(notice.oid, ts))
            self._known.pop(notice.oid, None)

    def _resolve(self, oid: int, ts: int, ddls: list[DdlEvent]) -> KnownRelation | None:
        """Return how rows of a relation are read, or None where nobody wants them."""
        known = self._known.get(oid)
        if not self._wanted(known.table.table_id if known else self._book.table_id(oid, ts)):
            return None
        if known is None:
            relation = self._relations.get(oid)
            if relation is None:
                raise PenstockError("DECODE_FAILED", f"{self._shown}: rows of relation {oid}, which was never described")
            known, ddl = self._book.observe(relation, ts)
            self._known[oid] = known
            if ddl is not None:
                ddls.append(ddl)
        return known

    def _drop(self, complete: int, rows_end: int) -> None:
        """Forget decoded transactions; what is left of an open one moves to the front."""
        left = int(self._state[ROWS]) - rows_end
        kept = self._rows[rows_end : rows_end + left].copy()
        cut = self._at
        if left:
            first = kept[0]
            cut = int(min(p for p in (first[OLD_AT], first[NEW_AT]) if p >= 0))
            for slot in (OLD_AT, NEW_AT):
                kept[:, slot] = np.where(kept[:, slot] >= 0, kept[:, slot] - cut, -1)
            kept[:, END] -= cut
            kept[:, TXN] -= complete
            self._rows[:left] = kept
        if self._state[OPEN]:
            self._txns[0] = self._txns[complete]
            self._txns[0, FIRST_ROW] = 0
        self._notices = [_Notice(n.row - rows_end, n.txn - complete, n.oid, n.relation) for n in self._notices if n.txn >= complete]
        self._state[ROWS] = left
        self._state[TXNS] = self._state[OPEN]
        self._forget(cut)

    def _forget(self, cut: int) -> None:
        rest = self._size - cut
        if cut:
            self._buf[:rest] = self._buf[cut : self._size].copy()
        self._at -= cut
        self._size = rest

    def _mark(self) -> Iterator[LogStep]:
        """Move the chain on while the log is quiet, if the server has said where its reading stands."""
        if int(self._state[KEEPALIVES]) == self._keepalives:
            return
        now_s = self._clock.monotonic_s()
        if now_s - self._marked_s < self._settings.mark_interval_s:
            return
        self._keepalives = int(self._state[KEEPALIVES])
        lsn = int(self._state[WAL_END])
        while self._marks and self._marks[0][0] <= lsn:
            self._last_ts = max(self._last_ts, self._marks.pop(0)[1])
        ts = compose_ts(max(0, (int(self._state[SENT_US]) + POSTGRES_EPOCH_US) // 1000))
        if lsn < self._last_lsn or ts <= self._last_ts:
            return
        self._marked_s = now_s
        self._last_ts, self._last_lsn = ts, lsn
        self._commits.add(np.array([lsn], dtype=np.int64), np.array([ts], dtype=np.uint64))
        self._stream.received(lsn)
        yield LogStep(position=self._position(), mark=True)


def chain_ts(last_ts: int, commit_ms: I64) -> U64:
    """Return growing ts for transactions in log order, each at least ``TS_STEP`` above the one before and not before its own time."""
    place = np.arange(len(commit_ms), dtype=np.int64) * TS_STEP
    floor = np.maximum(commit_ms, 0) << LOGICAL_BITS
    return (np.maximum(np.maximum.accumulate(floor - place), last_ts + TS_STEP) + place).astype(np.uint64)
