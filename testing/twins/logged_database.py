"""A database with one log, in memory: all of ``LoggedUpstream``, with tables, snapshots and a log that can be given up.

Every commit is one step with a position and a ts of its own. ``twins/single_log.py`` is the log alone, with failures, marks and ts that are
chained by its reader. Runs in tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.span import Span, cut
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.source.contract import Capability, LogPosition, SnapshotTicket
from penstock.source.single_log import Beginning, LogStep
from testing.twins.single_log import FIRST_TS, key_of, table_of

_TS_APART = compose_ts(2_000)
"""Leaves room between commits for marks, which so need not raise the next one."""
_WAIT_S = 0.02
_PIECE_ROWS = 4


def _rows(span_id: int, table: TableSchema, ts: Sequence[int], op: Op, values: Sequence[int]) -> ChangeBatch:
    """Return rows of a table in key order; columns that came later are null."""
    order = sorted(range(len(values)), key=values.__getitem__)
    columns = [
        pa.array([ts[at] for at in order], pa.uint64()),
        pa.array([int(op)] * len(values), pa.uint8()),
        pa.array([key_of(values[at]) for at in order], pa.binary()),
        pa.array([values[at] for at in order], pa.int64()),
        *(pa.nulls(len(values), pa.int64()) for _ in table.columns[1:]),
    ]
    kind = BatchKind.TOMBSTONE if op is Op.DELETE else BatchKind.DATA
    return ChangeBatch.of(span_id, table, kind, pa.RecordBatch.from_arrays(columns, schema=table.batch_schema()))


class MemoryDatabase:
    """A ``LoggedUpstream`` in memory. Thread safe.

    Tables have one BIGINT column, their key, and come to be with their first commit.
    """

    capabilities = Capability.LOG

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._steps: list[LogStep] = []
        self._tables: dict[int, list[TableSchema]] = {}
        self._rows: dict[int, dict[int, int]] = {}
        self._released = 0
        """How much of the log is gone, because nobody needed it any more."""
        self._releases = 0
        self._closed = False

    # The script of a test.

    def commit(self, table_id: int, values: Sequence[int] = (), gone: Sequence[int] = ()) -> None:
        """Add a transaction that inserts and deletes values."""
        with self._changed:
            ts = self._next_ts()
            table = self._tables.setdefault(table_id, [table_of(table_id)])[-1]
            rows = self._rows.setdefault(table_id, {})
            rows.update(dict.fromkeys(values, ts))
            for value in gone:
                del rows[value]
            sides = [(values, Op.INSERT), (gone, Op.DELETE)]
            changes = tuple(_rows(0, table, [ts] * len(side), op, side) for side, op in sides if side)
            self._append(LogStep(changes, (), LogPosition(ts, str(len(self._steps) + 1))))

    def alter(self, table_id: int) -> None:
        """Give a table a new version with one more column, of which the rows here show nothing."""
        with self._changed:
            ts, old = self._next_ts(), self._tables[table_id][-1]
            added = Column(len(old.columns) + 1, f"c{len(old.columns)}", ColumnType(TypeKind.BIGINT))
            newer = msgspec.structs.replace(old, version=ts, columns=(*old.columns, added))
            self._tables[table_id].append(newer)
            ddl = DdlEvent(ts, DdlType.ADD_COLUMN, f"ALTER TABLE {old.full_name} ADD COLUMN {added.name} BIGINT", old.schema, (newer,))
            self._append(LogStep((), (ddl,), LogPosition(ts, str(len(self._steps) + 1))))

    # What every upstream does.

    def current_ts(self) -> int:
        """Return the ts of the next commit."""
        with self._changed:
            self._answer()
            return self._next_ts()

    def list_tables(self) -> Sequence[TableSchema]:
        """Return the newest version of every table."""
        with self._changed:
            self._answer()
            return [versions[-1] for versions in self._tables.values()]

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        """Return every version of a table."""
        with self._changed:
            self._answer()
            if table_id not in self._tables:
                raise PenstockError("TABLE_UNKNOWN", f"no table has id {table_id}")
            return tuple(self._tables[table_id])

    def divide(self, span: Span, pieces_max: int | None = None) -> Sequence[Span]:
        """Cut a span at every fourth row."""
        values = sorted(self._rows_now(span.table_id))
        return cut(span, [key_of(v) for v in values[::_PIECE_ROWS]], pieces_max)

    def read_now(self, span: Span) -> Iterator[ChangeBatch]:
        """Yield the rows of a span now, in one batch."""
        rows = self._rows_now(span.table_id)
        table = self.schema_history(span.table_id)[-1]
        inside = [v for v in sorted(rows) if span.contains(key_of(v))]
        return iter([_rows(span.span_id, table, [rows[v] for v in inside], Op.INSERT, inside)] if inside else [])

    def begin_snapshot(self) -> SnapshotTicket:
        """Begin at the end of the log."""
        with self._changed:
            self._answer()
            return SnapshotTicket(LogPosition(self._ts_of(len(self._steps)), str(len(self._steps))))

    def read_snapshot(self, ticket: SnapshotTicket, span: Span, table: TableSchema, page_rows: int) -> Iterator[ChangeBatch]:
        """Yield the rows that a span has when each page is read."""
        last: int | None = None
        while True:
            inside = [v for v in sorted(self._rows_now(span.table_id)) if span.contains(key_of(v))]
            values = [v for v in inside if last is None or v > last][:page_rows]
            if not values:
                return
            yield _rows(span.span_id, table, [ticket.start.ts] * len(values), Op.INSERT, values)
            last = values[-1]

    def end_snapshot(self, ticket: SnapshotTicket) -> None:
        """Release nothing."""

    def close(self) -> None:
        """Answer nothing any more."""
        with self._changed:
            self._closed = True

    # The log.

    def first_position(self) -> LogPosition:
        """Return the end of the log."""
        with self._changed:
            self._answer()
            return LogPosition(self._ts_of(len(self._steps)), str(len(self._steps)))

    def begin_again(self, told_ts: int, above_ts: int) -> Beginning:
        """Return the end of the log; no table changed meanwhile."""
        first = self.first_position()
        return Beginning(LogPosition(max(first.ts, above_ts), first.text))

    def notes(self) -> Sequence[TableSchema]:
        """Return nothing."""
        return ()

    def adopt_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Do nothing: every version is known."""

    def log_end(self) -> str:
        """Return the number of the last step."""
        with self._changed:
            self._answer()
            return str(len(self._steps))

    def reached(self, position: str, end: str) -> bool:
        """Compare numbers of steps."""
        return int(position) >= int(end)

    def confirm(self, position: LogPosition) -> None:
        """Keep the log all the same."""

    def release(self) -> None:
        """Give up the log up to now; readers end."""
        with self._changed:
            self._released = len(self._steps)
            self._releases += 1
            self._changed.notify_all()

    def read_log(
        self, start: LogPosition, marks: Sequence[LogPosition], wanted: Callable[[int], bool], stop: threading.Event
    ) -> Iterator[LogStep]:
        """Yield the steps behind a position."""
        at, releases = int(start.text), self._releases
        while not stop.is_set():
            with self._changed:
                self._answer()
                if at >= len(self._steps):
                    self._changed.wait(_WAIT_S)
                if at < self._released or releases != self._releases:
                    raise PenstockError("LOG_PURGED", f"the log before {self._released} is gone")
                step = self._steps[at] if at < len(self._steps) else None
            if step is None:
                # The place where the reader stands, so that what it gave is resolved also where nothing comes after.
                yield LogStep(position=LogPosition(self._ts_of(at), str(at)))
                continue
            at += 1
            kept = tuple(c for c in step.changes if wanted(c.header.table_id))
            yield LogStep(kept, step.ddls, step.position)

    def _next_ts(self) -> int:
        return self._ts_of(len(self._steps) + 1)

    def _ts_of(self, step: int) -> int:
        return FIRST_TS + _TS_APART * step

    def _append(self, step: LogStep) -> None:
        self._steps.append(step)
        self._changed.notify_all()

    def _rows_now(self, table_id: int) -> dict[int, int]:
        with self._changed:
            self._answer()
            return dict(self._rows.get(table_id, {}))

    def _answer(self) -> None:
        if self._closed:
            raise PenstockError("UPSTREAM_UNREACHABLE", "the log is closed")
