"""``make bench NAME=sink``: the storage engine against a slow target.

The target takes 20 MB/s and 200 ms for each request. Compared: the bytes that arrive with what the line can carry, and the memory with the
spool's memory tier; the same volume over 1,000 dispatchers with 10; the CPU time of 10 busy dispatchers with and without 1,000 idle ones
beside them; waking a dispatcher when its event is in the spool with waking it when the event is flushed (the old way, which exists here
only); the time from an event's arrival to its published file, at half of the line. No Spark: events are handed over as a task does.
"""

from __future__ import annotations

import gc
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.report import Bar, Report, say
from benchmarks.rigs.throttled_target import ThrottledTarget
from benchmarks.rigs.workload import BASE_TS, ORDERS, changes
from penstock.model.batch import BATCH_ROWS_MIN
from penstock.model.clock import SystemClock
from penstock.model.table import TableSchema
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.storage.sink import StorageSink
from penstock.sink.wake_gate import WakeGate, WakeGateSettings
from penstock.target.positions import position_key, schema_key
from penstock.target.settings import StorageSinkSettings, from_uri

LINE_BYTES_PER_S = 20e6
LATENCY_S = 0.2
DISPATCHERS, MANY = 10, 1_000
SPOOL_BYTES = 1 << 30
MEMORY_ALLOWANCE = 300 << 20
CPU_RUNS = 5


@dataclass(frozen=True)
class Scale:
    """How much a run moves."""

    volume_bytes: int
    file_bytes: int
    seconds: float
    cpu_bytes: int


FULL = Scale(800_000_000, 64 << 20, 30.0, 1_200_000_000)
QUICK = Scale(240_000_000, 4 << 20, 10.0, 300_000_000)


def run(quick: bool) -> Report:
    """Measure everything; about five minutes, a minute and a half when quick."""
    scale = QUICK if quick else FULL
    bench = SinkBench(scale)
    say(f"sink: {scale.volume_bytes / 1e6:,.0f} MB to a target of {LINE_BYTES_PER_S / 1e6:g} MB/s and {LATENCY_S * 1000:g} ms")
    few = bench.throughput(DISPATCHERS)
    say(f"  {DISPATCHERS} dispatchers: {few.bytes_per_s / 1e6:.2f} MB/s, {few.peak_bytes / 2**20:,.0f} MiB above the start")
    many = bench.throughput(MANY)
    say(f"  {MANY} dispatchers: {many.bytes_per_s / 1e6:.2f} MB/s, {many.peak_bytes / 2**20:,.0f} MiB above the start")
    old = bench.wake_after_flush()
    say(f"  wake after flush: {old / 1e6:.2f} MB/s")
    p50, p99 = bench.latency()
    say(f"  commit to published at half load: median {p50:.2f} s, 99th percentile {p99:.2f} s")
    alone, beside = bench.idle_cost()
    say(f"  CPU of {DISPATCHERS} busy dispatchers: {alone:.2f} s alone, {beside:.2f} s beside {MANY} idle ones")
    interval_s = bench.settings.flush_interval_ms / 1000
    tier, peak = bench.memory_tier, max(few.peak_bytes, many.peak_bytes)
    return Report(
        "sink",
        (
            Bar(f"bytes/s of {DISPATCHERS} dispatchers to the line's", few.bytes_per_s / LINE_BYTES_PER_S, 0.9),
            Bar(
                "peak memory to memory tier + 300 MiB",
                peak / (tier + MEMORY_ALLOWANCE),
                1.0,
                at_least=False,
            ),
            Bar(f"bytes/s of {MANY} dispatchers to {DISPATCHERS}", many.bytes_per_s / few.bytes_per_s, 0.8),
            Bar(f"CPU time with {MANY} idle dispatchers to without", beside / alone, 1.05, at_least=False),
            Bar("early wake to wake after flush, bytes/s", few.bytes_per_s / old, 5.0),
            Bar("99th percentile of commit to published, to flush interval + 2 s", p99 / (interval_s + 2), 1.0, at_least=False),
        ),
        {
            "volume_bytes": scale.volume_bytes,
            "file_bytes": scale.file_bytes,
            "few_bytes_per_s": round(few.bytes_per_s),
            "many_bytes_per_s": round(many.bytes_per_s),
            "old_bytes_per_s": round(old),
            "memory_tier_mib": tier >> 20,
            "peak_mib_few": few.peak_bytes >> 20,
            "peak_mib_many": many.peak_bytes >> 20,
            "latency_s_p50": round(p50, 3),
            "latency_s_p99": round(p99, 3),
            "cpu_s_alone": round(alone, 3),
            "cpu_s_beside_idle": round(beside, 3),
            "spilled_mib": few.spilled_bytes >> 20,
        },
    )


