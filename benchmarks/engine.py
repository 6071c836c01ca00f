"""``make bench NAME=engine``: what Spark costs a feed besides its rows: light windows, idle feeds, the first window.

A light window (one table, 50 rows) is compared with a bare Spark job of as many Python tasks in the same session, by the CPU time of all
processes together and by the clock from plan to commit; both take turns, because machines are noisy. Memory, processes and idle cost are
those of 50 feeds beside those of one, each with a window of its own every flush interval, after every feed had a window with rows.
The rate is that of ``bench feed`` against the same limit without Spark. The start is that of ``penstock run`` on the embedded data server
against a bare SparkSession with one Python task. Capture is not part of it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import msgspec
import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.feed import best, feed_seconds, plain_seconds, prepare
from benchmarks.report import Bar, Report, say
from benchmarks.rigs.workload import ORDERS, changes
from penstock.feed.settings import FeedSettings
from penstock.feed.spark.jobs import Job, SparkJobs
from penstock.feed.spark.session import SparkSettings, open_session
from penstock.feed.window.assignment import Dispatcher, FeedContext
from penstock.feed.window.planner import WindowPlanner
from penstock.feed.window.run import FeedWindows
from penstock.feed.window.window_job import WindowJobs
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.timestamp import compose_ts
from penstock.sink.contract import DispatcherId
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.server import FlightService
from testing.servers.waiting import meanwhile

ROWS = 50
FEEDS = 50
ROUNDS, WINDOWS = 4, 25
ROUNDS_QUICK, WINDOWS_QUICK = 3, 15
IDLE_S, IDLE_QUICK_S = 30.0, 15.0
RATE_ROWS, RATE_ROWS_QUICK, RATE_ROWS_WARM = 5_000_000, 1_000_000, 200_000
_STEP = 1 << 20
_TICK_S = 0.2
_WAIT_S = 300.0
_BARE = """
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
print(session.sparkContext.parallelize([1], 1).map(lambda n: n + 1).collect())
"""


def run(quick: bool) -> Report:
    """Run the benchmark at its full or quick size."""
    cores = os.cpu_count() or 1
    rounds, windows = (ROUNDS_QUICK, WINDOWS_QUICK) if quick else (ROUNDS, WINDOWS)
    say(f"engine: {rounds} x {windows} light windows of {ROWS} rows, {FEEDS} feeds, {cores} cores")
    with ExitStack() as parts:
        root = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-engine-")))
        # Before anything that uses gRPC: starting the JVM forks.
        session = open_session(SparkSettings(f"local[{cores}]"), "penstock bench engine")
        parts.callback(session.stop)
        light = light_windows(session, root / "light", rounds, windows)
        many = many_feeds(session, root / "many", IDLE_QUICK_S if quick else IDLE_S)
        rate = delivered_share(session, root / "rate", RATE_ROWS_QUICK if quick else RATE_ROWS, cores)
    start = first_window_share()
    return Report(
        "engine",
        (
            Bar("light window, CPU of a bare job with as many tasks", light["window_cpu_s"] / light["job_cpu_s"], 2.0, at_least=False),
            Bar("light window, wall from plan to commit of that job", light["window_s"] / light["job_s"], 2.5, at_least=False),
            Bar("MB for each of 50 feeds more than 1", many["mb_each"], 15, at_least=False),
            Bar("processes for 50 feeds more than for 1", many["processes"], 0, at_least=False),
            Bar("cores that 50 idle feeds take", many["idle_cores"], 0.3, at_least=False),
            Bar("delivered rows/s to plain polars processes", rate, 0.75),
            Bar("penstock run to the first window, of a bare session with a task", start, 2.5, at_least=False),
        ),
        {name: round(value, 4) for name, value in (light | many).items()},
    )


class Lab:
    """An event store with tables of one span each, whose rows are there and become resolved step by step, and a meta database."""

    def __init__(self, root: Path, tables: int, steps: int, partitions: int, flush_interval_s: float) -> None:
        root.mkdir(parents=True)
        # A feed that is behind asks more often, and these keep up.
        self.base_ts = now_ts()
        self.steps = steps
        self._root, self._partitions, self._flush_interval_s = root, partitions, flush_interval_s
        self._parts = ExitStack()
        self.store = self._parts.enter_context(ColumnarEventStore(root / "store"))
        self._flight = self._parts.enter_context(closing(FlightService(self.store)))
        self._meta_url = f"sqlite:///{root / 'meta.db'}"
        self.meta = self._parts.enter_context(closing(MetaDatabase(self._meta_url)))
        self.store.register_span(DDL_SPAN.span_id, DDL_SPAN, self.base_ts)
        self._spans: list[Span] = []
        self.contexts = [self._feed(number) for number in range(tables)]

    def _feed(self, number: int) -> FeedContext:
        table = msgspec.structs.replace(ORDERS, table_id=100 + number, table=f"orders_{number}")
        span = Span(table.table_id)
        self.store.put_schemas([table])
        self.store.register_span(span.span_id, span, self.base_ts)
        (first, *_) = next(changes(0, span.span_id, 2 * ROWS * self.steps))
        records = first.records
        for step in range(self.steps):
            rows = records.slice(step * ROWS, ROWS)
            ts = pa.repeat(pa.scalar(self.ts_of(step), pa.uint64()), rows.num_rows)
            moved = rows.set_column(0, rows.schema.field(0), ts)
            done = threading.Event()
            self.store.append(span.span_id, [type(first).of(span.span_id, table, first.header.kind, moved)], done.set)
            done.wait()
        self._spans.append(span)
        name = f"bench-{number}"
        self.meta.create_feed(FeedRecord(name, name, "{}", checkpoint_ts=self.base_ts), [])
        target = self._root / "files" / name
        target.mkdir(parents=True)
        return FeedContext(
            feed=name,
            epoch=self.meta.claim(name, "bench", 3_600_000) or 0,
            meta_url=self._meta_url,
            flight_location=self._flight.location,
            flight_token=self._flight.token,
            sink_uri=target.as_uri(),
            sink_options={},
            dispatchers=(Dispatcher(DispatcherId(table.table_id), span, table.schema, table.table),),
            settings=FeedSettings(flush_interval_s=self._flush_interval_s),
            snapshot_ts=0,
            partitions=self._partitions,
        )

    def ts_of(self, step: int) -> int:
        """Return the commit ts of the rows of a step."""
        return self.base_ts + 1 + step * _STEP

    def resolve(self, ts: int) -> None:
        """Let everything up to a ts be resolved."""
        for span in (*self._spans, DDL_SPAN):
            self.store.advance_resolved_ts(span.span_id, ts)

    def close(self) -> None:
        """Close everything."""
        self._parts.close()


def light_windows(session: SparkSession, root: Path, rounds: int, windows: int) -> dict[str, float]:
    """Return CPU and wall seconds of a light window and of a bare job, which take turns."""
    jobs = SparkJobs(session)
    with closing(Lab(root, 1, 2 + rounds * windows, 1, 0.0)) as lab:
        (context,) = lab.contexts
        with closing(WindowPlanner.open(context)) as planner:
            feed, step, tasks = WindowJobs(context, planner, jobs), 0, 0

            def window() -> None:
                nonlocal step, tasks
                lab.resolve(lab.ts_of(step))
                step += 1
                planned = feed.plan()
                if planned is None:
                    raise PenstockError("INTERNAL", "a light window is missing")
                tasks = len(planned.parts)
                feed.commit(planned, feed.deliver(planned))

            def bare() -> None:
                session.sparkContext.parallelize([b""] * tasks, tasks).map(_same).collect()

            for warm in (window, bare, window, bare):
                warm()
            walls: dict[Callable[[], None], list[float]] = {bare: [], window: []}
            cpu = dict.fromkeys(walls, 0.0)
            for _ in range(rounds):
                for work, taken in walls.items():
                    before = tree_cpu_s()
                    taken.extend(_timed(work) for _ in range(windows))
                    cpu[work] += tree_cpu_s() - before
        if lab.meta.progress(context.feed).rows != step * ROWS:
            raise PenstockError("VERIFY_MISMATCH", f"light windows delivered {lab.meta.progress(context.feed).rows} of {step * ROWS} rows")
    done = rounds * windows
    found = {
        "window_cpu_s": cpu[window] / done,
        "job_cpu_s": cpu[bare] / done,
        "window_s": statistics.median(walls[window]),
        "job_s": statistics.median(walls[bare]),
    }
    say("  " + ", ".join(f"{name} {value:.4f}" for name, value in found.items()))
    return found


def now_ts() -> int:
    """Return the ts of now."""
    return compose_ts(time.time_ns() // 1_000_000)


def _same(value: bytes) -> bytes:
    return value


def _slow(value: bytes) -> bytes:
    time.sleep(1)
    return value


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def many_feeds(session: SparkSession, root: Path, idle_s: float) -> dict[str, float]:
    """Return what 50 feeds take more than one, and what they take while nothing changes."""
    jobs = SparkJobs(session)
    # The heap of the JVM grows with the first jobs, whoever they are of, and there is a worker for each task at a time.
    jobs.run(Job("bench", "bench", "warming", _slow, [b""] * jobs.parallelism))
    for _ in range(2 * FEEDS):
        jobs.run(Job("bench", "bench", "warming", _same, [b""]))
    with closing(Lab(root, FEEDS, 1, 1, FeedSettings().flush_interval_s)) as lab, ExitStack() as running:

        def start(contexts: list[FeedContext]) -> None:
            for context in contexts:
                feed = FeedWindows(jobs, context)
                feed.start()
                running.callback(feed.stop)
            with ticking(lab):
                for context in contexts:
                    _until(lambda context=context: lab.meta.progress(context.feed).rows == ROWS)  # type: ignore[misc]

        start(lab.contexts[:1])
        session._jvm.System.gc()  # type: ignore[union-attr]
        one_bytes, one = tree_memory()
        start(lab.contexts[1:])
        session._jvm.System.gc()  # type: ignore[union-attr]
        all_bytes, processes = tree_memory()
        with ticking(lab):
            before, began = tree_cpu_s(), time.perf_counter()
            windows = sum(lab.meta.get_feed(c.feed).windows_total for c in lab.contexts)
            time.sleep(idle_s)
            cores = (tree_cpu_s() - before) / (time.perf_counter() - began)
            windows = sum(lab.meta.get_feed(c.feed).windows_total for c in lab.contexts) - windows
    if windows < FEEDS:
        raise PenstockError("FEED_FAILED", f"{FEEDS} idle feeds had {windows} windows")
    found = {
        "mb_each": (all_bytes - one_bytes) / 1e6 / (FEEDS - 1),
        "processes": processes - one,
        "idle_cores": cores,
        "idle_windows_per_s": windows / idle_s,
    }
    say("  " + ", ".join(f"{name} {value:.3f}" for name, value in found.items()))
    return found


@contextmanager
def ticking(lab: Lab) -> Iterator[None]:
    """Let the resolved ts of all tables go on, as a source does on which nothing changes."""

    def tick(stop: threading.Event) -> None:
        while not stop.wait(_TICK_S):
            lab.resolve(now_ts())

    with meanwhile(tick):
        yield


def delivered_share(session: SparkSession, root: Path, rows: int, cores: int) -> float:
    """Return how many rows per second a feed delivers, as a share of plain processes that encode the same batches."""
    with ExitStack() as parts:
        arenas = [prepare(root / str(count), count, cores) for count in (RATE_ROWS_WARM, rows)]
        for arena in arenas:
            parts.callback(arena.store.close)
            parts.callback(arena.flight.close)
        feed_seconds(session, arenas[0])
        feed = best(lambda: feed_seconds(session, arenas[1]), "penstock feed", rows)
        limit = best(lambda: plain_seconds(arenas[1], cores), "plain polars processes", rows)
    return limit / feed


def first_window_share() -> float:
    """Return how long ``penstock run`` takes to its first published checkpoint, to a bare session with one Python task."""
    bare_s = min(
        _timed(lambda: _end(subprocess.Popen([sys.executable, "-c", _BARE], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)))
        for _ in range(2)
    )
    run_s = min(_first_window_s() for _ in range(2))
    say(f"  penstock run {run_s:.1f} s, a bare session {bare_s:.1f} s")
    return run_s / bare_s


def _first_window_s() -> float:
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-start-"))
    command = [sys.executable, "-m", "penstock"]
    with subprocess.Popen([*command, "dataserver", "--workload"], stdout=subprocess.PIPE, text=True) as server:
        try:
            listening = next(line for line in server.stdout or () if "listening on " in line)
            source = listening.split("listening on ", 1)[1].split()[0]
            options = ["--source", source, "--table", "shop.*", "--sink", (root / "files").as_uri(), "--data-dir", str(root / "data")]
            start = time.perf_counter()
            log = (root / "log").open("w")
            running = subprocess.Popen([*command, "run", *options, "--spark-master", "local[2]"], stdout=log, stderr=log)
            try:
                _until((root / "files" / "metadata").exists)
                return time.perf_counter() - start
            finally:
                running.terminate()
                _end(running)
                log.close()
        finally:
            server.terminate()
            _end(server)
            shutil.rmtree(root, ignore_errors=True)


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.wait(_WAIT_S)


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.perf_counter() + _WAIT_S
    while not condition():
        if time.perf_counter() > deadline_s:
            raise PenstockError("FEED_FAILED", "the benchmark's feeds did not get on")
        time.sleep(0.02)


def _tree() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def tree_cpu_s() -> float:
    """Return the CPU seconds of this process and all that it started, those that have ended included."""
    total = 0.0
    for process in _tree():
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def tree_memory() -> tuple[int, int]:
    """Return the proportional memory of this process and all that it started, in bytes, and how many these are."""
    total, count = 0, 0
    for process in _tree():
        try:
            total += process.memory_full_info().pss
            count += 1
        except psutil.NoSuchProcess:
            continue
    return total, count
