"""``make bench NAME=reread``: what it costs to settle a doubted table, against its first snapshot.

A table of MariaDB is bootstrapped by Spark tasks, then a thousand rows change without a word in the log, and the table is read again:
its rows and the store's state are compared by Spark tasks and the difference is appended to the store. Both are timed from the call to
the durable end. Another table is written to all the time; how long each of its commits takes until it is resolved in the store is measured
while nothing else happens, while the table is read again, and while corrections of every row of it are handed over.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pymysql
from pyspark.sql import SparkSession

from benchmarks.report import Bar, Report, say
from benchmarks.rigs.source_servers import DATABASE, TRANSACTION_ROWS, Server, Workload, create_mysql_table, load_mysql, mariadb, run_mysql
from penstock.feed.bootstrap.bootstrap import BootstrapSettings, JobTasks
from penstock.feed.bootstrap.reread import Reread
from penstock.feed.settings import FeedSettings
from penstock.feed.spark.jobs import SparkJobs
from penstock.feed.spark.session import SparkSettings, open_session
from penstock.model.span import Span
from penstock.source.single_log import has_log
from penstock.store.flight.address import FlightAddress
from testing.paths.one_log_path import OneLogPath
from testing.servers.waiting import meanwhile

ROWS, ROWS_QUICK = 1_000_000, 200_000
DIFFERING = 1_000
REPEATS = 3
LAG_SAMPLES = 20
TASKS = 2


def run(quick: bool) -> Report:
    """Run the benchmark at its full or quick size."""
    rows = ROWS_QUICK if quick else ROWS
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-reread-"))
    session = open_session(SparkSettings(f"local[{TASKS}]"))
    try:
        (root / "server").mkdir()
        with mariadb(root / "server") as server:
            say(f"MariaDB: a table of {rows:,} rows of 9 columns, {DIFFERING:,} of them changed behind the log's back")
            _fill(server, rows)
            _warm(root / "warm", server, session)
            return _measure(root / "measured", server, session, rows)
    finally:
        session.stop()
        shutil.rmtree(root, ignore_errors=True)


def _measure(root: Path, server: Server, session: SparkSession, rows: int) -> Report:
    snapshot_s, reread_s, corrected = [], [], 0
    quiet: list[float] = []
    busy: list[float] = []
    flooded: list[float] = []
    for number in range(REPEATS):
        with _path(root / str(number), server, session, ["orders_a", "other"]) as path:
            began_s = time.monotonic()
            path.begin()
            snapshot_s.append(time.monotonic() - began_s)
            quiet += [_lag_s(path, server) for _ in range(LAG_SAMPLES)]
            _change_unlogged(server, rows, number)
            with _lags(path, server, busy):
                took_s, corrected = _reread(path, server, session, "orders_a")
            reread_s.append(took_s)
            say(f"  snapshot {snapshot_s[-1]:.2f} s, re-read {reread_s[-1]:.2f} s, {corrected:,} rows of corrections")
            again_s, again = _reread(path, server, session, "orders_a")
            if corrected != _expected_rows() or again:
                raise AssertionError(f"{corrected} rows were corrected, {_expected_rows()} differ; {again} in the second round")
            say(f"  a second re-read, which finds nothing: {again_s:.2f} s")
            if number == 0:
                run_mysql(server.uri, ["SET sql_log_bin = 0", "UPDATE orders_a SET flag = 1 - flag", "SET sql_log_bin = 1"])
                with _lags(path, server, flooded):
                    took_s, corrected = _reread(path, server, session, "orders_a")
                say(f"  a re-read that finds every row changed: {took_s:.2f} s, {corrected:,} rows of corrections")
    ratio = min(reread_s) / min(snapshot_s)
    lag_quiet_s, lag_busy_s, lag_flooded_s = (_slow(lags) for lags in (quiet, busy, flooded))
    bars = (
        Bar("re-read to snapshot, time", ratio, 1.5, at_least=False),
        Bar("another table's delay meanwhile to before, 9 of 10 commits", lag_busy_s / lag_quiet_s, 1.5, at_least=False),
        Bar("the same while every row is corrected", lag_flooded_s / lag_quiet_s, 2.0, at_least=False),
    )
    figures: dict[str, float | int | str] = {
        "rows": rows,
        "differing": DIFFERING,
        "snapshot_s": round(min(snapshot_s), 3),
        "reread_s": round(min(reread_s), 3),
        "lag_quiet_s": round(lag_quiet_s, 3),
        "lag_busy_s": round(lag_busy_s, 3),
        "lag_flooded_s": round(lag_flooded_s, 3),
        "lag_flooded_worst_s": round(max(flooded), 3),
    }
    return Report("reread", bars, figures)


def _slow(lags: list[float]) -> float:
    """Return within which time nine of ten commits are visible."""
    return statistics.quantiles(lags, n=10)[-1]


def _fill(server: Server, rows: int) -> None:
    workload = Workload("A", rows, TRANSACTION_ROWS)
    create_mysql_table(server, workload)
    # Only inserts: the workload's other changes would leave a smaller table.
    inserts = _Inserts(workload.name, rows, TRANSACTION_ROWS)
    load_mysql(server, inserts)
    columns = "id BIGINT NOT NULL PRIMARY KEY, note VARCHAR(40)"
    run_mysql(server.uri, [f"CREATE TABLE {name} ({columns})" for name in ("other", "warm")])
    run_mysql(server.uri, ["INSERT INTO warm SELECT n, 'warm' FROM numbers", "ANALYZE TABLE orders_a, warm"])


class _Inserts(Workload, frozen=True):
    """A workload of inserts alone."""

    @property
    def counts(self) -> tuple[int, int, int]:
        """Return inserts, and nothing else."""
        return self.changes, 0, 0


def _warm(root: Path, server: Server, session: SparkSession) -> None:
    """Start Spark's Python processes and compile kernels on a small table."""
    with _path(root, server, session, ["warm"]) as path:
        path.begin()
        _reread(path, server, session, "warm")