@dataclass(frozen=True)
class Moved:
    """What one run did."""

    bytes_per_s: float
    peak_bytes: int
    spilled_bytes: int


class SinkBench:
    """The measurements, on one kind of event."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._clock = SystemClock()
        self._spool_dir = tempfile.mkdtemp(prefix="penstock-bench-spool-")
        query = f"file-size={scale.file_bytes}&date-separator=none&spool-size={SPOOL_BYTES}&spool-dir={self._spool_dir}"
        self.settings: StorageSinkSettings = from_uri(f"memory:///?{query}")[1]
        self.memory_tier = int(SPOOL_BYTES * 0.2)
        self._rows = _event_rows()
        self._event_bytes = self._encoded_bytes()

    def throughput(self, dispatchers: int) -> Moved:
        """Move the volume over so many dispatchers, one after the other; count from the first event to the last close."""
        target = self._line()
        share = self._scale.volume_bytes / dispatchers / self._event_bytes
        with _peak_memory() as peak:
            sink, parts = self._open(target, dispatchers)
            start_s = time.perf_counter()
            gate = WakeGate()
            sink.on_failure(gate.open)
            for part in parts:
                # As a task does: one dispatcher after the other, each sealed when nothing more comes for it.
                for records, _ in self._in_turn([part], share):
                    sink.add_dml_event(DmlEvent(part, _table(part), records, gate.enter(records.nbytes)))
                sink.seal_dispatcher(part)
            for part in parts:
                sink.close_dispatcher(part)
            seconds = time.perf_counter() - start_s
            spilled = int(sink.report().counters["spool_spilled_bytes_total"])
            sink.close()
        return Moved(target.nbytes / seconds, peak[0], spilled)

    def wake_after_flush(self) -> float:
        """Return bytes per second where a dispatcher gets its next event only after the one before was flushed."""
        target = self._line()
        sink, parts = self._open(target, DISPATCHERS)
        gates = {part: WakeGate(WakeGateSettings(events_max=1)) for part in parts}
        start_s = time.perf_counter()
        stop_s = start_s + self._scale.seconds

        def feed(part: DispatcherId) -> None:
            while time.perf_counter() < stop_s:
                wake = gates[part].enter(1)
                sink.add_dml_event(DmlEvent(part, _table(part), self._rows, post_flush=wake))

        threads = [threading.Thread(target=feed, args=(part,), daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for part in parts:
            sink.close_dispatcher(part)
        seconds = time.perf_counter() - start_s
        sink.close()
        return target.nbytes / seconds

    def latency(self) -> tuple[float, float]:
        """Return median and 99th percentile of the seconds from an event's arrival to its file and index, at half of the line.

        Counted from the third flush interval on: at first all dispatchers are cut at one time, because they began at one time.
        """
        target = self._line()
        sink, parts = self._open(target, DISPATCHERS)
        gate = WakeGate()
        sink.on_failure(gate.open)
        seconds: list[float] = []
        period_s = self._event_bytes / (LINE_BYTES_PER_S / 2)
        start_s = time.perf_counter()
        pause = threading.Event()
        # Long enough for several intervals; what the last close flushes early would only flatter.
        interval_s = self.settings.flush_interval_ms / 1000
        length_s = self._scale.seconds + 4 * interval_s
        for number in itertools.count():
            due_s = start_s + number * period_s
            if due_s - start_s > length_s:
                break
            self._clock.wait(pause, max(0.0, due_s - time.perf_counter()))
            part = parts[number % len(parts)]
            arrived_s = time.perf_counter()
            flushed = _noting(seconds, arrived_s) if arrived_s - start_s > 2 * interval_s else None
            sink.add_dml_event(DmlEvent(part, _table(part), self._rows, gate.enter(self._rows.nbytes), flushed))
        counted = np.array(seconds)
        for part in parts:
            sink.close_dispatcher(part)
        sink.close()
        return float(np.percentile(counted, 50)), float(np.percentile(counted, 99))

    def idle_cost(self) -> tuple[float, float]:
        """Return the CPU seconds of the busy dispatchers alone and beside idle ones; the best of several runs, in turn."""
        alone, beside = [], []
        for _ in range(CPU_RUNS):
            alone.append(self._cpu_seconds(0))
            beside.append(self._cpu_seconds(MANY))
        return min(alone), min(beside)

    def _cpu_seconds(self, idle: int) -> float:
        target = ThrottledTarget(self._clock, None, 0.0)
        sink, parts = self._open(target, DISPATCHERS + idle)
        busy = parts[:DISPATCHERS]
        gc.collect()
        before = time.process_time()
        gate = WakeGate()
        for records, part in self._in_turn(busy, self._scale.cpu_bytes / DISPATCHERS / self._event_bytes):
            sink.add_dml_event(DmlEvent(part, _table(part), records, gate.enter(records.nbytes)))
        for part in busy:
            sink.close_dispatcher(part)
        spent = time.process_time() - before
        sink.close()
        return spent

    def _line(self) -> ThrottledTarget:
        return ThrottledTarget(self._clock, LINE_BYTES_PER_S, LATENCY_S)

    def _open(self, target: ThrottledTarget, dispatchers: int) -> tuple[StorageSink, list[DispatcherId]]:
        sink = StorageSink(target, self.settings, self._clock)
        parts = [DispatcherId(number) for number in range(1, dispatchers + 1)]
        for part in parts:
            # As in any window but the first: the schema file and some files are there.
            position = {schema_key(ORDERS.version): ORDERS.version, position_key(ORDERS.version, "", ""): 7}
            sink.open_dispatcher(DispatcherWork(part, _table(part), BASE_TS, BASE_TS + 10**12, position))
        return sink, parts

    def _in_turn(self, parts: list[DispatcherId], events: float) -> Iterator[tuple[pa.RecordBatch, DispatcherId]]:
        """Yield so many events' worth of rows for each dispatcher, the dispatchers in turn; the last event may be a part of one."""
        left = events
        while left > 0:
            records = self._rows if left >= 1 else self._rows.slice(0, max(1, round(len(self._rows) * left)))
            for part in parts:
                yield records, part
            left -= 1

    def _encoded_bytes(self) -> int:
        sink, (part,) = self._open(ThrottledTarget(self._clock, None, 0.0), 1)
        sink.add_dml_event(DmlEvent(part, _table(part), self._rows))
        result = sink.close_dispatcher(part)
        sink.close()
        return result.nbytes


