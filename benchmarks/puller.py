"""``make bench NAME=puller``: the log puller from the bytes of a change stream to the event store's functions.

Compared in the same run: (a) delivery with 10 ms until a batch is persisted and callbacks in any order, with delivery that waits for each
batch of a span before the next; (b) region worker, event processor and span pipeline together, with a reader that parses protobuf and
matches entry by entry; (c) the cost of ten thousand idle subscriptions; (d) the cost per entry at three sizes. (b), (c) and (d) count
the processor time of the whole process, less what making the messages took, because other programs share the machine. Messages of 2,048
entries stand for a stream that has much to say; smaller ones are reported beside. The stream is in process: gRPC's cost is no part of it.
"""

from __future__ import annotations

import gc
import random
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from benchmarks.report import Bar, Report, say
from benchmarks.rigs.puller_messages import BASE_TS, PerEntryReader, Rounds, initialized_message, region_bounds, resolved_message
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.puller.ranged.log_puller import LogPuller, LogPullerSettings
from penstock.puller.ranged.matching.warm_kernels import warm_kernels
from penstock.puller.span_pipeline import Finish, SpanPipeline, SpanPipelineSettings
from penstock.source.proto import cdc_pb2
from penstock.source.ranged import RangeEpoch, RangeInfo
from penstock.source.raw import RawBatch

PERSIST_S = 0.010
IDLE_SPANS = 10_000
RUNS = 3
REGIONS, ROUND_MESSAGES, MESSAGE_ENTRIES = 8, 9, 2048
SMALL_MESSAGES = (1, 16, 128, 512)
_WAIT_S = 600.0


def run(quick: bool) -> Report:
    """Run the benchmark at its full or quick size."""
    warm_kernels()
    batches = 20_000 if quick else 100_000
    baseline_s = 1.0 if quick else 3.0
    ratios: list[float] = []
    figures: dict[str, float] = {}
    for spans in (1, 64):
        one = max(one_at_a_time(spans, baseline_s) for _ in range(RUNS))
        many = max(pipelined(spans, batches) for _ in range(RUNS))
        say(f"  (a) {spans} spans: {many:,.0f} batches/s; one at a time {one:,.0f}")
        ratios.append(many / one)
        figures |= {f"batches_per_s_{spans}_spans": round(many), f"one_at_a_time_batches_per_s_{spans}_spans": round(one)}
    speedup, small = compare_readers(quick)
    idle_core, idle_bytes = idle_cost(3 if quick else 10)
    say(f"  (c) {IDLE_SPANS} idle subscriptions: {idle_core:.3f} of a core, {idle_bytes:,.0f} bytes each")
    sizes = (125_000, 500_000, 2_000_000) if quick else (1_000_000, 4_000_000, 16_000_000)
    growth, costs = cost_by_size(sizes)
    return Report(
        "puller",
        (
            Bar("one hot span, batches/s to one batch at a time", ratios[0], 100),
            Bar("64 spans, batches/s to one batch at a time", ratios[1], 5),
            Bar("event processor entries/s to per-entry protobuf", speedup, 5),
            Bar("cores for 10,000 idle subscriptions", idle_core, 0.25, at_least=False),
            Bar("KiB per idle subscription", idle_bytes / 1024, 4, at_least=False),
            Bar(f"cost per entry at {sizes[0]}, {sizes[1]}, {sizes[2]} entries, largest to smallest", growth, 1.15, at_least=False),
        ),
        {**figures, **small, **costs},
    )


def pause(seconds: float) -> None:
    """Let time pass."""
    SystemClock().wait(threading.Event(), seconds)


# -- (a) delivery


class Weight(msgspec.Struct, frozen=True):
    """A batch as the pipeline sees it."""

    number: int
    nbytes: int = 4096


