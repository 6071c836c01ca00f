"""``make bench NAME=store``: how fast the event store takes changes in and gives them back, against the same work done plainly.

Compared in the same run: ingest with writing the same batches as plain Arrow IPC with as many fsyncs; a tail with reading the same
objects and sorting once with polars; a snapshot with a plain scan of the objects that it opens; transactions of one row with those of a
thousand; windows of several sizes with each other, in time per row and in the anonymous memory of the process that reads (pages of
mapped object files belong to the page cache and are reported beside it). Every contestant runs warm and the best of some runs counts.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from benchmarks.report import Bar, Report, say
from benchmarks.rigs.workload import BASE_TS, ORDERS, changes
from penstock.model.batch import BATCH_ROWS_MAX, COMMIT_TS, KEY, BatchKind, ChangeBatch
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.store.changes.ordering import merge_step, rebatch
from penstock.store.contract import EndOfRange
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.client import FlightStoreClient
from penstock.store.flight.server import FlightService
from penstock.store.objects.object_file import ObjectMeta, read_footer
from penstock.store.settings import StoreSettings

MILLION = 1_000_000
SPAN = Span(ORDERS.table_id)
SPAN_ID = SPAN.span_id
WINDOW_RUNS = 3
WINDOW_ROUNDS = 2
TILE_TS = 1 << 40
"""How far the ts of one copy of the generated changes lie behind those of the copy before; keys as well."""


class Sizes(msgspec.Struct, frozen=True):
    """How many changes each part moves."""

    tile: int
    ingest: int
    tail: int
    windows: tuple[int, int, int]
    transactions: int
    runs: int


FULL = Sizes(
    tile=MILLION, ingest=4 * MILLION, tail=10 * MILLION, windows=(MILLION, 4 * MILLION, 16 * MILLION), transactions=2 * MILLION, runs=3
)
QUICK = Sizes(
    tile=MILLION // 4, ingest=MILLION, tail=MILLION, windows=(MILLION // 4, MILLION // 2, MILLION), transactions=MILLION // 2, runs=5
)


def run(quick: bool) -> Report:
    """Run the benchmark at its full or quick size."""
    sizes = QUICK if quick else FULL
    say(f"store: {sizes.windows[-1]:,} changes of a 12-column table; best of {sizes.runs} runs each, all warm")
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-store-"))
    figures: dict[str, float | int | str] = {}
    try:
        tile = [sliced for step in changes(0, SPAN_ID, sizes.tile) for batch in step for sliced in _sliced(batch)]
        bars = [_ingest_bar(root, tile, sizes, figures), _transactions_bar(root, tile, sizes, figures)]
        store = _open(root / "large")
        try:
            _fill(store, tile, sizes.windows[-1] // sizes.tile)
            bars += [_tail_bar(store, sizes, figures), *_window_bars(store, sizes, figures), *_snapshot_bars(store, sizes, figures)]
        finally:
            store.close()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return Report("store", tuple(bars), figures)


def _sliced(batch: ChangeBatch) -> Iterator[ChangeBatch]:
    for start in range(0, batch.header.rows, BATCH_ROWS_MAX):
        yield ChangeBatch.of(SPAN_ID, ORDERS, batch.header.kind, batch.records.slice(start, BATCH_ROWS_MAX))


def _copy(batch: ChangeBatch, number: int) -> ChangeBatch:
    """Return the changes of the batch once more, to other rows and at a later time."""
    records = batch.records
    keys = records.column(KEY)
    start = 8 * keys.offset
    numbers = np.frombuffer(keys.buffers()[2], dtype=">u8", count=len(keys), offset=start).astype(np.uint64) + np.uint64(number * TILE_TS)
    offsets = pa.py_buffer(np.arange(0, 8 * len(keys) + 1, 8, dtype=np.int32))
    moved = pa.Array.from_buffers(pa.binary(), len(keys), [None, offsets, pa.py_buffer(numbers.astype(">u8"))])
    ts = pa.array(records.column(COMMIT_TS).to_numpy() + np.uint64(number * TILE_TS))
    columns = [ts, records.column(1), moved, *records.columns[3:]]
    copied = pa.RecordBatch.from_arrays(columns, schema=records.schema)
    return rebatch(batch, copied)


def _open(directory: Path, settings: StoreSettings | None = None) -> ColumnarEventStore:
    store = ColumnarEventStore(directory, settings or StoreSettings(merge_bytes_min=1 << 50))
    for span in (SPAN, DDL_SPAN):
        store.register_span(span.span_id, span, BASE_TS if span is DDL_SPAN else 0)
    store.put_schemas([ORDERS])
    return store


def _fill(store: ColumnarEventStore, tile: Sequence[ChangeBatch], copies: int) -> None:
    """Append copies of the changes and wait until all is in objects."""
    for number in range(copies):
        _append(store, [_copy(b, number) for b in tile])
    _end(store)


def _append(store: ColumnarEventStore, *steps: Sequence[ChangeBatch]) -> None:
    """Append steps one after the other without waiting in between, as the span pipeline does, then wait until all are durable."""
    done = threading.Semaphore(0)
    for batches in steps:
        # The last transaction may go on in the next call.
        resolved_ts = max(b.header.max_ts for b in batches) - 1

        def resolve(ts: int = resolved_ts) -> None:
            store.advance_resolved_ts(SPAN_ID, ts)
            done.release()

        for batch in batches[:-1]:
            store.append(SPAN_ID, [batch], lambda: None)
        store.append(SPAN_ID, [batches[-1]], resolve)
    for _ in steps:
        if not done.acquire(timeout=120):
            raise PenstockError("STORE_FAILED", "the store did not persist the benchmark's changes")


def _end(store: ColumnarEventStore) -> None:
    store.advance_resolved_ts(SPAN_ID, BASE_TS + (1 << 50))
    store.flush(SPAN_ID)


def _best(runs: int, *contestants: Callable[[], float]) -> tuple[float, ...]:
    """Return each contestant's best seconds; they take turns, so that a busy machine harms all of them."""
    rounds = [[contestant() for contestant in contestants] for _ in range(runs)]
    return tuple(min(seconds) for seconds in zip(*rounds, strict=True))


