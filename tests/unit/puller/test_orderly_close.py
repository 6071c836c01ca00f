"""An orderly end of the log service loses no row, wherever it meets a commit: the store is opened again and compared with the log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from penstock.meta.engine import sqlite_url
from penstock.meta.log_journal import LogJournal
from penstock.model.batch import BatchKind, ChangeBatch
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.puller.log_service import LogService, LogServiceSettings
from penstock.puller.span_pipeline import SpanPipelineSettings
from penstock.source.contract import Upstream
from penstock.store.changes.changes import drain, side_handles
from penstock.store.event_store import ColumnarEventStore
from penstock.testing.twins.single_log import FIRST_TS, MemoryLog, table_of

WAIT_S = 20.0
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

    def __init__(self, directory: Path, log: MemoryLog) -> None:
        self.log = log
        self.store = GatedStore(directory / "store")
        self.journal = LogJournal(sqlite_url(directory / "meta.db"), "log")
        settings = LogServiceSettings(pipeline=SpanPipelineSettings(workers=2))
        self.service = LogService(cast("Upstream", log), self.store, settings, journal=self.journal).start()
        for span in (BUSY, LOSING):
            self.service.ensure_span(span, FIRST_TS)

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

    def close(self) -> None:
        self.service.close()
        self.store.close()
        self.journal.close()


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
