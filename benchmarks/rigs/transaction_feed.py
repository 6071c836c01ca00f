"""A feed of eight tables whose transactions go over all of them, delivered with and without ``atomicity = "transaction"``.

The changes are those of ``workload``, in small transactions: two changes of each table. Both modes deliver the same rows from one store
through the same Spark session, in one window each, from plan to commit. Runs in the benchmark's process.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.report import Bar, say
from benchmarks.rigs.workload import BASE_TS, ORDERS, changes
from penstock.feed.settings import FeedSettings
from penstock.feed.spark.jobs import SparkJobs
from penstock.feed.window.assignment import Dispatcher, FeedContext
from penstock.feed.window.planner import WindowPlanner
from penstock.feed.window.window_job import WindowJobs
from penstock.format.transaction_runs import run_starts
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord
from penstock.model.batch import ChangeBatch, commit_ts_array
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.sink.contract import DispatcherId
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.server import FlightService

TABLES, ROWS_OF_TABLE, TARGET = 8, 2, 0.4
_SPREAD = 32
_RESOLVED_TS = BASE_TS + (1 << 50)
_PROTOCOLS: dict[str, dict[str, str]] = {"csv": {}, "debezium": {"protocol": "debezium"}}


def transaction_bars(session: SparkSession, rows: int, rows_warm: int, cores: int, runs: int) -> tuple[list[Bar], dict[str, int]]:
    """Return the bars of both kinds of protocol, and the rows per second behind them."""
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-transactions-"))
    bars, figures = [], {"transaction_rows": rows}
    try:
        with closing(_Arena(root / "warm", rows_warm)) as warm, closing(_Arena(root / "full", rows)) as full:
            for name, options in _PROTOCOLS.items():
                seconds = {}
                for mode in ("none", "transaction"):
                    chosen = {**options, "transaction-atomicity": mode}
                    warm.seconds(session, chosen, cores)
                    taken = [full.seconds(session, chosen, cores) for _ in range(runs)]
                    say(f"  {name}, atomicity {mode}: {', '.join(f'{rows / s:,.0f}' for s in taken)} rows/s")
                    seconds[mode] = min(taken)
                    figures[f"{name}_{mode}_rows_per_s"] = round(rows / seconds[mode])
                bars.append(
                    Bar(
                        f"transaction mode rows/s to parallel mode, {TABLES} tables, {name}",
                        seconds["none"] / seconds["transaction"],
                        TARGET,
                    )
                )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return bars, figures


class _Arena:
    """An event store with the changes of all tables."""

    def __init__(self, root: Path, rows: int) -> None:
        self._root = root
        self._store = ColumnarEventStore(root / "store")
        self._flight = FlightService(self._store)
        self.rows = rows
        self._tables = [msgspec.structs.replace(ORDERS, table_id=ORDERS.table_id + at, table=f"orders_{at}") for at in range(TABLES)]
        self._store.put_schemas(self._tables)
        self._store.register_span(DDL_SPAN.span_id, DDL_SPAN, BASE_TS)
        self._store.advance_resolved_ts(DDL_SPAN.span_id, _RESOLVED_TS)
        for table in self._tables:
            span_id = Span(table.table_id).span_id
            self._store.register_span(span_id, Span(table.table_id), BASE_TS)
            for batches in changes(0, span_id, rows // TABLES):
                done = threading.Event()
                mine = [ChangeBatch.of(span_id, table, b.header.kind, _in_small_transactions(b.records)) for b in batches]
                self._store.append(span_id, mine, done.set)
                done.wait()
            self._store.advance_resolved_ts(span_id, _RESOLVED_TS)
            self._store.flush(span_id)

    def close(self) -> None:
        """Close everything."""
        self._flight.close()
        self._store.close()

    def seconds(self, session: SparkSession, options: Mapping[str, str], cores: int) -> float:
        """Deliver everything once into an empty directory; return the seconds from plan to commit."""
        out = Path(tempfile.mkdtemp(prefix="out-", dir=self._root))
        (out / "files").mkdir()
        meta_url = f"sqlite:///{out / 'meta.db'}"
        with closing(MetaDatabase(meta_url)) as meta:
            meta.create_feed(FeedRecord("bench", "bench", "{}", checkpoint_ts=BASE_TS), [])
            context = FeedContext(
                feed="bench",
                epoch=meta.claim("bench", "bench", 3_600_000) or 0,
                meta_url=meta_url,
                flight_location=self._flight.location,
                flight_token=self._flight.token,
                sink_uri=(out / "files").as_uri(),
                sink_options=dict(options),
                dispatchers=tuple(Dispatcher(DispatcherId(t.table_id), Span(t.table_id), t.schema, t.table) for t in self._tables),
                settings=FeedSettings(flush_interval_s=0.0, window_bytes_max=4 << 30),
                snapshot_ts=0,
                partitions=cores,
            )
            with closing(WindowPlanner.open(context)) as planner:
                windows = WindowJobs(context, planner, SparkJobs(session))
                start = time.perf_counter()
                window = windows.plan()
                assert window is not None
                windows.commit(window, windows.deliver(window))
                seconds = time.perf_counter() - start
            delivered = meta.progress("bench").rows
        indexes = list((out / "files" / ".penstock").glob("transactions/*"))
        shutil.rmtree(out, ignore_errors=True)
        # Where old values are delivered, an update counts twice.
        if delivered < self.rows or bool(indexes) != (options["transaction-atomicity"] == "transaction"):
            raise PenstockError("VERIFY_MISMATCH", f"{delivered} of {self.rows} changes, {len(indexes)} indexes of transactions")
        return seconds


def _in_small_transactions(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return changes of which few have one commit ts, in the same order."""
    ts = commit_ts_array(records)
    starts = run_starts(ts)
    place = np.arange(len(ts)) - np.repeat(starts, np.diff(starts, append=len(ts)))
    spread = np.uint64(BASE_TS) + (ts - np.uint64(BASE_TS)) * np.uint64(_SPREAD) + (place // ROWS_OF_TABLE).astype(np.uint64)
    return records.set_column(0, records.schema.field(0), pa.array(spread))