def _rate(name: str, rows: int, seconds: float) -> float:
    say(f"  {name}: {rows / seconds / MILLION:.2f} M rows/s")
    return rows / seconds


def _ingest_bar(root: Path, tile: Sequence[ChangeBatch], sizes: Sizes, figures: dict[str, float | int | str]) -> Bar:
    """Measure appends until they are durable, objects written beside, against plain IPC with as many fsyncs."""
    copies = [[_copy(b, n) for b in tile] for n in range(sizes.ingest // sizes.tile)]
    groups = 0

    def stored() -> float:
        nonlocal groups
        directory = Path(tempfile.mkdtemp(dir=root))
        with _open(directory) as store:
            start = time.perf_counter()
            _append(store, *copies)
            seconds = time.perf_counter() - start
            groups = store.stats().wal_groups
        shutil.rmtree(directory)
        return seconds

    def plain() -> float:
        batches = [b for tile in copies for b in tile]
        path = root / "plain.arrow"
        every = max(1, len(batches) // max(1, groups))
        start = time.perf_counter()
        with path.open("wb") as file, pa.ipc.new_stream(file, ORDERS.batch_schema()) as writer:
            for at, batch in enumerate(batches):
                writer.write_batch(batch.records)
                if at % every == every - 1 or at == len(batches) - 1:
                    file.flush()
                    os.fsync(file.fileno())
        seconds = time.perf_counter() - start
        path.unlink()
        return seconds

    rows = sum(b.header.rows for batches in copies for b in batches)
    seconds = _best(sizes.runs, stored, plain)
    ingest = _rate("ingest", rows, seconds[0])
    limit = _rate(f"plain IPC, {groups} fsyncs", rows, seconds[1])
    figures.update(ingest_rows_per_s=round(ingest), plain_ipc_rows_per_s=round(limit), ingest_groups=groups)
    return Bar("ingest, as a share of plain Arrow IPC with one fsync per group", ingest / limit, 0.5)


def _transactions_bar(root: Path, tile: Sequence[ChangeBatch], sizes: Sizes, figures: dict[str, float | int | str]) -> Bar:
    """Measure tails over the same rows, once in transactions of one row, once of a thousand."""
    data = [b for b in tile if b.header.kind is BatchKind.DATA]
    sent = 0
    stores = {per_txn: _open(root / f"transactions-{per_txn}") for per_txn in (1, 1_000)}
    try:
        for number in range(max(1, sizes.transactions // sizes.tile)):
            for batch in data:
                for per_txn, store in stores.items():
                    _append(store, _transactions(batch, number, sent, per_txn))
                sent += batch.header.rows
        for store in stores.values():
            _end(store)
        seconds = _best(sizes.runs, *(partial(_tail_seconds, store, 1 << 62) for store in stores.values()))
    finally:
        for store in stores.values():
            store.close()
    rates = {n: _rate(f"tail, {n} rows per transaction", 2 * sent, s) for n, s in zip(stores, seconds, strict=True)}
    figures.update({f"tail_rows_per_s_{n}_per_transaction": round(r) for n, r in rates.items()})
    return Bar("tail at 1 row per transaction, as a share of that at 1,000", rates[1] / rates[1_000], 0.7)


def _transactions(batch: ChangeBatch, number: int, sent: int, per_txn: int) -> list[ChangeBatch]:
    """Return updates of the batch's rows, before and after images, at ts that change every few rows."""
    copied = _copy(batch, number)
    ts = (np.arange(sent, sent + batch.header.rows) // per_txn + BASE_TS + 1).astype(np.uint64)
    columns = [pa.array(ts), *copied.records.columns[1:]]
    records = pa.RecordBatch.from_arrays(columns, schema=copied.records.schema)
    return [ChangeBatch.of(SPAN_ID, ORDERS, kind, records) for kind in BatchKind]


def _tail_seconds(store: ColumnarEventStore, to_ts: int, merged: bool = True) -> float:
    """Read a tail to its end, its two sides merged into one sequence unless told otherwise; return the seconds."""
    start = time.perf_counter()
    handle = store.collect_changes(SPAN_ID, BASE_TS, min(to_ts, store.resolved_ts(SPAN_ID)))
    while not isinstance(step := handle.next(), EndOfRange):
        if merged:
            merge_step(step, keep_before=True)
    handle.close()
    return time.perf_counter() - start


def _window_end(sizes: Sizes, rows: int) -> int:
    return BASE_TS + rows // sizes.tile * TILE_TS


def _tail_bar(store: ColumnarEventStore, sizes: Sizes, figures: dict[str, float | int | str]) -> Bar:
    """Measure a tail against reading the same objects and sorting once."""
    to_ts = _window_end(sizes, sizes.tail)
    rows = _tail_rows(store, to_ts)
    objects = store.view(SPAN_ID).state.needed(BASE_TS, to_ts)
    seconds = _best(
        sizes.runs,
        lambda: _tail_seconds(store, to_ts),
        lambda: _tail_seconds(store, to_ts, merged=False),
        lambda: _sort_once(store, objects, to_ts),
    )
    tail = _rate("tail, both sides merged", rows, seconds[0])
    figures["tail_steps_rows_per_s"] = round(_rate("tail, steps alone", rows, seconds[1]))
    limit = _rate("read the objects, sort once with polars", rows, seconds[2])
    figures.update(tail_rows_per_s=round(tail), sort_once_rows_per_s=round(limit), tail_rows=rows)
    return Bar("tail, as a share of reading the same objects and sorting once with polars", tail / limit, 0.5)


def _tail_rows(store: ColumnarEventStore, to_ts: int) -> int:
    rows = 0
    handle = store.collect_changes(SPAN_ID, BASE_TS, to_ts)
    while not isinstance(step := handle.next(), EndOfRange):
        rows += sum(b.header.rows for b in (*step.data, *step.tombstones))
    return rows


def _sort_once(store: ColumnarEventStore, objects: Sequence[ObjectMeta], to_ts: int) -> float:
    start = time.perf_counter()
    frames = [pl.DataFrame(pa.Table.from_batches(list(_plain_batches(store, o)))) for o in objects]
    everything = pl.concat(frames).filter(pl.col(COMMIT_TS) <= to_ts).sort(COMMIT_TS, maintain_order=True)
    if everything.height == 0:
        raise PenstockError("INTERNAL", "the baseline read nothing")
    return time.perf_counter() - start


def _plain_batches(store: ColumnarEventStore, meta: ObjectMeta) -> Iterator[pa.RecordBatch]:
    """Read an object the plain way: its bytes at once, and the batches in them."""
    payload = store.objects.get(meta.path)
    footer = read_footer(meta, memoryview(payload.slice(meta.size - meta.footer_size)))
    schemas = {v: pa.ipc.read_schema(pa.py_buffer(s)) for v, s in footer.arrow_schemas.items()}
    for zone in footer.zones:
        yield pa.ipc.read_record_batch(payload.slice(zone.offset, zone.length), schemas[zone.schema_version])


def _snapshot_bars(store: ColumnarEventStore, sizes: Sizes, figures: dict[str, float | int | str]) -> list[Bar]:
    """Measure a snapshot against a scan of the objects that it opens: as they were flushed, and merged."""
    bars = []
    to_ts = store.resolved_ts(SPAN_ID)
    for name in ("flushed", "merged"):
        if name == "merged":
            store.merge(SPAN_ID)
        objects = store.view(SPAN_ID).state.needed(0, to_ts)
        rows = sum(o.rows for o in objects)
        seconds = _best(sizes.runs, partial(_snapshot_seconds, store, to_ts), partial(_scan_seconds, store, objects))
        snapshot = _rate(f"snapshot from {name} objects", rows, seconds[0])
        scan = _rate(f"plain scan of the {name} objects", rows, seconds[1])
        figures.update({f"snapshot_{name}_rows_per_s": round(snapshot), f"scan_{name}_rows_per_s": round(scan)})
        bars.append(Bar(f"snapshot from {name} objects, as a share of a plain scan of them", snapshot / scan, 0.6))
    return bars


def _snapshot_seconds(store: ColumnarEventStore, to_ts: int) -> float:
    start = time.perf_counter()
    handle = store.collect_changes(SPAN_ID, 0, to_ts)
    rows = 0
    while not isinstance(step := handle.next(), EndOfRange):
        rows += sum(b.header.rows for b in step.data)
    if rows == 0:
        raise PenstockError("INTERNAL", "the snapshot is empty")
    return time.perf_counter() - start


def _scan_seconds(store: ColumnarEventStore, objects: Sequence[ObjectMeta]) -> float:
    """Read every object's rows into contiguous columns, a stretch at a time, as someone who wants all of them does."""
    start = time.perf_counter()
    for meta in objects:
        pa.Table.from_batches(list(_plain_batches(store, meta))).combine_chunks()
    return time.perf_counter() - start


def _window_bars(store: ColumnarEventStore, sizes: Sizes, figures: dict[str, float | int | str]) -> list[Bar]:
    """Measure windows of several sizes as an executor reads them, each in a process of its own."""
    flight = FlightService(store)
    costs: dict[int, float] = {}
    memory: dict[int, int] = {}
    try:
        for size in sizes.windows * WINDOW_ROUNDS:
            # Every size reads as many rows in all: the best of many short runs would have more luck than the best of a few long ones.
            seconds, rows, anonymous, mapped = _in_process(flight, _window_end(sizes, size), sizes.windows[-1] // size)
            costs[size] = min(costs.get(size, 1e9), seconds / rows * 1e9)
            memory[size] = max(memory.get(size, 0), anonymous)
            figures[f"mapped_{size / MILLION:g}m"] = mapped
    finally:
        flight.close()
    for size in sizes.windows:
        say(f"  window of {size:,} changes: {costs[size]:.0f} ns of processor time per row, {memory[size] >> 20} MiB of anonymous memory")
        figures.update({f"ns_per_row_{size / MILLION:g}m": round(costs[size]), f"anonymous_{size / MILLION:g}m": memory[size]})
    largest, smallest = memory[sizes.windows[-1]], memory[sizes.windows[0]]
    return [
        Bar(
            "processor time per row of the dearest window size to that of the cheapest",
            max(costs.values()) / min(costs.values()),
            1.15,
            at_least=False,
        ),
        Bar("peak memory of a tail read at the largest size to that at the smallest", largest / smallest, 1.2, at_least=False),
    ]


def _in_process(flight: FlightService, to_ts: int, repeats: int) -> tuple[float, int, int, int]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    reader = context.Process(target=_read_window, args=(flight.location, flight.token, to_ts, repeats, there))
    reader.start()
    there.close()
    try:
        answer: tuple[float, int, int, int] = here.recv()
    except EOFError:
        raise PenstockError("INTERNAL", "the reading process of the benchmark failed") from None
    finally:
        reader.join()
    return answer


def _read_window(location: str, token: str, to_ts: int, repeats: int, answer: Connection) -> None:
    """Read a window some times over as an executor does; send processor seconds, rows, and the peaks of anonymous and of mapped memory."""
    client = FlightStoreClient(location, token)
    peaks, stop = [0, 0], threading.Event()

    def sample() -> None:
        while not stop.wait(0.01):
            for at, size in enumerate(_resident()):
                peaks[at] = max(peaks[at], size)

    def read(until_ts: int) -> tuple[float, int]:
        # The processor's time: a long read on a shared machine waits more often than a short one, which is not its cost.
        start, rows = time.process_time(), 0
        handle = client.open_changes(SPAN_ID, BASE_TS, until_ts)
        while not isinstance(step := handle.next(), EndOfRange):
            rows += sum(records.num_rows for _, records in merge_step(step, keep_before=True))
        handle.close()
        return time.process_time() - start, rows

    read(min(to_ts, BASE_TS + TILE_TS // 4))
    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    runs = [[read(to_ts) for _ in range(repeats)] for _ in range(WINDOW_RUNS)]
    stop.set()
    sampler.join()
    answer.send((min(sum(seconds for seconds, _ in run) for run in runs), sum(rows for _, rows in runs[0]), *peaks))
    answer.close()


def _resident() -> tuple[int, int]:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) << 10, int(fields["RssFile"].split()[0]) << 10
