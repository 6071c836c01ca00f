"""An event store in memory, for tests of what writes to one or reads from one.

Keeps the contract of ``penstock.store.contract.EventStore`` in the simplest way: rows in lists, persist callbacks from a thread of its own,
one step per read. A test can hold persists back, release them in an order of its choice, and make appends fail. Runs in tests.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

import polars as pl
import pyarrow as pa

from penstock.model.batch import COMMIT_TS, KEY, OP, BatchKind, ChangeBatch, Op, commit_ts_array
from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import SchemaHistory, TableSchema
from penstock.model.table_pattern import TablePatterns
from penstock.store.contract import Changes, EndOfRange, Hint, SpanWindow, WindowPlan


class MemoryEventStore:
    """The twin. Thread safe."""

    def __init__(self, seed: int | None = None) -> None:
        """Persist in the order of arrival, or in a shuffled one if there is a seed."""
        self.ddls: list[DdlEvent] = []
        self.violations: list[str] = []
        """What a caller did against the contract of the resolved ts."""
        self._rng = random.Random(seed) if seed is not None else None
        self._spans: dict[int, tuple[Span, list[ChangeBatch]]] = {}
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

    def wait_resolved(self, span_id: int, ts: int, timeout_s: float = 30.0) -> bool:
        """Wait until a span is resolved up to a ts; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._resolved.get(span_id, 0) >= ts, timeout_s)

    def rows(self, span_id: int) -> list[tuple[int, int, bytes]]:
        """Return commit ts, op and key of all rows of a span, in order."""
        with self._changed:
            batches = list(self._spans[span_id][1])
        columns = (COMMIT_TS, OP, KEY)
        return sorted(row for b in batches for row in zip(*(b.records.column(c).to_pylist() for c in columns), strict=True))

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
            self._spans.setdefault(span_id, (span, []))
            return self._resolved.setdefault(span_id, start_ts)

    def append(self, span_id: int, batches: Sequence[ChangeBatch], on_persisted: Callable[[], None]) -> bool:
        """Keep batches and call back from the store's thread."""
        with self._changed:
            if self._append_errors:
                raise self._append_errors.pop(0)
            if span_id not in self._spans:
                return False
            resolved_ts = self._resolved[span_id]
            self.violations.extend(f"row at {b.header.min_ts}, resolved {resolved_ts}" for b in batches if b.header.min_ts <= resolved_ts)
            self._spans[span_id][1].extend(batches)
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
            if ts < self._resolved[span_id]:
                self.violations.append(f"resolved ts went from {self._resolved[span_id]} to {ts}")
            self._resolved[span_id] = max(ts, self._resolved[span_id])
            self._changed.notify_all()

    def resolved_ts(self, span_id: int) -> int:
        """Return a span's resolved ts."""
        with self._changed:
            return self._resolved.get(span_id, 0)

    def collect_changes(self, span_id: int, from_ts: int, to_ts: int) -> MemoryChangesHandle:
        """Open a handle that gives the window in one step."""
        with self._changed:
            batches = list(self._spans[span_id][1])
        return MemoryChangesHandle(_window(batches, from_ts, to_ts), to_ts, snapshot=from_ts == 0)

    def plan_window(
        self,
        span_ids: Sequence[int],
        table_ids: Sequence[int],
        from_ts: int,
        nbytes_max: int,
        patterns: Sequence[str] = (),
        unsplit: Sequence[int] = (),
    ) -> WindowPlan:
        """End the window at the smallest resolved ts or at the first DDL; the byte bound is not kept."""
        with self._changed:
            asked = [*span_ids, DDL_SPAN.span_id]
            resolved_ts = max(from_ts, min(self._resolved.get(s, 0) for s in asked))
            wanted = set(table_ids)
            named = TablePatterns(tuple(patterns))
            ahead = [d for d in self.ddls if from_ts < d.commit_ts <= resolved_ts and (d.table_ids & wanted or named.concern(d))]
            ends = [d for d in ahead if d.one_table_id not in unsplit]
            to_ts = min((d.commit_ts for d in ends), default=resolved_ts)
            held = {s: _window(self._spans[s][1], from_ts, to_ts) for s in span_ids}
        spans = tuple(SpanWindow(s, sum(b.header.rows for b in bs), sum(b.header.nbytes for b in bs)) for s, bs in held.items())
        inner = tuple(d for d in ahead if d.one_table_id in unsplit and d.commit_ts <= to_ts)
        return WindowPlan(from_ts, to_ts, resolved_ts, spans, tuple(d for d in ends if d.commit_ts == to_ts), inner)

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

    def __init__(self, batches: list[ChangeBatch], to_ts: int, snapshot: bool) -> None:
        data = [b for b in batches if b.header.kind is BatchKind.DATA]
        tombstones = [b for b in batches if b.header.kind is BatchKind.TOMBSTONE]
        if snapshot:
            data, tombstones = _alive(data, tombstones, to_ts), []
        self._steps = [Changes(tuple(data), tuple(tombstones), Hint.SNAPSHOT if snapshot else Hint.TAIL_DONE)] if data or tombstones else []
        self._to_ts = to_ts
        self._closed = False

    def next(self) -> Changes | EndOfRange:
        """Return the step, then the end."""
        if self._closed:
            raise PenstockError("CANCELLED", "the handle is closed")
        return self._steps.pop() if self._steps else EndOfRange(self._to_ts)

    def close(self) -> None:
        """Close the handle."""
        self._closed = True


def _window(batches: Sequence[ChangeBatch], from_ts: int, to_ts: int) -> list[ChangeBatch]:
    out = []
    for batch in sorted(batches, key=lambda b: (b.header.min_ts, b.header.max_ts)):
        ts = commit_ts_array(batch.records)
        records = batch.records.filter(pa.array((ts > from_ts) & (ts <= to_ts)))
        if records.num_rows:
            out.append(_with(batch, records))
    return out


def _alive(data: list[ChangeBatch], tombstones: list[ChangeBatch], to_ts: int) -> list[ChangeBatch]:
    """Return the rows that no later tombstone ended, as INSERT rows at ``to_ts``."""
    ended: dict[bytes, int] = {}
    for batch in tombstones:
        for key, ts in zip(batch.records.column(KEY).to_pylist(), batch.records.column(COMMIT_TS).to_pylist(), strict=True):
            ended[key] = max(ts, ended.get(key, 0))
    out = []
    for batch in data:
        keys, ts = batch.records.column(KEY).to_pylist(), batch.records.column(COMMIT_TS).to_pylist()
        records = batch.records.filter(pa.array([t >= ended.get(k, 0) for k, t in zip(keys, ts, strict=True)], pa.bool_()))
        if records.num_rows:
            frame = pl.DataFrame(pl.from_arrow(records)).sort(KEY)
            frame = frame.with_columns(pl.lit(to_ts, pl.UInt64).alias(COMMIT_TS), pl.lit(int(Op.INSERT), pl.UInt8).alias(OP))
            out.append(_with(batch, frame.to_arrow().cast(records.schema).combine_chunks().to_batches()[0]))
    return out


def _with(batch: ChangeBatch, records: pa.RecordBatch) -> ChangeBatch:
    ts = commit_ts_array(records)
    header = batch.header
    changed = type(header)(
        header.span_id,
        header.table_id,
        header.schema_version,
        header.kind,
        int(ts.min()),
        int(ts.max()),
        records.num_rows,
        records.nbytes,
    )
    return ChangeBatch(changed, records)
