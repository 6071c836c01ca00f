"""``make bench NAME=shared_storage``: what a takeover costs where the event store's objects are on shared storage, and what executors gain.

A feed captures a log of MariaDB into a store whose objects lie in a directory that outlives the machine. A load of 40 parts is written
and captured; the store is shared after each of them but the last, as the clock would every minute of 40. Then the machine is lost, as by
``kill -9`` with its disk, at the worst moment: just before it shares again. A server with an empty disk goes on. Counted are the bytes of
changes that the reader of the log gave to both: what the second was given up to where the first had been is pulled again. The files must
hold exactly the table in the end.

Then two executors beside one: the bootstrap of four tables of MariaDB into shared objects, and the delivery of changes that are in shared
objects. One executor has all of it in one task after the other. Each executor gets a third of a core, because the database, the driver and
the server run on the same machine and want theirs: what an executor waits for then is what it would wait for on a machine of its own. The
same is measured with tasks that only compute, and once more with executors that get what they can of the machine, as figures.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from benchmarks.feed import Arena, feed_seconds, fill
from benchmarks.report import Bar, Report, say
from benchmarks.rigs.slow_executors import slow_executors
from benchmarks.rigs.source_servers import DATABASE, Server, mariadb, run_mysql
from penstock.feed.bootstrap.bootstrap import JobTasks
from penstock.feed.settings import FeedSettings
from penstock.feed.spark.jobs import Job, SparkJobs
from penstock.feed.spark.session import SparkSettings, open_session
from penstock.model.batch import ChangeBatch
from penstock.model.errors import PenstockError
from penstock.puller.logged.settings import SingleLogPullerSettings
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.server import FlightService
from penstock.store.objects.objects import ObjectSpace
from testing.paths.one_log_path import OneLogPath

ROWS, ROWS_QUICK = 2_000_000, 200_000
PARTS = 40
TABLE = "steady"
READ_ROWS, READ_ROWS_QUICK = 6_000_000, 1_200_000
FEED_ROWS, FEED_ROWS_QUICK = 4_000_000, 1_000_000
READ_TABLES = 4
PAGE_ROWS = 20_000
RUNS = 3
BURN_ROUNDS = 1_500_000


class _Given:
    """Counts the bytes that a store is given, up to a ts and beyond it."""

    def __init__(self, store: ColumnarEventStore, again_to_ts: int = 0) -> None:
        self.nbytes = 0
        self.nbytes_again = 0
        append = store.append

        def counted(span_id: int, batches: Sequence[ChangeBatch], on_persisted: Any) -> bool:
            self.nbytes += sum(b.header.nbytes for b in batches)
            self.nbytes_again += sum(b.header.nbytes for b in batches if b.header.min_ts <= again_to_ts)
            return append(span_id, batches, on_persisted)

        store.append = counted  # type: ignore[method-assign]


def run(quick: bool) -> Report:
    """Run the benchmark at its full or quick size."""
    with contextlib.ExitStack() as parts:
        root = Path(tempfile.mkdtemp(prefix="penstock-bench-shared-"))
        parts.callback(shutil.rmtree, root, ignore_errors=True)
        # Before anything that uses gRPC: starting the JVM forks.
        session = open_session(SparkSettings("local-cluster[2,1,1024]"), "penstock bench shared_storage")
        parts.callback(session.stop)
        for folder in ("server", "path"):
            (root / folder).mkdir()
        server = parts.enter_context(mariadb(root / "server"))
        bars, figures = _takeover(root, server, ROWS_QUICK if quick else ROWS)
        more_bars, more_figures = _two_executors(session, root, server, quick)
    return Report("shared_storage", (*bars, *more_bars), figures | more_figures)


def _takeover(root: Path, server: Server, rows: int) -> tuple[tuple[Bar, ...], dict[str, float | int | str]]:
    run_mysql(server.uri, [f"CREATE TABLE {TABLE} (id BIGINT PRIMARY KEY, note VARCHAR(40), amount INT)"])
    path = OneLogPath(root / "path", server.uri, [f"{DATABASE}.{TABLE}"], shared=root / "shared")
    with contextlib.closing(path):
        return _measure(path, server, rows)


def _measure(path: OneLogPath, server: Server, rows: int) -> tuple[tuple[Bar, ...], dict[str, float | int | str]]:
    path.begin()
    span_id = path.dispatchers[0].span.span_id
    sharing = path.store._sharing
    if sharing is None:
        raise AssertionError("the store is not shared")
    first = _Given(path.store)
    say(f"MariaDB: {rows:,} rows in {PARTS} parts, shared after each but the last, then the machine is lost")
    for part in range(PARTS):
        if part:
            # Parts stand for minutes, so each is journaled when it is shared: the journal writes a position at most once in its interval.
            time.sleep(1.1 * SingleLogPullerSettings().journal_interval_s)
            path.drain()
            sharing.share()
        numbers = f"seq_{part * rows // PARTS + 1}_to_{(part + 1) * rows // PARTS}"
        run_mysql(server.uri, [f"INSERT INTO {TABLE} SELECT seq, CONCAT('row number ', seq), seq % 7 FROM {numbers}"])
        path.drain()
    held_ts = path.store.recoverable_ts([span_id])
    lost_ts = path.store.resolved_ts(span_id)
    path.lose_disk()
    began_s = time.monotonic()
    path.open()
    again = _Given(path.store, lost_ts)
    path.begin()
    path.drain()
    took_s = time.monotonic() - began_s
    verdict = path.verify()
    verdict.check()
    say(f"  {first.nbytes:,} bytes given to the first server, {again.nbytes_again:,} of them again to the second, {took_s:.1f} s")
    bars = (Bar("bytes pulled again after a takeover, as a share", again.nbytes_again / first.nbytes, 0.05, at_least=False),)
    figures: dict[str, float | int | str] = {
        "rows": rows,
        "bytes_first": first.nbytes,
        "bytes_again": again.nbytes_again,
        "shared_ts": held_ts,
        "lost_ts": lost_ts,
        "takeover_s": round(took_s, 3),
    }
    return bars, figures


def _two_executors(session: SparkSession, root: Path, server: Server, quick: bool) -> tuple[tuple[Bar, ...], dict[str, float | int | str]]:
    """Return how much faster two executors are than one, at bootstrap and delivery together, and at bare computing."""
    read_rows, feed_rows = (READ_ROWS_QUICK, FEED_ROWS_QUICK) if quick else (READ_ROWS, FEED_ROWS)
    jobs = SparkJobs(session)
    for table in range(READ_TABLES):
        numbers = f"seq_1_to_{read_rows // READ_TABLES}"
        run_mysql(
            server.uri,
            [
                f"CREATE TABLE read_{table} (id BIGINT PRIMARY KEY, note VARCHAR(40), amount INT)",
                f"INSERT INTO read_{table} SELECT seq, CONCAT('row number ', seq), seq % 7 FROM {numbers}",
            ],
        )
    store = ColumnarEventStore(root / "feed" / "store", objects=ObjectSpace((root / "feed" / "objects").as_uri()), shared=True)
    with contextlib.closing(store):
        arena = Arena(root / "feed", feed_rows, store, FlightService(store), fill(store, feed_rows, 2))
        with contextlib.closing(arena.flight):
            feed_seconds(session, arena)
            work: dict[str, Callable[[int], float]] = {
                "bare": functools.partial(_bare_seconds, jobs),
                "bootstrap": functools.partial(_bootstrap_seconds, jobs, root, server, read_rows),
                "feed": lambda executors: feed_seconds(session, arena, tasks=executors),
            }
            free = _taken(work)
            with slow_executors():
                slow = _taken(work)
    figures: dict[str, float] = {}
    for kind, taken in (("", slow), ("unslowed_", free)):
        for name in work:
            (one_s, busy), (two_s, _) = taken[name, 1], taken[name, 2]
            say(f"  {kind}{name}: one executor {one_s:.2f} s with {busy:.2f} cores busy, two {two_s:.2f} s")
            figures |= {f"{kind}{name}_two_to_one": round(one_s / two_s, 3), f"{kind}{name}_cores_busy_with_one": round(busy, 2)}
        one_s, two_s = (taken["bootstrap", n][0] + taken["feed", n][0] for n in (1, 2))
        figures[f"{kind}both_two_to_one"] = round(one_s / two_s, 3)
    both = figures["both_two_to_one"]
    bars = (
        Bar("bootstrap and feed from shared storage, two executors to one", both, 1.7),
        Bar("the same, to what two bare tasks gain here", both / figures["bare_two_to_one"], 0.85),
    )
    return bars, dict(figures)


def _taken(work: Mapping[str, Callable[[int], float]]) -> dict[tuple[str, int], tuple[float, float]]:
    """Return the shortest time of each kind of work with one executor and with two, and how many cores all processes took in it.

    In turns, because machines are noisy.
    """
    taken = {(name, executors): (float("inf"), 0.0) for name in work for executors in (1, 2)}
    for _ in range(RUNS):
        for (name, executors), best in taken.items():
            began_cpu_s, began_s = _cpu_s(), time.perf_counter()
            seconds = work[name](executors)
            busy = (_cpu_s() - began_cpu_s) / (time.perf_counter() - began_s)
            taken[name, executors] = min(best, (seconds, busy))
    return taken


def _cpu_s() -> float:
    """Return the processor time of this process and all below it: driver, executors, database, server."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            total += used.user + used.system
    return total


