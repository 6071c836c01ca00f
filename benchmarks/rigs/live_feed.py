"""``penstock run`` on one table of MariaDB under load, for benchmarks that ask how soon or how fast its rows are somewhere else.

Rows have numbers without gaps and the server's clock, which is read before the commit: what is measured is a little too long. Load at half:
first rows come at once, and the rate at which the last of them is visible is what this machine can do, server, writer and Penstock
together; then they come at half of that. Runs in benchmarks.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pymysql

from benchmarks.report import Bar, say
from benchmarks.rigs.source_servers import DATABASE, Server, mariadb, run_mysql
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError

TRANSACTION_ROWS = 1_000
LOAD = 0.5
TABLE = "stamped"
WAIT_S = 300.0
_COLUMNS = "id BIGINT PRIMARY KEY, customer INT NOT NULL, price DECIMAL(12,2), name VARCHAR(64), stamped DATETIME(6) NOT NULL"
_TICK_S = 0.02
_SKIPPED_S = 1.0
_BARE = """
import statistics, time
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
def job():
    begun = time.perf_counter()
    session.sparkContext.parallelize([b""], 1).map(lambda one: one).collect()
    return time.perf_counter() - begun
[job() for _ in range(5)]
print("job", statistics.median(job() for _ in range(20)))
session.stop()
"""
_clock = SystemClock()
_never = threading.Event()


class Watch(Protocol):
    """What sees the rows of the table at a target. It knows nothing of what brings them."""

    @property
    def last_s(self) -> float:
        """Return when the newest row that it saw was there."""

    def rows(self) -> int:
        """Return how many rows it saw."""

    def latencies(self, from_s: float) -> npt.NDArray[np.float64]:
        """Return how long each row took that was stamped since then."""


@functools.cache
def bare_job_s() -> float:
    """Return the wall time of a bare Spark job with a Python task, in a session of its own."""
    done = subprocess.run([sys.executable, "-c", _BARE], capture_output=True, text=True, timeout=WAIT_S, check=True)
    return float(done.stdout.split("job ")[1])


@contextlib.contextmanager
def numbered_server(root: Path) -> Iterator[Server]:
    """Run MariaDB with a table of numbers, from which others are filled on the server."""
    (root / "server").mkdir()
    with mariadb(root / "server") as server:
        series = f"INSERT INTO numbers SELECT seq FROM seq_0_to_{TRANSACTION_ROWS - 1}"
        run_mysql(server.uri, ["CREATE TABLE numbers (n INT PRIMARY KEY)", series])
        yield server


def begin_table(server: Server) -> None:
    """Make the table anew."""
    run_mysql(server.uri, [f"DROP TABLE IF EXISTS {TABLE}", f"CREATE TABLE {TABLE} ({_COLUMNS})"])


def insert_text(after: int, rows: int = TRANSACTION_ROWS) -> str:
    """Return the statement that makes rows whose numbers come after one."""
    values = f"{after + 1} + n, n * 7, n + 0.25, CONCAT('item number ', n), SYSDATE(6)"
    return f"INSERT INTO {TABLE} SELECT {values} FROM numbers WHERE n < {rows}"


@contextlib.contextmanager
def writing(server: Server) -> Iterator[pymysql.cursors.Cursor]:
    """Give a cursor whose statements are committed each by itself, and whose clock is UTC."""
    connection = pymysql.connect(host="127.0.0.1", port=server.port, user="penstock", database=DATABASE, autocommit=True)
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        yield cursor


def half_load(server: Server, watch: Watch, burst: int, paced_s: float) -> tuple[float, npt.NDArray[np.float64]]:
    """Return the rows per second of a burst, and how long the rows of the time at half load took."""
    with writing(server) as cursor:
        cursor.execute(insert_text(0))
        rows = TRANSACTION_ROWS
        until_rows(watch, rows)
        began_s = time.time()
        for _ in range(burst // TRANSACTION_ROWS):
            cursor.execute(insert_text(rows))
            rows += TRANSACTION_ROWS
        until_rows(watch, rows)
        rate = burst // TRANSACTION_ROWS * TRANSACTION_ROWS / (watch.last_s - began_s)
        first, start_s, began_s = rows, time.time(), time.perf_counter()
        while (passed_s := time.perf_counter() - began_s) < paced_s:
            due = min(int(passed_s * rate * LOAD) - (rows - first), TRANSACTION_ROWS)
            if due > 0:
                cursor.execute(insert_text(rows, due))
                rows += due
            if due < TRANSACTION_ROWS:
                _clock.wait(_never, _TICK_S)
        until_rows(watch, rows)
    return rate, watch.latencies(start_s + _SKIPPED_S)


def visible_bar(name: str, interval_s: float, jobs: int, rate: float, taken: npt.NDArray[np.float64]) -> tuple[Bar, dict[str, float | int]]:
    """Say how long rows took to be visible; return the bar, the interval and so many bare jobs, and the figures."""
    half, high, job_s = float(np.quantile(taken, 0.5)), float(np.quantile(taken, 0.99)), bare_job_s()
    say(f"  {name}: {rate:,.0f} rows/s at most; at half: median {half:.3f} s, 99 % {high:.3f} s; a bare job {job_s:.3f} s")
    key = f"visible_{name.lower()}"
    figures = {f"{key}_p50_s": round(half, 3), f"{key}_rows_per_s": round(rate), "visible_bare_job_s": round(job_s, 4)}
    return Bar(f"commit to visible in {name}, 99th percentile", high, round(interval_s + jobs * job_s, 4), at_least=False), figures


def until_rows(watch: Watch, rows: int) -> None:
    """Wait until a target has so many rows."""
    until(lambda: watch.rows() >= rows, lambda: f"{watch.rows():,} of {rows:,} rows came")


def until(done: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait until a condition holds; say what is missing where it does not in time."""
    deadline_s = time.perf_counter() + WAIT_S
    while not done():
        if time.perf_counter() > deadline_s:
            raise PenstockError("FEED_FAILED", what())
        _clock.wait(_never, _TICK_S)


@contextlib.contextmanager
def running_feed(
    root: Path, source: str, sink: str, is_there: Callable[[str], bool], settings: Mapping[str, str], table: str = TABLE
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``penstock run`` on a table of the server from when it is there, which is asked with what the process has said, to the end."""
    root.mkdir(exist_ok=True)
    command = [
        *(sys.executable, "-m", "penstock", "run", "--source", source, "--table", f"{DATABASE}.{table}"),
        *("--sink", sink, "--data-dir", str(root / "data")),
        *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
    ]
    log = root / "run.log"
    with log.open("w", encoding="utf-8") as said, subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT) as process:
        try:
            until(lambda: process.poll() is not None or is_there(log.read_text(encoding="utf-8")), lambda: _end_of(log))
            if process.poll() is not None:
                raise PenstockError("FEED_FAILED", _end_of(log))
            yield process
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8")[-2_000:]
