"""An upstream with one log, in memory: what a test commits is what its reader gives.

Every commit is one transaction with a place of its own, counted from 1. As with a real log, commit ts are chained by whoever reads it: they
follow from the place where a reading begins, the times of the commits and the marks that were passed. The twin keeps the ts that a reader
without interruption gives, as an oracle: a mark that a reader puts raises them for everything committed later. Failures can be put before a
commit: the reader raises them when it comes there. Also a journal in memory that notes the order in which it is written. Runs in tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa

from penstock.meta.log_journal import JournalEntry
from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.ddl import DdlEvent
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.contract import Capability
from penstock.source.single_log import Beginning, CommitChain, LogPosition, LogStep, TableDoubt

FIRST_TS = 1_000
_WAIT_S = 0.02


def table_of(table_id: int) -> TableSchema:
    """Return a table with one BIGINT column, its key."""
    return TableSchema(table_id, "shop", f"t{table_id}", 1, (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True),))


def key_of(value: int) -> bytes:
    """Return the row key of a value."""
    return (value + (1 << 63)).to_bytes(8, "big")


def rows_of(table_id: int, ts: int, values: Sequence[int], kind: BatchKind = BatchKind.DATA, op: Op = Op.INSERT) -> ChangeBatch:
    """Return rows of one side at one ts, by default inserts."""
    table = table_of(table_id)
    columns = [
        pa.array([ts] * len(values), pa.uint64()),
        pa.array([int(op)] * len(values), pa.uint8()),
        pa.array([key_of(v) for v in values], pa.binary()),
        pa.array(list(values), pa.int64()),
    ]
    return ChangeBatch.of(0, table, kind, pa.RecordBatch.from_arrays(columns, schema=table.batch_schema()))


class Commit(msgspec.Struct):
    """One transaction of the log; ``ts`` is what a reader without interruption gives it."""

    table_id: int
    inserted: tuple[int, ...]
    deleted: tuple[int, ...]
    commit_ms: int
    ts: int
    ddls: tuple[DdlEvent, ...] = ()
    doubt: str = ""


class MemoryLog:
    """The part of ``LoggedUpstream`` that a puller uses. Thread safe."""

    capabilities = Capability.LOG

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.commits: list[Commit] = []
        self.marks: list[tuple[int, int]] = []
        """Place and ts of every mark that a reader put or a test asked for."""
        self._wanted_mark: tuple[int, int] | None = None
        self._chain = CommitChain(FIRST_TS)
        self._begin = LogPosition(FIRST_TS, "0")
        self._failures: dict[int, tuple[PenstockError, int]] = {}
        self.starts: list[LogPosition] = []
        """Where each reader began."""
        self.confirmed: list[LogPosition] = []
        self.adopted: list[TableSchema] = []

    def commit(
        self,
        table_id: int,
        values: Sequence[int],
        mark: bool = False,
        ddls: Sequence[DdlEvent] = (),
        deleted: Sequence[int] = (),
        commit_ms: int = 0,
        doubt: str = "",
    ) -> int:
        """Add a transaction, or a mark at the end of the log; return its ts."""
        with self._changed:
            if mark:
                ts = self._chain.last_ts + 1
                self._wanted_mark = (len(self.commits), ts)
                self._note_mark(len(self.commits), ts)
            else:
                ts = self._chain.next(commit_ms)
                self.commits.append(Commit(table_id, tuple(values), tuple(deleted), commit_ms, ts, tuple(ddls), doubt))
            self._changed.notify_all()
            return ts

    def fail_before(self, ts: int, error: PenstockError, times: int = 1) -> None:
        """Let the reader fail before it gives the step of a ts."""
        with self._changed:
            self._failures[ts] = (error, times)

    def purge(self) -> None:
        """Let capture that begins anew find nothing of what was committed so far."""
        with self._changed:
            self._begin = LogPosition(self._chain.last_ts, str(len(self.commits)))

    def first_position(self) -> LogPosition:
        """Return the beginning, or the end as of the last purge."""
        return self._begin

    def begin_again(self, told_ts: int, above_ts: int) -> Beginning:
        """Go on where ``first_position`` is; no table changed meanwhile."""
        first = self.first_position()
        return Beginning(LogPosition(max(first.ts, above_ts), first.text))

    def list_tables(self) -> Sequence[TableSchema]:
        """Return no tables."""
        return ()

    def notes(self) -> Sequence[TableSchema]:
        """Return nothing."""
        return ()

    def adopt_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Note the versions."""
        self.adopted = list(versions)

    def log_end(self) -> str:
        """Return the number of the last commit."""
        with self._changed:
            return str(len(self.commits))

    def reached(self, position: str, end: str) -> bool:
        """Compare numbers of commits."""
        return int(position) >= int(end)

    def confirm(self, position: LogPosition) -> None:
        """Note the position."""
        self.confirmed.append(position)

    def read_log(
        self, start: LogPosition, marks: Sequence[LogPosition], wanted: Callable[[int], bool], stop: threading.Event
    ) -> Iterator[LogStep]:
        """Yield the commits behind a position."""
        self.starts.append(start)
        reader = MemoryReader(self, start, marks, wanted)
        while not stop.is_set():
            with self._changed:
                if not reader.has_more:
                    self._changed.wait(_WAIT_S)
                asked, self._wanted_mark = self._wanted_mark, None
            if asked is not None and asked[0] == reader.place and reader.chain.last_ts < asked[1]:
                yield reader.mark(asked[1])
            else:
                self._wanted_mark = self._wanted_mark or asked
                yield reader.next()

    def take_failure(self, ts: int) -> PenstockError | None:
        """Return the failure that a test put before a ts, if one is left."""
        error, times = self._failures.get(ts, (None, 0))
        if error is not None and times > 1:
            self._failures[ts] = (error, times - 1)
        else:
            self._failures.pop(ts, None)
        return error

    def _note_mark(self, place: int, ts: int) -> None:
        self.marks.append((place, ts))
        if place == len(self.commits):
            self._chain.raise_to(ts)

    def note_mark(self, place: int, ts: int) -> None:
        """Take note of a mark: what is committed later gets a ts above it."""
        with self._changed:
            self._note_mark(place, ts)


