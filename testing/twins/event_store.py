"""An event store in memory, for tests of what writes to one or reads from one.

Keeps the contract of ``penstock.store.contract.EventStore`` in the simplest way: rows one by one in a dict, persist callbacks from a thread
of its own, one step per read. A test can hold persists back, release them in an order of its choice, and make appends fail. Runs in tests.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import Column, SchemaHistory, TableSchema
from penstock.model.table_pattern import TablePatterns
from penstock.model.timestamp import TS_MAX
from penstock.model.types import TypeKind
from penstock.store.contract import Changes, EndOfRange, Hint, SpanWindow, WindowPlan, WindowWish


class _Row(NamedTuple):
    """A row of either side; ``values`` by field name."""

    ts: int
    key: bytes
    op: Op
    kind: BatchKind
    table_id: int
    version: int
    values: dict[str, Any]
    schema: pa.Schema

    @property
    def nbytes(self) -> int:
        return 17 + len(self.key) + sum(len(v) if isinstance(v, str | bytes) else 8 for v in self.values.values())


_Rows = dict[tuple[int, bytes, BatchKind], _Row]


class UnsharedStore:
    """The part of the contract about other machines, for a store of this process alone."""

    def is_standing_by(self) -> bool:
        """Return False: nobody else has it."""
        return False

    def is_taken_away(self) -> bool:
        """Return False: nobody takes it."""
        return False

    def stand_by(self) -> None:
        """Do nothing: nobody takes it."""

    def recoverable_ts(self, span_ids: Sequence[int]) -> int:
        """Promise nothing."""
        return TS_MAX

    def secure(self, span_ids: Sequence[int]) -> None:
        """Promise nothing."""


class MemoryEventStore(UnsharedStore):
    """The twin. Thread safe."""

    def __init__(self, seed: int | None = None) -> None:
        """Persist in the order of arrival, or in a shuffled one if there is a seed."""
        self.ddls: list[DdlEvent] = []
        self.violations: list[str] = []
        """What a caller did against the contract of the resolved ts."""
        self.repeats = 0
        """How many rows came again."""
        self._rng = random.Random(seed) if seed is not None else None
        self._spans: dict[int, _Rows] = {}
        self._resolved: dict[int, int] = {}
        self._schemas: dict[int, SchemaHistory] = {}
        self._unpersisted: list[tuple[int, Callable[[], None]]] = []
        self._held = False
        self._append_errors: list[PenstockError] = []
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._persist, name="memory-event-store", daemon=True)
        self._thread.start()

    # The script of a test.

    def hold(self) -> None:
        """Persist nothing until ``release``."""
        with self._changed:
            self._held = True

    def release(self) -> None:
        """Persist again."""
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def fail_appends(self, *errors: PenstockError) -> None:
        """Let the next appends raise these errors, one each."""
        with self._changed:
            self._append_errors.extend(errors)

    def wait_resolved(self, span_id: int, ts: int, timeout_s: float = 120.0) -> bool:
        """Wait until a span is resolved up to a ts; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._resolved.get(span_id, 0) >= ts, timeout_s)

    def rows(self, span_id: int) -> list[tuple[int, int, bytes]]:
        """Return commit ts, op and key of all rows of a span, in order."""
        with self._changed:
            return sorted((row.ts, int(row.op), row.key) for row in self._spans[span_id].values())

    def close(self) -> None:
        """Stop; callbacks that are held never come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    # The contract.

    def register_span(self, span_id: int, span: Span, start_ts: int) -> int:
        """Open or create a span."""
        with self._changed:
            self._spans.setdefault(span_id, {})
            return self._resolved.setdefault(span_id, start_ts)

    def append(self, span_id: int, batches: Sequence[ChangeBatch], on_persisted: Callable[[], None]) -> bool:
        """Keep batches and call back from the store's thread."""
        with self._changed:
            if self._append_errors:
                raise self._append_errors.pop(0)
            if span_id not in self._spans:
                return False
            held, resolved_ts = self._spans[span_id], self._resolved[span_id]
            rows = {(row.ts, row.key, row.kind): row for batch in batches for row in _rows_of(batch)}
            fresh = {place: row for place, row in rows.items() if place not in held}
            if any(row.ts <= resolved_ts for row in fresh.values()):
                raise PenstockError("RESOLVED_TS_VIOLATED", f"span {span_id}: a row at or below {resolved_ts}")
            self.repeats += len(rows) - len(fresh)
            held.update(fresh)
            self._unpersisted.append((min(b.header.min_ts for b in batches), on_persisted))
            self._changed.notify_all()
            return True

    def append_ddl(self, ddl: DdlEvent, on_persisted: Callable[[], None]) -> bool:
        """Keep a DDL."""
        with self._changed:
            if ddl not in self.ddls:
                self.ddls.append(ddl)
            self._unpersisted.append((ddl.commit_ts, on_persisted))
            self._changed.notify_all()
        self.put_schemas(ddl.tables)
        return True

    def put_schemas(self, schemas: Sequence[TableSchema]) -> None:
        """Keep schema versions."""
        with self._changed:
            for schema in schemas:
                self._schemas.setdefault(schema.table_id, SchemaHistory(schema.table_id)).add(schema)

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        """Return the versions of a table that are known."""
        with self._changed:
            return self._schemas.get(table_id, SchemaHistory(table_id)).versions()

    def advance_resolved_ts(self, span_id: int, ts: int) -> None:
        """Raise a span's resolved ts."""
        with self._changed:
            self._check(span_id)
            if ts < self._resolved[span_id]:
                self.violations.append(f"resolved ts went from {self._resolved[span_id]} to {ts}")
            self._resolved[span_id] = max(ts, self._resolved[span_id])
            self._changed.notify_all()

    def resolved_ts(self, span_id: int) -> int:
        """Return a span's resolved ts."""
        with self._changed:
            self._check(span_id)
            return self._resolved[span_id]

    def collect_changes(self, span_id: int, from_ts: int, to_ts: int) -> MemoryChangesHandle:
        """Open a handle that gives the window in one step."""
        with self._changed:
            self._check(span_id)
            if from_ts > to_ts or to_ts > self._resolved[span_id]:
                raise PenstockError("WINDOW_INVALID", f"({from_ts}, {to_ts}] of span {span_id}")
            rows = [row for row in self._spans[span_id].values() if from_ts < row.ts <= to_ts]
            if from_ts == 0:
                alive = _alive(rows)
                step = Changes(self._state(span_id, alive, to_ts), (), Hint.SNAPSHOT) if alive else None
            else:
                data, tombstones = (_batches(span_id, [r for r in rows if r.kind is k]) for k in (BatchKind.DATA, BatchKind.TOMBSTONE))
                step = Changes(data, tombstones, Hint.TAIL_DONE) if rows else None
        return MemoryChangesHandle(step, to_ts)

    def plan_window(self, wish: WindowWish) -> WindowPlan:
        """End the window at the smallest resolved ts, at the first DDL, or where the bytes end, at the first ts at the earliest."""
        from_ts, unsplit = wish.from_ts, wish.unsplit
        with self._changed:
            asked = [*wish.span_ids, DDL_SPAN.span_id]
            resolved_ts = max(from_ts, min(self._resolved.get(s, 0) for s in asked))
            wanted = set(wish.table_ids)
            named = TablePatterns(tuple(wish.patterns))
            ahead = [d for d in self.ddls if from_ts < d.commit_ts <= resolved_ts and (d.table_ids & wanted or named.concern(d))]
            ends = [d for d in ahead if d.one_table_id not in unsplit]
            to_ts = min((d.commit_ts for d in ends), default=resolved_ts)
            held = {s: [row for row in self._spans[s].values() if from_ts < row.ts <= to_ts] for s in wish.span_ids}
        to_ts = _within([row for rows in held.values() for row in rows], to_ts, wish.nbytes_max)
        inside = {s: [row for row in rows if row.ts <= to_ts] for s, rows in held.items()}
        spans = tuple(SpanWindow(s, len(rows), sum(row.nbytes for row in rows)) for s, rows in inside.items())
        inner = tuple(d for d in ahead if d.one_table_id in unsplit and d.commit_ts <= to_ts)
        return WindowPlan(from_ts, to_ts, resolved_ts, spans, tuple(d for d in ends if d.commit_ts == to_ts), inner)

    def _check(self, span_id: int) -> None:
        if span_id not in self._spans:
            raise PenstockError("SPAN_UNKNOWN", f"span {span_id} is not registered")

    def _state(self, span_id: int, rows: Sequence[_Row], ts: int) -> tuple[ChangeBatch, ...]:
        """Return rows as inserts at a ts, under the table version that holds there."""
        table = self._schemas[rows[0].table_id].at(ts)
        values = [{c.field_name: row.values.get(c.field_name, _default(c)) for c in table.columns} for row in rows]
        shown = [
            row._replace(ts=ts, op=Op.INSERT, version=table.version, values=v, schema=table.batch_schema())
            for row, v in zip(rows, values, strict=True)
        ]
        return _batches(span_id, shown)

    def _persist(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._unpersisted and not self._held))
                if self._closed:
                    return
                at = self._rng.randrange(len(self._unpersisted)) if self._rng else 0
                _, on_persisted = self._unpersisted.pop(at)
            on_persisted()


