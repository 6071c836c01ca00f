"""The log service between the real data server and the real event store: the captured tables are the upstream's, also after a restart."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from penstock.model.batch import COMMIT_TS, KEY
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.puller.log_service import LogService, LogServiceSettings
from penstock.puller.span_pipeline import SpanPipelineSettings
from penstock.source.dataserver.client import DataServerUpstream
from penstock.source.dataserver.service.server import DataServer, DataServerSettings
from penstock.source.dataserver.workload import Workload, WorkloadSettings
from penstock.store.contract import EndOfRange
from penstock.store.event_store import ColumnarEventStore

pytestmark = pytest.mark.integration
WAIT_S = 60
SETTINGS = LogServiceSettings(pipeline=SpanPipelineSettings(workers=2))


def table_of(batches: list[pa.RecordBatch], table: TableSchema) -> pl.DataFrame:
    names = [KEY, *(c.field_name for c in table.columns)]
    frames = [pl.DataFrame(pl.from_arrow(pa.Table.from_batches([b]).select(names))) for b in batches]
    return pl.concat(frames).sort(KEY) if frames else pl.DataFrame(schema=names)


def captured(store: ColumnarEventStore, span_id: int, ts: int, table: TableSchema) -> pl.DataFrame:
    handle = store.collect_changes(span_id, 0, ts)
    batches: list[pa.RecordBatch] = []
    while not isinstance(step := handle.next(), EndOfRange):
        assert not step.tombstones
        batches.extend(b.records for b in step.data)
    handle.close()
    return table_of(batches, table)


def check(store: ColumnarEventStore, upstream: DataServerUpstream, ts: int) -> int:
    """Compare every table as of a ts; return how many rows were equal."""
    rows = 0
    for table in upstream.list_tables_at(ts):
        expected = table_of([b.records for b in upstream.read_table(Span(table.table_id), ts)], table)
        got = captured(store, Span(table.table_id).span_id, ts, table)
        assert got.equals(expected), table.full_name
        rows += expected.height
    return rows


def check_tail(store: ColumnarEventStore, span_id: int, from_ts: int, to_ts: int) -> None:
    """No row comes twice, and rows come in the order of their commit ts."""
    handle = store.collect_changes(span_id, from_ts, to_ts)
    sides: dict[str, list[tuple[int, bytes]]] = {"data": [], "tombstones": []}
    while not isinstance(step := handle.next(), EndOfRange):
        for name, batches in (("data", step.data), ("tombstones", step.tombstones)):
            for batch in batches:
                rows = list(zip(batch.records.column(COMMIT_TS).to_pylist(), batch.records.column(KEY).to_pylist(), strict=True))
                assert rows == sorted(rows)
                sides[name].extend(rows)
    handle.close()
    for rows in sides.values():
        assert len(set(rows)) == len(rows)
        assert [r[0] for r in rows] == sorted(r[0] for r in rows)


class WatchedStore(ColumnarEventStore):
    """The store, and a way to wait for its resolved ts."""

    watch = threading.Condition()

    def advance_resolved_ts(self, span_id: int, ts: int) -> None:
        super().advance_resolved_ts(span_id, ts)
        with self.watch:
            self.watch.notify_all()

    def wait_resolved(self, spans: list[Span], ts: int) -> bool:
        with self.watch:
            return self.watch.wait_for(lambda: min(self.resolved_ts(s.span_id) for s in spans) >= ts, WAIT_S)


def test_captured_tables_equal_the_upstream_also_after_a_restart(tmp_path: Path) -> None:
    with DataServer(DataServerSettings(stores=2, resolved_interval_ms=20)) as server, DataServerUpstream(server.uri) as upstream:
        workload = Workload(upstream, WorkloadSettings(rows=6000, txn_rows=40, seed=4))
        workload.setup()
        spans = [Span(t.table_id) for t in upstream.list_tables()]
        workload.start()
        for last in (False, False, True):
            # The first two runs end in the middle of the flow, with rows above the resolved ts in the store.
            with WatchedStore(tmp_path / "store") as store, closing(LogService(upstream, store, SETTINGS)) as service:
                service.start()
                for span in spans:
                    service.ensure_span(span, TS_ZERO)
                if last:
                    workload.join(WAIT_S)
                ts = upstream.current_ts()
                assert store.wait_resolved([DDL_SPAN, *spans], ts), service.status()
                if last:
                    service.close()
                    assert check(store, upstream, ts) > 500
                    for span in spans:
                        check_tail(store, span.span_id, 1, ts)
