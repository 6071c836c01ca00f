"""An upstream with one log, in memory: what a test commits is what its reader gives.

Every commit is one step with a position of its own. Failures can be put before a position: the reader raises them once when it comes there.
Also a journal in memory that notes the order in which it is written. Runs in tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from penstock.meta.log_journal import JournalEntry
from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.single_log import LogPosition, LogStep

FIRST_TS = 1_000
_WAIT_S = 0.02


def table_of(table_id: int) -> TableSchema:
    """Return a table with one BIGINT column, its key."""
    return TableSchema(table_id, "shop", f"t{table_id}", 1, (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True),))


def key_of(value: int) -> bytes:
    """Return the row key of a value."""
    return (value + (1 << 63)).to_bytes(8, "big")


def inserts(table_id: int, ts: int, values: Sequence[int]) -> ChangeBatch:
    """Return rows that came to be at one ts."""
    table = table_of(table_id)
    columns = [
        pa.array([ts] * len(values), pa.uint64()),
        pa.array([int(Op.INSERT)] * len(values), pa.uint8()),
        pa.array([key_of(v) for v in values], pa.binary()),
        pa.array(list(values), pa.int64()),
    ]
    return ChangeBatch.of(0, table, BatchKind.DATA, pa.RecordBatch.from_arrays(columns, schema=table.batch_schema()))


class MemoryLog:
    """The part of ``SingleLogUpstream`` that a puller uses. Thread safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._steps: list[LogStep] = []
        self._failures: dict[int, PenstockError] = {}
        self.starts: list[LogPosition] = []
        """Where each reader began."""
        self.confirmed: list[LogPosition] = []
        self.adopted: list[TableSchema] = []

    def commit(self, table_id: int, values: Sequence[int], mark: bool = False, ddls: Sequence[DdlEvent] = ()) -> int:
        """Add a transaction; return its ts."""
        with self._changed:
            ts = FIRST_TS + len(self._steps) + 1
            changes = (inserts(table_id, ts, values),) if values else ()
            self._steps.append(LogStep(changes, tuple(ddls), LogPosition(ts, str(len(self._steps) + 1)), mark))
            self._changed.notify_all()
            return ts

    def fail_before(self, ts: int, error: PenstockError) -> None:
        """Let the reader fail once before it gives the step of a ts."""
        with self._changed:
            self._failures[ts] = error

    def first_position(self) -> LogPosition:
        """Return the beginning."""
        return LogPosition(FIRST_TS, "0")

    def list_tables(self) -> Sequence[TableSchema]:
        """Return no tables."""
        return ()

    def adopt_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Note the versions."""
        self.adopted = list(versions)

    def log_end(self) -> str:
        """Return the number of the last step."""
        with self._changed:
            return str(len(self._steps))

    def reached(self, position: str, end: str) -> bool:
        """Compare numbers of steps."""
        return int(position) >= int(end)

    def confirm(self, position: LogPosition) -> None:
        """Note the position."""
        self.confirmed.append(position)

    def read_log(
        self, start: LogPosition, marks: Sequence[LogPosition], wanted: Callable[[int], bool], stop: threading.Event
    ) -> Iterator[LogStep]:
        """Yield the steps behind a position."""
        self.starts.append(start)
        at = int(start.text)
        while not stop.is_set():
            with self._changed:
                if at >= len(self._steps):
                    self._changed.wait(_WAIT_S)
                step = self._steps[at] if at < len(self._steps) else None
                failure = self._failures.pop(step.position.ts, None) if step is not None and step.position is not None else None
            if step is None:
                yield LogStep()
                continue
            if failure is not None:
                raise failure
            at += 1
            kept = tuple(c for c in step.changes if wanted(c.header.table_id))
            yield LogStep(kept, step.ddls, step.position, step.mark)


class MemoryJournal:
    """A journal in memory; ``on_save`` is told of every entry after it is kept."""

    def __init__(self, on_save: Callable[[JournalEntry], None] | None = None) -> None:
        self.entries: list[JournalEntry] = []
        self.versions: list[TableSchema] = []
        self._on_save = on_save

    def save(self, entry: JournalEntry) -> None:
        """Keep an entry."""
        self.entries.append(entry)
        if self._on_save is not None:
            self._on_save(entry)

    def start_for(self, ts: int) -> JournalEntry | None:
        """Return the newest entry at or below a ts."""
        return max((e for e in self.entries if e.ts <= ts), key=lambda e: e.ts, default=None)

    def first(self) -> JournalEntry | None:
        """Return the oldest entry."""
        return min(self.entries, key=lambda e: e.ts, default=None)

    def marks_from(self, ts: int) -> list[JournalEntry]:
        """Return the marks above a ts."""
        return sorted((e for e in self.entries if e.mark and e.ts > ts), key=lambda e: e.ts)

    def save_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Keep versions."""
        self.versions += versions

    def schemas(self) -> list[TableSchema]:
        """Return the versions."""
        return list(self.versions)