class MemoryReader:
    """One reading of a log: its place and its chain."""

    def __init__(self, log: MemoryLog, start: LogPosition, marks: Sequence[LogPosition], wanted: Callable[[int], bool]) -> None:
        self.place = int(start.text)
        self.chain = CommitChain(start.ts)
        self._log = log
        self._marks = sorted(((int(m.text), m.ts) for m in marks), reverse=True)
        self._wanted = wanted

    @property
    def has_more(self) -> bool:
        """Return whether there is a commit behind its place."""
        return self.place < len(self._log.commits)

    def next_marks(self) -> None:
        """Raise the chain at the marks of the journal that were reached."""
        while self._marks and self._marks[-1][0] <= self.place:
            self.chain.raise_to(self._marks.pop()[1])

    def next(self) -> LogStep:
        """Return the next commit as a step, an empty one at the end."""
        self.next_marks()
        if not self.has_more:
            return LogStep()
        commit = self._log.commits[self.place]
        failure = self._log.take_failure(commit.ts)
        if failure is not None:
            raise failure
        self.place += 1
        ts = self.chain.next(commit.commit_ms)
        changes: list[ChangeBatch] = []
        if self._wanted(commit.table_id):
            if commit.deleted:
                changes.append(rows_of(commit.table_id, ts, commit.deleted, BatchKind.TOMBSTONE, Op.DELETE))
            if commit.inserted:
                changes.append(rows_of(commit.table_id, ts, commit.inserted))
        table = table_of(commit.table_id)
        doubts = (TableDoubt(commit.table_id, table.schema, table.table, ts, commit.doubt),) if commit.doubt else ()
        ddls = tuple(msgspec.structs.replace(ddl, commit_ts=ts) for ddl in commit.ddls)
        return LogStep(tuple(changes), ddls, LogPosition(ts, str(self.place)), doubts=doubts)

    def mark(self, ts: int) -> LogStep:
        """Return a mark at the present place, and raise the chain there."""
        self.chain.raise_to(ts)
        return LogStep(position=LogPosition(self.chain.last_ts, str(self.place)), mark=True)


class MemoryJournal:
    """A journal in memory; ``on_save`` is told of every entry after it is kept."""

    def __init__(self, on_save: Callable[[JournalEntry], None] | None = None) -> None:
        self.entries: list[JournalEntry] = []
        self.versions: list[TableSchema] = []
        self._on_save = on_save

    readers = ("", "")

    def hold(self, afresh: bool = False) -> None:
        """Be the reader: nobody else can be."""

    def let_go(self) -> None:
        """Nobody waits for it."""

    def save(self, entry: JournalEntry) -> None:
        """Keep an entry, as ``meta/log_journal.py`` does."""
        newest = self.start_for(entry.ts)
        if newest is None or newest.ts < entry.ts:
            before = self.start_for(newest.ts - 1) if newest is not None else None
            if entry.mark and newest is not None and newest.mark and before is not None and before.text == newest.text == entry.text:
                self.entries.remove(newest)
            self.entries.append(entry)
        elif entry.mark and newest.mark and newest.text != entry.text:
            raise InvariantError(f"two marks of ts {entry.ts}, at {newest.text} and {entry.text}")
        elif entry.mark and not newest.mark:
            self.entries[self.entries.index(newest)] = entry
        if self._on_save is not None:
            self._on_save(entry)

    def start_for(self, ts: int) -> JournalEntry | None:
        """Return the newest entry at or below a ts."""
        return max((e for e in self.entries if e.ts <= ts), key=lambda e: e.ts, default=None)

    def first(self) -> JournalEntry | None:
        """Return the oldest entry."""
        return min(self.entries, key=lambda e: e.ts, default=None)

    def newest(self) -> JournalEntry | None:
        """Return the newest entry."""
        return max(self.entries, key=lambda e: e.ts, default=None)

    def marks_from(self, ts: int) -> list[JournalEntry]:
        """Return the marks above a ts."""
        return sorted((e for e in self.entries if e.mark and e.ts > ts), key=lambda e: e.ts)

    def begin_anew(self, entry: JournalEntry) -> None:
        """Keep only this entry."""
        self.entries = [entry]

    def prune(self, needed_ts: int) -> None:
        """Keep everything."""

    def save_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Keep versions."""
        self.versions += versions

    def schemas(self) -> list[TableSchema]:
        """Return the versions."""
        return list(self.versions)
