"""``make bench NAME=feed``: delivery of changes that are already in the event store, through Spark, to CSV on local disk.

Compared in the same run with (a) the limit: plain processes, one per core, that encode the same ordered batches with polars and
write the same files, with no Spark and no store; (b) what a user would do instead: Spark reading the same changes from Parquet
and writing CSV. Every contestant runs warm (one small run first) and counts from the moment when it is up and ready to the last
byte. Memory is the largest anonymous resident memory of any Python worker during the run: pages of mapped object files belong to
the page cache and are reported beside it.
"""

from __future__ import annotations

import functools
import io
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.synchronize import Barrier
from pathlib import Path

import msgspec
import polars as pl
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.report import Bar, Report, say
from benchmarks.rigs.workload import BASE_TS, ORDERS, changes, spans
from penstock.feed.filters.rules import FilterSettings
from penstock.feed.settings import FeedSettings
from penstock.feed.spark.jobs import SparkJobs
from penstock.feed.spark.session import SparkSettings, open_session
from penstock.feed.window.assignment import Dispatcher, FeedContext
from penstock.feed.window.run import FeedWindows
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.types import TypeKind
from penstock.sink.contract import DispatcherId
from penstock.store.changes.ordering import merge_step
from penstock.store.contract import EndOfRange
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.server import FlightService

ROWS, ROWS_SMALL, ROWS_WARM = 5_000_000, 1_000_000, 200_000
ROWS_QUICK, ROWS_QUICK_SMALL = 1_000_000, 250_000
FILE_BYTES = 64 << 20
MEMORY_FILES = {"file-size": str(4 << 20)}
RUNS = 3
_RESOLVED_TS = BASE_TS + (1 << 50)
_RUN_SECONDS_MAX = 600.0


class Arena(msgspec.Struct):
    """Everything that one size of the benchmark needs: the store with its Flight service, and the baselines' inputs."""

    root: Path
    rows: int
    store: ColumnarEventStore
    flight: FlightService
    spans: list[Span]


def run(quick: bool) -> Report:
    """Run the benchmark at its full or quick size."""
    cores = os.cpu_count() or 1
    large, small = (ROWS_QUICK, ROWS_QUICK_SMALL) if quick else (ROWS, ROWS_SMALL)
    say(f"feed: {large:,} changes of a 12-column table, {cores} cores; best of {RUNS} runs each, all warm")
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-feed-"))
    session = open_session(SparkSettings(master=f"local[{cores}]", driver_memory="2g"), "penstock bench feed")
    try:
        arenas = {rows: prepare(root / str(rows), rows, cores) for rows in (ROWS_WARM, small, large)}
        feed_seconds(session, arenas[ROWS_WARM])
        memory_small, mapped_small = feed_memory(session, arenas[small])
        memory_large, mapped_large = feed_memory(session, arenas[large])
        feed = best(lambda: feed_seconds(session, arenas[large]), "penstock feed", large)
        limit = best(lambda: plain_seconds(arenas[large], cores), "(a) plain polars processes", large)
        spark_csv_seconds(session, arenas[ROWS_WARM])
        spark = best(lambda: spark_csv_seconds(session, arenas[large]), "(b) Spark Parquet to CSV", large)
    finally:
        session.stop()
        for arena in arenas.values():
            arena.flight.close()
            arena.store.close()
        shutil.rmtree(root, ignore_errors=True)
    return Report(
        "feed",
        (
            Bar("feed rows/s to (a) plain polars processes", limit / feed, 0.4),
            Bar("feed rows/s to (b) Spark Parquet to CSV", spark / feed, 1.5),
            Bar(f"peak worker memory at {large} rows to {small} rows", memory_large / memory_small, 1.2, at_least=False),
        ),
        {
            "rows": large,
            "feed_rows_per_s": round(large / feed),
            "plain_rows_per_s": round(large / limit),
            "spark_csv_rows_per_s": round(large / spark),
            "worker_mib_small": round(memory_small / 2**20),
            "worker_mib_large": round(memory_large / 2**20),
            "worker_mapped_mib_small": round(mapped_small / 2**20),
            "worker_mapped_mib_large": round(mapped_large / 2**20),
        },
    )


def best(measure: Callable[[], float], name: str, rows: int) -> float:
    """Return the shortest of several runs, in seconds."""
    seconds = [measure() for _ in range(RUNS)]
    shown = ", ".join(f"{rows / s:,.0f}" for s in seconds)
    say(f"  {name}: {shown} rows/s")
    return min(seconds)


def prepare(root: Path, rows: int, cores: int) -> Arena:
    """Fill an event store with the changes, and write the same ordered changes for the baselines."""
    store = ColumnarEventStore(root / "store")
    arena = Arena(root, rows, store, FlightService(store), fill(store, rows, cores))
    for part, span in enumerate(arena.spans):
        _write_baseline_inputs(arena, part, span)
    return arena