class Persister:
    """A store that persists each batch some milliseconds after it came; what is due at once is called back in any order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Finish]] = deque()
        self._arrived = threading.Event()
        self._stopping = False
        self._rng = random.Random(1)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def consume(self, _batch: Any, finish: Finish) -> bool:
        """Take a batch over."""
        self._waiting.append((time.perf_counter() + PERSIST_S, finish))
        if not self._arrived.is_set():
            self._arrived.set()
        return True

    def close(self) -> None:
        """Stop; all is persisted."""
        self._stopping = True
        self._arrived.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            if not self._waiting:
                self._arrived.clear()
                if not self._waiting and not self._stopping:
                    self._arrived.wait()
                continue
            early_s = self._waiting[0][0] - time.perf_counter()
            if early_s > 0:
                pause(early_s)
            now_s, due = time.perf_counter(), []
            while self._waiting and self._waiting[0][0] <= now_s:
                due.append(self._waiting.popleft()[1])
            self._rng.shuffle(due)
            for finish in due:
                finish()


def one_at_a_time(spans: int, seconds: float) -> float:
    """Return the batches/s when a span's next batch is delivered only after the last one is persisted."""
    store = Persister()
    delivered = [0] * spans
    began_s = time.perf_counter()

    def deliver(span: int) -> None:
        def finish() -> None:
            delivered[span] += 1
            if time.perf_counter() - began_s < seconds:
                deliver(span)

        store.consume(None, finish)

    for span in range(spans):
        deliver(span)
    pause(seconds)
    count, elapsed_s = sum(delivered), time.perf_counter() - began_s
    store.close()
    return count / elapsed_s


def pipelined(spans: int, batches: int) -> float:
    """Return the batches/s through the span pipeline, from the first batch to the resolved ts that follows the last one."""
    store = Persister()
    pipeline = SpanPipeline(SpanPipelineSettings(), SystemClock())
    done = threading.Semaphore(0)
    last_ts = batches // spans

    def subscribe(span: int) -> Any:
        def advance(ts: int) -> None:
            if ts == last_ts:
                done.release()

        return pipeline.register(span, store.consume, advance)

    registrations = [subscribe(span) for span in range(spans)]
    work = [Weight(number) for number in range(1, last_ts + 1)]
    gc.collect()
    began_s = time.perf_counter()
    for weight in work:
        for registration in registrations:
            pipeline.enqueue_data(registration, weight)
        if weight.number % 16 == 0 or weight.number == last_ts:
            for registration in registrations:
                pipeline.enqueue_resolved(registration, weight.number)
    for _ in registrations:
        if not done.acquire(timeout=_WAIT_S):
            raise PenstockError("INTERNAL", "a resolved ts never came")
    elapsed_s = time.perf_counter() - began_s
    held = pipeline.quota.held_bytes
    pipeline.close()
    store.close()
    if held:
        raise PenstockError("INTERNAL", f"{held} bytes of quota were not given back")
    return last_ts * spans / elapsed_s


# -- (b), (c), (d): a puller on a stream in process


class StreamInProcess:
    """A store's change stream without a network: answers each register request with INITIALIZED, then plays a script."""

    def __init__(self, registrations: int) -> None:
        self._registrations = registrations
        self._script: Iterator[bytes] = iter(())
        self._scripted = threading.Event()
        self._stopped = threading.Event()
        self.initialized = threading.Event()
        self.making_s = 0.0
        """Processor time that the script took to make its messages."""

    def play(self, script: Iterator[bytes]) -> None:
        """Send what the script yields, once all regions are initialised."""
        self._script = script
        self._scripted.set()

    def channel(self, _address: str) -> Any:
        """Return the channel: it is the stream itself."""
        return self

    def stream_stream(self, _method: str, **_serializers: Any) -> Callable[..., StreamInProcess]:
        """Return the callable that opens the stream."""

        def feed(requests: Iterator[cdc_pb2.ChangeDataRequest], **_options: Any) -> StreamInProcess:
            self._requests = requests
            return self

        return feed

    def __iter__(self) -> Iterator[bytes]:
        for _ in range(self._registrations):
            request = next(self._requests)
            yield initialized_message(request.request_id, request.region_id)
        self.initialized.set()
        self._scripted.wait()
        while not self._stopped.is_set():
            began_s = time.thread_time()
            payload = next(self._script, None)
            self.making_s += time.thread_time() - began_s
            if payload is None:
                self._stopped.wait()
                return
            yield payload

    def cancel(self) -> None:
        """End the stream."""
        self._stopped.set()
        self._scripted.set()

    close = cancel