def _noting(seconds: list[float], arrived_s: float) -> Callable[[], None]:
    return lambda: seconds.append(time.perf_counter() - arrived_s)


def _table(part: DispatcherId) -> TableSchema:
    return _TABLES.setdefault(part, TableSchema(part.table_id, "shop", f"orders{part.table_id}", ORDERS.version, ORDERS.columns))


_TABLES: dict[DispatcherId, TableSchema] = {}


def _event_rows() -> pa.RecordBatch:
    """Return one batch of inserts, all at one ts, so that it can come again and again."""
    (first,) = next(changes(0, 1, 20_000))
    records = first.records.slice(0, BATCH_ROWS_MIN)
    names = [name for name in records.schema.names if name != "_key"]
    columns = [records.column(name) for name in names]
    columns[0] = pa.array(np.full(len(records), BASE_TS + 1, np.uint64))
    return pa.RecordBatch.from_arrays(columns, names=names)


@contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """Give the most memory above the start, in bytes, once the block has ended."""
    gc.collect()
    process, stop, peak = psutil.Process(), threading.Event(), [0]
    before = process.memory_info().rss

    def sample() -> None:
        while not stop.wait(0.02):
            peak[0] = max(peak[0], process.memory_info().rss - before)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield peak
    finally:
        stop.set()
        sampler.join()