def _bare_seconds(jobs: SparkJobs, executors: int) -> float:
    """Return how long two tasks take that only compute, at once or one after the other."""
    work = functools.partial(hashlib.pbkdf2_hmac, "sha256", salt=b"salt", iterations=BURN_ROUNDS)
    began_s = time.perf_counter()
    for _ in range(2 // executors):
        jobs.run(Job("bench", "bench", "bare", work, [b"task"] * executors))
    return time.perf_counter() - began_s


def _bootstrap_seconds(jobs: SparkJobs, root: Path, server: Server, rows: int, executors: int) -> float:
    """Return how long the state of all tables takes from MariaDB to shared objects, by so many tasks at once."""
    folder = Path(tempfile.mkdtemp(prefix="boot-", dir=root))
    settings = FeedSettings(bootstrap_tasks=executors)
    path = OneLogPath(folder, server.uri, [f"{DATABASE}.read_*"], settings, page_rows=PAGE_ROWS, shared=folder / "shared")
    with contextlib.closing(path):
        path.tasks = JobTasks(jobs)
        # The reader of the log is under way before anything is measured.
        path.log.begin()
        path.log.settled_ts()
        began_s = time.perf_counter()
        path.begin()
        seconds = time.perf_counter() - began_s
        held = sum(o.rows for d in path.live() for o in path.store.view(d.span.span_id).state.objects)
    if held != rows:
        raise PenstockError("VERIFY_MISMATCH", f"the bootstrap read {held} of {rows} rows")
    return seconds