class Layout:
    """Where the benchmark's ranges are: span n of ``spans`` has its own regions, all on one store."""

    def __init__(self, spans: int, regions: int) -> None:
        self._regions = regions
        self.spans = [Span(table_id) for table_id in range(1, spans + 1)]

    def current_ts(self) -> int:
        """Return a constant: nobody asks."""
        return 1

    def key_span(self, span: Span) -> tuple[bytes, bytes]:
        """Return the keys of a span's regions."""
        first = (span.table_id - 1) * self._regions + 1
        return region_bounds(first)[0], region_bounds(first + self._regions)[0]

    def ranges(self, span: Span) -> Sequence[RangeInfo]:
        """Return a span's regions."""
        first = (span.table_id - 1) * self._regions + 1
        regions = range(first, first + self._regions)
        return [RangeInfo(r, span.table_id, *region_bounds(r), RangeEpoch(1, 1), 1, "in-process") for r in regions]


class Bench:
    """A puller with everything behind it, on a stream in process. Use as a context manager."""

    def __init__(self, spans: int, regions: int) -> None:
        self.stream = StreamInProcess(spans * regions)
        self.layout = Layout(spans, regions)
        self.pipeline = SpanPipeline(SpanPipelineSettings(), SystemClock())
        # Nothing here measures the clock: each resolved ts is to go all the way.
        settings = LogPullerSettings(advance_interval_s=0.0)
        self.puller = LogPuller(self.layout, self.pipeline, settings, channels=self.stream.channel)
        self.rows = 0
        self._advanced = threading.Condition()
        self._resolved_ts = 0
        self._failed: list[PenstockError] = []

    def __enter__(self) -> Bench:
        for span in self.layout.spans:
            self.puller.subscribe(span, BASE_TS - 1, self._consume, self._advance, self._failed.append)
        if not self.stream.initialized.wait(_WAIT_S):
            raise PenstockError("INTERNAL", "the regions were not initialised")
        return self

    def __exit__(self, *_: object) -> None:
        self.pipeline.close()
        self.puller.close()

    def wait_resolved(self, ts: int) -> None:
        """Wait until a resolved ts has arrived at the store."""
        with self._advanced:
            self._advanced.wait_for(lambda: self._resolved_ts >= ts or bool(self._failed), _WAIT_S)
        if self._failed:
            raise self._failed[0]

    def _consume(self, batch: RawBatch, finish: Finish) -> bool:
        self.rows += batch.entries.num_rows
        finish()
        return True

    def _advance(self, ts: int) -> None:
        with self._advanced:
            self._resolved_ts = max(ts, self._resolved_ts)
            self._advanced.notify_all()


def puller_cost_s(rounds: Rounds, count: int) -> float:
    """Return the processor seconds that the puller takes for so many rounds, after one that warms it up."""
    go = threading.Event()

    def script() -> Iterator[bytes]:
        for number in range(count + 1):
            yield from rounds.payloads(number)
            yield rounds.resolved(number)[1]
            if number == 0:
                go.wait()

    with Bench(1, REGIONS) as bench:
        bench.stream.play(script())
        bench.wait_resolved(rounds.resolved(0)[0])
        gc.collect()
        began_s, made_s = time.process_time(), bench.stream.making_s
        go.set()
        bench.wait_resolved(rounds.resolved(count)[0])
        cost_s = time.process_time() - began_s - (bench.stream.making_s - made_s)
        if bench.rows * 2 != rounds.entries * (count + 1):
            raise PenstockError("VERIFY_MISMATCH", f"{bench.rows} rows of {rounds.entries * (count + 1) // 2}")
        return cost_s


