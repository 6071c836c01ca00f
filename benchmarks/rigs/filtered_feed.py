"""The bars of filters: feeds over an event store that is full, with expressions in Spark SQL and without. Runs in benchmarks."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType

from benchmarks.feed import Arena, feed_seconds, fill
from benchmarks.report import Bar, say
from benchmarks.rigs.workload import BASE_TS, ORDERS
from penstock.feed.filters.rules import FilterRule, FilterSettings
from penstock.feed.formats.table_read import TableRead, read_span
from penstock.feed.formats.typed_rows import typed_schema
from penstock.feed.spark.arrow_map import map_batches
from penstock.model.batch import COMMIT_TS, OP, Op
from penstock.model.clock import SystemClock
from penstock.model.table import TableSchema
from penstock.sink.catalog import open_sink
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.wake_gate import WakeGate
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.client import FlightStoreClient
from penstock.store.flight.server import FlightService

ALL = "customer_id >= 0"
TENTH = "quantity < 10"
_TENTH_MAX = 10
_END_TS = BASE_TS + (1 << 50)


def filter_bars(session: SparkSession, rows: int, rows_warm: int, cores: int, runs: int) -> tuple[list[Bar], dict[str, int]]:
    """Return both bars, and the rows per second behind them."""
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-filters-"))
    arenas: list[Arena] = []
    try:
        for size in (rows_warm, rows):
            store = ColumnarEventStore(root / str(size) / "store")
            arenas.append(Arena(root / str(size), size, store, FlightService(store), fill(store, size, cores)))
        found = [bar(session, arenas[0], arenas[1], runs) for bar in (where_bar, tenth_bar)]
    finally:
        for arena in arenas:
            arena.flight.close()
            arena.store.close()
        shutil.rmtree(root, ignore_errors=True)
    return [bar for bar, _ in found], {"filtered_rows": rows} | found[0][1] | found[1][1]


def where_bar(session: SparkSession, warm: Arena, arena: Arena, runs: int) -> tuple[Bar, dict[str, int]]:
    """Compare a feed with a ``where`` that keeps all rows with the same feed without."""
    plain = _best(warm, arena, runs, "feed without a filter", lambda a: feed_seconds(session, a))
    where = _best(warm, arena, runs, f"feed where {ALL}", lambda a: feed_seconds(session, a, chosen=where_of(ALL)))
    figures = {"plain_rows_per_s": round(arena.rows / plain), "where_rows_per_s": round(arena.rows / where)}
    return Bar("rows/s of a feed with where to one without", plain / where, 0.5), figures


def tenth_bar(session: SparkSession, warm: Arena, arena: Arena, runs: int) -> tuple[Bar, dict[str, int]]:
    """Compare a feed that keeps a tenth of the rows with all typed rows through Spark, of which the same are written."""
    tenth = _best(warm, arena, runs, f"feed where {TENTH}", lambda a: feed_seconds(session, a, chosen=where_of(TENTH)))
    typed = _best(warm, arena, runs, "all typed rows through Spark, a tenth written", lambda a: typed_seconds(session, a))
    figures = {"tenth_rows_per_s": round(arena.rows / tenth), "typed_rows_per_s": round(arena.rows / typed)}
    return Bar("rows/s of a feed that keeps 10 % to the typed way without a filter", typed / tenth, 2.0), figures


def where_of(condition: str) -> FilterSettings:
    """Return a filter of the rows of the benchmark's table."""
    return FilterSettings(rules=(FilterRule(("shop.orders",), where=condition),))


def typed_seconds(session: SparkSession, arena: Arena) -> float:
    """Move every typed row of the format ``penstock`` through Spark, choose rows behind it, and write them; return the seconds."""
    out = Path(tempfile.mkdtemp(prefix="typed-", dir=arena.root))
    location, token, spans = arena.flight.location, arena.flight.token, [span.span_id for span in arena.spans]
    plan = msgspec.json.encode(TableRead(ORDERS, (ORDERS,), tuple(spans), BASE_TS, _END_TS, keep_before=True, with_ops=True))
    uri = out.as_uri()

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                with closing(FlightStoreClient(location, token)) as client:
                    yield from read_span(client, msgspec.json.decode(plan, type=TableRead), spans[part])

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield pa.RecordBatch.from_arrays([pa.array([write_tenth(uri, context.partitionId(), len(spans), batches)])], ["rows"])

    try:
        clock = SystemClock()
        start = clock.monotonic_s()
        rows = map_batches(session.range(0, len(spans), 1, len(spans)), read, typed_schema(ORDERS, with_ops=True))
        written = sum(row["rows"] for row in map_batches(rows, write, StructType().add("rows", LongType())).collect())
        assert written > 0
        return clock.monotonic_s() - start
    finally:
        shutil.rmtree(out, ignore_errors=True)


def write_tenth(uri: str, part: int, parts: int, batches: Iterator[pa.RecordBatch]) -> int:
    """Write the rows that the filter keeps with the feed's own sink. Runs on an executor."""
    sink, gate = open_sink(uri, {}, None), WakeGate()
    try:
        dispatcher = DispatcherId(ORDERS.table_id, part, parts)
        sink.open_dispatcher(DispatcherWork(dispatcher, ORDERS, BASE_TS, _END_TS))
        for batch in batches:
            kept = batch.filter(pc.less(batch.column("quantity"), _TENTH_MAX))
            if kept.num_rows:
                sink.add_dml_event(DmlEvent(dispatcher, ORDERS, _stored(kept, ORDERS), gate.enter(kept.nbytes)))
        sink.seal_dispatcher(dispatcher)
        return sink.close_dispatcher(dispatcher).rows
    finally:
        sink.close()


def _stored(rows: pa.RecordBatch, table: TableSchema) -> pa.RecordBatch:
    """Return typed rows as change batches have them, before-images left out."""
    rows = rows.filter(pc.not_equal(rows.column(1), "before"))
    ops = np.select(
        [np.asarray(pc.equal(rows.column(1), name)) for name in ("insert", "update")], [int(Op.INSERT), int(Op.UPDATE)], int(Op.DELETE)
    )
    columns = [rows.column(0).cast(pa.uint64()), pa.array(ops, pa.uint8())]
    for column in table.columns:
        values = rows.column(column.name)
        wanted = column.type.arrow()
        if pa.types.is_timestamp(values.type):
            values = pc.strftime(values, "%Y-%m-%d %H:%M:%S")
        columns.append(values.cast(wanted))
    names = [COMMIT_TS, OP, *(c.field_name for c in table.columns)]
    return pa.RecordBatch.from_arrays(columns, names)


def _best(warm: Arena, arena: Arena, runs: int, name: str, measure: Callable[[Arena], float]) -> float:
    """Return the shortest of several runs after one that is small, in seconds."""
    measure(warm)
    seconds = [measure(arena) for _ in range(runs)]
    say(f"  {name}: {', '.join(f'{arena.rows / s:,.0f}' for s in seconds)} rows/s")
    return min(seconds)
