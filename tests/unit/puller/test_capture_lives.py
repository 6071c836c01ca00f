"""Lives of the log service with a real store, journal and book of doubts: what was committed is there after the next start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from penstock.meta.engine import sqlite_url
from penstock.meta.log_journal import LogJournal
from penstock.meta.table_states import TableStates
from penstock.model.batch import BatchKind, ChangeBatch, Op
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.puller.doubts import Corrections
from penstock.puller.log_service import LogService, LogServiceSettings
from penstock.puller.span_pipeline import SpanPipelineSettings
from penstock.source.contract import Upstream
from penstock.store.changes.changes import drain, side_handles
from penstock.store.contract import EndOfRange
from penstock.store.event_store import ColumnarEventStore
from testing.checks.looked_inside import open_doubts
from testing.twins.single_log import FIRST_TS, MemoryLog, rows_of, table_of

WAIT_S = 120.0
BUSY = next(s for s in map(Span, range(1, 40)) if s.span_id % 2 == 0)
"""Of worker 0, which is held."""
LOSING = next(s for s in map(Span, range(1, 40)) if s.span_id % 2 == 1)


class SnapshotLog(MemoryLog):
    """Says of itself that it has one log."""

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        return (table_of(table_id),)

    def begin_snapshot(self) -> None:
        raise NotImplementedError


class GatedStore(ColumnarEventStore):
    """A store whose append of one span can be held."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.gated = -1
        self.held = threading.Event()
        self.gate = threading.Event()

    def append(self, span_id: int, batches: Sequence[ChangeBatch], on_persisted: Callable[[], None]) -> bool:
        if span_id == self.gated:
            self.held.set()
            self.gate.wait(WAIT_S)
        return super().append(span_id, batches, on_persisted)


class Life:
    """One process: store, journal and log service on one log."""

    def __init__(self, directory: Path, log: MemoryLog, spans: dict[Span, int] | None = None) -> None:
        self.log = log
        self.store = GatedStore(directory / "store")
        self.journal = LogJournal(sqlite_url(directory / "meta.db"), "log")
        self.doubts = TableStates(sqlite_url(directory / "meta.db"), "log")
        settings = LogServiceSettings(pipeline=SpanPipelineSettings(workers=2))
        self.service = LogService(cast("Upstream", log), self.store, settings, journal=self.journal, doubts=self.doubts).start()
        for span, start_ts in (spans or {BUSY: FIRST_TS, LOSING: FIRST_TS}).items():
            self.service.ensure_span(span, start_ts)

    def wait(self, span: Span, ts: int) -> None:
        """Wait until a span is resolved up to a ts; the log goes on, because a resolved ts follows a commit."""
        for _ in range(int(WAIT_S / 0.01)):
            if self.store.resolved_ts(span.span_id) >= ts:
                return
            self.log.commit(99, [1])
            threading.Event().wait(0.01)
        raise AssertionError(f"resolved {self.store.resolved_ts(span.span_id)}, waited for {ts}")

    def rows(self, span: Span) -> list[int]:
        view = self.store.view(span.span_id)
        batches = drain(side_handles(view, BatchKind.DATA, FIRST_TS, self.store.resolved_ts(span.span_id)))
        return [value for batch in batches for value in batch.records.column(3).to_pylist()]

    def state(self, span: Span) -> list[int]:
        """Return the values of a span as of its resolved ts."""
        handle = self.store.collect_changes(span.span_id, 0, self.store.resolved_ts(span.span_id))
        values: list[int] = []
        while not isinstance(step := handle.next(), EndOfRange):
            values += [v for batch in step.data for v in batch.records.column(3).to_pylist()]
        handle.close()
        return sorted(values)

    def close(self) -> None:
        self.service.close()
        self.store.close()
        self.journal.close()
        self.doubts.close()


def test_a_row_that_is_read_while_the_service_ends_is_there_after_the_next_start(tmp_path: Path) -> None:
    log = SnapshotLog()
    life = Life(tmp_path, log)
    log.commit(BUSY.table_id, [1])
    life.wait(LOSING, log.commit(LOSING.table_id, [1]))
    life.store.gated = BUSY.span_id
    log.commit(BUSY.table_id, [2])
    assert life.store.held.wait(WAIT_S)
    closing = threading.Thread(target=life.close)
    closing.start()
    # The reader goes on to meet rows of worker 1 while worker 0 is held and the rest of the service closes.
    for value in range(2, 42):
        log.commit(LOSING.table_id, [value])
        threading.Event().wait(0.005)
    life.store.gate.set()
    closing.join()

    again = Life(tmp_path, log)
    last = log.commit(LOSING.table_id, [-1])
    again.wait(LOSING, last)
    assert again.rows(LOSING) == [*range(1, 42), -1]
    again.close()


def test_corrections_are_in_the_store_and_the_journal_after_the_next_start(tmp_path: Path) -> None:
    log = SnapshotLog()
    whole = Span(BUSY.table_id)
    life = Life(tmp_path, log, spans={whole: 0})
    log.commit(whole.table_id, [1, 2, 3])
    life.wait(whole, log.commit(whole.table_id, [], doubt="a statement that rewrites rows"))
    [doubt] = open_doubts(life.service)
    assert doubt.table_id == whole.table_id
    watch = life.service.begin_watch(whole.table_id)
    # The table has 2, 3 and 9; meanwhile the log deletes 3, and tells so itself.
    log.commit(whole.table_id, [], deleted=[3])
    gone, new = rows_of(whole.table_id, 1, [1], BatchKind.TOMBSTONE, Op.DELETE), rows_of(whole.table_id, 1, [3, 9])
    settled = life.service.settle(whole.table_id, [Corrections(watch.spans[0].span_id, (gone,), (new,))])
    assert (settled.rows, settled.left_out, settled.closed) == (2, 1, True)
    log.note_mark(len(log.commits), settled.ts)
    life.close()

    again = Life(tmp_path, log, spans={whole: 0})
    later = log.commit(whole.table_id, [4])
    again.wait(whole, later)
    assert again.state(whole) == [2, 4, 9]
    assert open_doubts(again.service) == []
    assert again.service.table_states()[0].settled_ts == settled.ts < later
    again.close()