def fill(store: ColumnarEventStore, rows: int, cores: int) -> list[Span]:
    """Fill an event store with the changes, in objects; return the spans, one for each core."""
    store.put_schemas([ORDERS])
    parts = spans(cores)
    store.register_span(DDL_SPAN.span_id, DDL_SPAN, BASE_TS)
    store.advance_resolved_ts(DDL_SPAN.span_id, _RESOLVED_TS)
    for part, span in enumerate(parts):
        store.register_span(span.span_id, span, BASE_TS)
        for batches in changes(part, span.span_id, rows // cores):
            done = threading.Event()
            store.append(span.span_id, batches, done.set)
            done.wait()
        store.advance_resolved_ts(span.span_id, _RESOLVED_TS)
        store.flush(span.span_id)
    return parts


def _write_baseline_inputs(arena: Arena, part: int, span: Span) -> None:
    parquet = arena.root / "parquet"
    parquet.mkdir(exist_ok=True)
    plain = parquet_writer = None
    for records in ordered_records(arena.store, span):
        if plain is None:
            plain = pa.ipc.new_file(str(arena.root / f"plain-{part}.arrow"), records.schema)
        plain.write_batch(records)
        table = typed_changes(records)
        if parquet_writer is None:
            parquet_writer = pq.ParquetWriter(parquet / f"{part}.parquet", table.schema)
        parquet_writer.write_table(table)
    for writer in (plain, parquet_writer):
        if writer is not None:
            writer.close()


def ordered_records(store: ColumnarEventStore, span: Span) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a span as a sink sees them."""
    handle = store.collect_changes(span.span_id, BASE_TS, _RESOLVED_TS)
    while not isinstance(step := handle.next(), EndOfRange):
        for _, records in merge_step(step, keep_before=False):
            yield records


def typed_changes(records: pa.RecordBatch) -> pa.Table:
    """Return changes with the types that a user has in Parquet: decimals and timestamps as such."""
    frame = pl.DataFrame(records)
    columns = [
        pl.Series("op", ["I", "U", "D"]).gather(frame["_op"]),
        pl.lit(ORDERS.table).alias("table"),
        pl.lit(ORDERS.schema).alias("schema"),
        pl.col("_ts").cast(pl.Int64).alias("commit_ts"),
    ]
    for column in ORDERS.columns:
        value = pl.col(column.field_name)
        if column.type.kind is TypeKind.DECIMAL:
            value = value.cast(pl.Decimal(column.type.length, column.type.scale or 0))
        elif column.type.kind in {TypeKind.DATETIME, TypeKind.TIMESTAMP}:
            value = value.str.to_datetime(
                "%Y-%m-%d %H:%M:%S%.f" if column.type.scale else "%Y-%m-%d %H:%M:%S", time_unit="us", time_zone="UTC"
            )
        elif column.type.unsigned:
            value = value.cast(pl.Int32)
        columns.append(value.alias(column.name))
    return frame.select(columns).to_arrow()


def feed_seconds(
    session: SparkSession,
    arena: Arena,
    sink_options: Mapping[str, str] | None = None,
    tasks: int = 0,
    chosen: FilterSettings | None = None,
) -> float:
    """Deliver everything once with a fresh feed into an empty directory; return the seconds from release to the last commit.

    It has a task for each span, unless told, and a filter where one is given.

    The feed is up and waits, held back by a span without rows that is not resolved; resolving it releases all changes at once.
    """
    out = Path(tempfile.mkdtemp(prefix="out-", dir=arena.root))
    meta_url = f"sqlite:///{out / 'meta.db'}"
    meta = MetaDatabase(meta_url)
    gate = Span(ORDERS.table_id, b"\xff" * 9 + out.name.encode(), b"\xff" * 10)
    arena.store.register_span(gate.span_id, gate, BASE_TS)
    run: FeedWindows | None = None
    try:
        meta.create_feed(FeedRecord("bench", "bench", "{}", checkpoint_ts=BASE_TS), [])
        context = FeedContext(
            feed="bench",
            epoch=meta.claim("bench", "bench", 3_600_000) or 0,
            meta_url=meta_url,
            flight_location=arena.flight.location,
            flight_token=arena.flight.token,
            sink_uri=(out / "files").as_uri(),
            sink_options=dict(sink_options or {}),
            dispatchers=tuple(
                Dispatcher(DispatcherId(ORDERS.table_id, i, len(arena.spans) + 1), span, ORDERS.schema, ORDERS.table)
                for i, span in enumerate([*arena.spans, gate])
            ),
            settings=FeedSettings(flush_interval_s=0.1, window_bytes_max=4 << 30, filter=chosen or FilterSettings()),
            snapshot_ts=0,
            partitions=tasks or len(arena.spans),
        )
        (out / "files").mkdir()
        run = FeedWindows(jobs_of(session), context)
        run.start()
        start = time.perf_counter()
        arena.store.advance_resolved_ts(gate.span_id, _RESOLVED_TS)
        _wait(run, lambda: meta.progress("bench").checkpoint_ts > BASE_TS)
        seconds = time.perf_counter() - start
        delivered = meta.progress("bench").rows
        if delivered != arena.rows and chosen is None:
            raise PenstockError("VERIFY_MISMATCH", f"the feed delivered {delivered} of {arena.rows} changes")
        return seconds
    finally:
        if run is not None:
            run.stop()
        meta.close()
        shutil.rmtree(out, ignore_errors=True)


@functools.cache
def jobs_of(session: SparkSession) -> SparkJobs:
    """Return what does the jobs of all feeds of a session, as in a server: it knows queries from one window to the next."""
    return SparkJobs(session)


def _wait(run: FeedWindows, condition: Callable[[], bool]) -> None:
    deadline_s = time.perf_counter() + _RUN_SECONDS_MAX
    while not condition():
        if run.wait(0.01) or time.perf_counter() > deadline_s:
            raise run.error() or PenstockError("FEED_FAILED", "the benchmark's feed did not end in time")


def feed_memory(session: SparkSession, arena: Arena) -> tuple[int, int]:
    """Return the peak anonymous and the peak file-mapped memory of any Python worker while a feed runs.

    Files are small, so that a task fills several of them at either size: of large ones the smaller size has only the beginning of one in
    memory, and the larger size a whole one and others on their way, which says nothing about rows.
    """
    peaks, stop = [0, 0], threading.Event()

    def sample() -> None:
        me = psutil.Process()
        while not stop.wait(0.05):
            for child in me.children(recursive=True):
                anonymous, mapped = _resident(child.pid)
                peaks[0], peaks[1] = max(peaks[0], anonymous), max(peaks[1], mapped)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    feed_seconds(session, arena, MEMORY_FILES)
    stop.set()
    sampler.join()
    return peaks[0], peaks[1]


def _resident(pid: int) -> tuple[int, int]:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if not fields.get("Name", "").strip().startswith("python"):
        return 0, 0
    kib = [int(fields.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssFile")]
    return kib[0] << 10, kib[1] << 10


def plain_seconds(arena: Arena, processes: int) -> float:
    """Return how long plain processes take for the same batches, from the moment when all are ready."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(processes + 1, timeout=120)
    out = Path(tempfile.mkdtemp(prefix="plain-", dir=arena.root))
    workers = [context.Process(target=_encode_plain, args=(arena.root / f"plain-{i}.arrow", out / str(i), ready)) for i in range(processes)]
    os.environ["POLARS_MAX_THREADS"] = "1"
    try:
        for worker in workers:
            worker.start()
        ready.wait()
        start = time.perf_counter()
        for worker in workers:
            worker.join()
        seconds = time.perf_counter() - start
    finally:
        del os.environ["POLARS_MAX_THREADS"]
        shutil.rmtree(out, ignore_errors=True)
    if any(worker.exitcode for worker in workers):
        raise PenstockError("INTERNAL", "a plain baseline process failed")
    return seconds


def _encode_plain(source: Path, out: Path, ready: Barrier) -> None:
    out.mkdir()
    reader = pa.ipc.open_file(pa.memory_map(str(source)))
    letters = pl.Series(["I", "U", "D"])
    ready.wait()
    buffer, number = io.BytesIO(), 0
    for index in range(reader.num_record_batches):
        frame = pl.DataFrame(reader.get_batch(index))
        head: list[pl.Series | pl.Expr] = [
            letters.gather(frame["_op"]).alias("op"),
            pl.lit(ORDERS.table).alias("t"),
            pl.lit(ORDERS.schema).alias("s"),
        ]
        frame.select(*head, pl.all().exclude("_op")).write_csv(
            buffer, include_header=False, quote_style="non_numeric", null_value="\\N", line_terminator="\r\n"
        )
        if buffer.tell() >= FILE_BYTES or index == reader.num_record_batches - 1:
            number += 1
            (out / f"CDC{number:020d}.csv").write_bytes(buffer.getbuffer())
            buffer = io.BytesIO()


def spark_csv_seconds(session: SparkSession, arena: Arena) -> float:
    """Return how long Spark takes to write the same changes from Parquet as CSV."""
    out = arena.root / "spark-csv"
    start = time.perf_counter()
    session.read.parquet((arena.root / "parquet").as_uri()).write.csv(out.as_uri(), nullValue="\\N")
    seconds = time.perf_counter() - start
    shutil.rmtree(out, ignore_errors=True)
    return seconds