def reader_cost_s(rounds: Rounds, count: int) -> float:
    """Return the processor seconds that the per-entry reader takes for the same rounds."""
    reader, rows, cost_s = PerEntryReader(), 0, 0.0
    for number in range(count):
        payloads = [*rounds.payloads(number), rounds.resolved(number)[1]]
        began_s = time.process_time()
        for payload in payloads:
            for records in reader.read(payload):
                rows += records.num_rows
        cost_s += time.process_time() - began_s
    if rows * 2 != rounds.entries * count:
        raise PenstockError("VERIFY_MISMATCH", f"{rows} rows of {rounds.entries * count // 2}")
    return cost_s


def compare_readers(quick: bool) -> tuple[float, dict[str, float]]:
    """Return the puller's entries/s to the per-entry reader's, and the same for smaller messages as figures."""
    figures: dict[str, float] = {}
    ratio = 0.0
    for entries in (*SMALL_MESSAGES, MESSAGE_ENTRIES):
        rounds = Rounds(REGIONS, ROUND_MESSAGES, entries)
        count = max(1, (20_000 if entries < MESSAGE_ENTRIES else 500_000) // (rounds.entries * (2 if quick else 1)))
        own = min(puller_cost_s(rounds, count) for _ in range(RUNS)) / (rounds.entries * count)
        other = min(reader_cost_s(rounds, count) for _ in range(RUNS)) / (rounds.entries * count)
        ratio = other / own
        say(f"  (b) {entries} entries a message: {1 / own:,.0f} entries/s, per-entry protobuf {1 / other:,.0f}: {ratio:.1f} times")
        figures[f"entries_per_s_{entries}_a_message"] = round(1 / own)
        figures[f"per_entry_protobuf_entries_per_s_{entries}_a_message"] = round(1 / other)
    return ratio, figures


def idle_cost(seconds: int) -> tuple[float, float]:
    """Return the share of a core and the bytes each that idle subscriptions with a resolved ts per second take."""
    with Bench(1, 1):
        pass
    gc.collect()
    tracemalloc.start()
    before_bytes, _ = tracemalloc.get_traced_memory()
    with Bench(IDLE_SPANS, 1) as bench:
        gc.collect()
        each_bytes = (tracemalloc.get_traced_memory()[0] - before_bytes) / IDLE_SPANS
        tracemalloc.stop()
        rounds = [[resolved_message(i, [i], BASE_TS + n) for i in range(1, IDLE_SPANS + 1)] for n in range(1, seconds + 1)]

        def script() -> Iterator[bytes]:
            began_s, per_tick = time.perf_counter(), IDLE_SPANS // 100
            for number, messages in enumerate(rounds):
                for tick in range(100):
                    early_s = began_s + number + tick / 100 - time.perf_counter()
                    if early_s > 0:
                        pause(early_s)
                    yield from messages[tick * per_tick : (tick + 1) * per_tick]

        gc.collect()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        bench.stream.play(script())
        bench.wait_resolved(BASE_TS + seconds)
        core = (time.process_time() - began_cpu_s - bench.stream.making_s) / max(float(seconds), time.perf_counter() - began_s)
    return core, each_bytes


def cost_by_size(sizes: tuple[int, int, int]) -> tuple[float, dict[str, float]]:
    """Return the largest cost per entry to the smallest over several sizes, and the costs.

    Each size is run as often as makes the largest one once, half before it and half after, and the mean counts: a short run would find a
    quiet moment more easily than a long one.
    """
    rounds = Rounds(REGIONS, ROUND_MESSAGES, MESSAGE_ENTRIES)
    small, middle, large = sizes
    before = [small] * (large // small // 2) + [middle] * (large // middle // 2)
    seconds, entries = dict.fromkeys(sizes, 0.0), dict.fromkeys(sizes, 0)
    for size in (*before, large, *reversed(before)) * 2:
        count = max(1, round(size / rounds.entries))
        seconds[size] += puller_cost_s(rounds, count)
        entries[size] += count * rounds.entries
    means = {size: seconds[size] / entries[size] for size in sizes}
    for size, cost_s in means.items():
        say(f"  (d) {size:,} entries: {cost_s * 1e9:,.0f} ns each")
    return max(means.values()) / min(means.values()), {f"ns_per_entry_at_{n}": round(c * 1e9) for n, c in means.items()}