@contextlib.contextmanager
def _path(root: Path, server: Server, session: SparkSession, tables: list[str]) -> Iterator[OneLogPath]:
    root.mkdir(parents=True)
    chosen = FeedSettings(bootstrap_tasks=TASKS)
    path = OneLogPath(root, server.uri, [f"{DATABASE}.{table}" for table in tables], chosen, BootstrapSettings().page_rows)
    try:
        path.tasks = JobTasks(SparkJobs(session))
        yield path
    finally:
        path.close()


def _change_unlogged(server: Server, rows: int, number: int) -> None:
    """Change rows without logging it: updates, deletes and inserts, in every key range."""
    step = rows // DIFFERING
    changed, deleted, inserted = _shares()
    run_mysql(
        server.uri,
        [
            "SET sql_log_bin = 0",
            f"UPDATE orders_a SET note = 'unlogged {number}' WHERE id % {step} = 0 AND id < {changed * step}",
            f"DELETE FROM orders_a WHERE id % {step} = {1 + number} AND id < {deleted * step}",
            f"INSERT INTO orders_a SELECT {rows + number * TRANSACTION_ROWS} + n, 1, 1, 1, 1, 'new', NULL, '2026-01-01', 1"
            f" FROM numbers WHERE n < {inserted}",
            "SET sql_log_bin = 1",
        ],
    )


def _shares() -> tuple[int, int, int]:
    return DIFFERING // 2, DIFFERING // 4, DIFFERING // 4


def _expected_rows() -> int:
    """Return how many rows are corrected: an update is a before-image and a row."""
    changed, deleted, inserted = _shares()
    return 2 * changed + deleted + inserted


def _table_id(path: OneLogPath, name: str) -> int:
    return next(t.table_id for t in path.upstream.list_tables() if t.table == name)


def _reread(path: OneLogPath, server: Server, session: SparkSession, table: str) -> tuple[float, int]:
    if not has_log(path.upstream):
        raise AssertionError("MariaDB has one log")
    address = FlightAddress(path.context.flight_location, path.context.flight_token)
    job = Reread(JobTasks(SparkJobs(session)), path.store, path.upstream, server.uri, path.log, address, BootstrapSettings(TASKS))
    table_id = _table_id(path, table)
    path.log.doubt_table(table_id, DATABASE, table, "the benchmark says so")
    began_s = time.monotonic()
    settlement = job.run(table_id)
    if settlement is None or not settlement.closed:
        raise AssertionError(f"not settled: {settlement}")
    return time.monotonic() - began_s, settlement.rows


def _lag_s(path: OneLogPath, server: Server) -> float:
    """Return how long a commit to the other table takes until it is resolved in the store."""
    span_id = Span(_table_id(path, "other")).span_id
    began_s = time.monotonic()
    ts = _commit(path, server)
    path.wait_until("the other table's commit", lambda: path.store.resolved_ts(span_id) >= ts)
    return time.monotonic() - began_s


def _commit(path: OneLogPath, server: Server) -> int:
    run_mysql(server.uri, [f"REPLACE INTO other VALUES ({time.monotonic_ns() % 1000}, 'x')"])
    return path.log.settled_ts()


def _lags(path: OneLogPath, server: Server, found: list[float]) -> contextlib.AbstractContextManager[None]:
    """Measure lags, in another thread, while something else is done."""

    def measure(stop: threading.Event) -> None:
        while not stop.is_set():
            with contextlib.suppress(pymysql.MySQLError):
                found.append(_lag_s(path, server))
            stop.wait(0.05)

    return meanwhile(measure)