class MemoryChangesHandle:
    """One step, then the end."""

    def __init__(self, step: Changes | None, to_ts: int) -> None:
        self._step = step
        self._to_ts = to_ts
        self._closed = False

    def next(self) -> Changes | EndOfRange:
        """Return the step, then the end."""
        if self._closed:
            raise PenstockError("CANCELLED", "the handle is closed")
        step, self._step = self._step, None
        return step or EndOfRange(self._to_ts)

    def close(self) -> None:
        """Close the handle."""
        self._closed = True


def _rows_of(batch: ChangeBatch) -> list[_Row]:
    header, schema = batch.header, batch.records.schema
    return [
        _Row(row.pop("_ts"), row.pop("_key"), Op(row.pop("_op")), header.kind, header.table_id, header.schema_version, row, schema)
        for row in batch.records.to_pylist()
    ]


def _within(rows: Iterable[_Row], to_ts: int, nbytes_max: int) -> int:
    """Return the last ts up to which rows have so many bytes at most, the first of theirs at the earliest."""
    nbytes, last_ts = 0, 0
    for ts, group in groupby(sorted(rows, key=lambda row: row.ts), lambda row: row.ts):
        nbytes += sum(row.nbytes for row in group)
        if nbytes > nbytes_max:
            return last_ts or ts
        last_ts = ts
    return to_ts


def _batches(span_id: int, rows: Iterable[_Row]) -> tuple[ChangeBatch, ...]:
    """Return rows of one side as batches in order, each of one table version."""
    made = []
    for version, group in groupby(sorted(rows, key=lambda row: (row.ts, row.key)), lambda row: row.version):
        same = list(group)
        values = [{"_ts": row.ts, "_key": row.key, "_op": int(row.op), **row.values} for row in same]
        records = pa.RecordBatch.from_pylist(values, schema=same[0].schema)
        table = TableSchema(same[0].table_id, "", "", version, ())
        made.append(ChangeBatch.of(span_id, table, same[0].kind, records))
    return tuple(made)


def _alive(rows: Iterable[_Row]) -> list[_Row]:
    """Return the last row of each key that no later tombstone ended, in key order."""
    last: dict[tuple[bytes, BatchKind], _Row] = {}
    for row in sorted(rows, key=lambda row: row.ts):
        last[row.key, row.kind] = row
    data = [row for (_, kind), row in last.items() if kind is BatchKind.DATA]
    ended = {key: row.ts for (key, kind), row in last.items() if kind is BatchKind.TOMBSTONE}
    return sorted((row for row in data if row.ts >= ended.get(row.key, 0)), key=lambda row: row.key)


def _default(column: Column) -> Any:
    """Return what a row holds that is older than a column."""
    if column.default is None:
        return None
    if column.type.kind is TypeKind.ENUM:
        return column.type.elems.index(column.default) + 1
    return pa.scalar(column.default).cast(column.type.arrow()).as_py()
