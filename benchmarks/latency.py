"""``make bench NAME=latency``: from a commit in MariaDB to the published file that holds it, at half load.

``penstock run`` delivers one table, with flush intervals of 1 s and of 5 s, one after the other. First rows come as fast as the server
writes them: the rate at which the last of them has its file is what this machine can do, server, writer and Penstock together. Then
rows come at half of that rate, each with the server's clock in it; the clock is read before the commit, so what is measured is a little too
long. A watcher of its own notes when the name of a file appears in the target. Percentiles are over rows, those of the first
flush interval left out.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pymysql

from benchmarks.report import Bar, Report, say
from benchmarks.rigs.source_servers import DATABASE, Server, mariadb, run_mysql
from penstock.model.errors import PenstockError

INTERVALS_S = (1, 5)
BURST_ROWS, BURST_ROWS_QUICK = 2_000_000, 300_000
PACED_S, PACED_QUICK_S = 60.0, 10.0
LOAD = 0.5
SLACK_S = 1.0
TRANSACTION_ROWS = 1_000
_TICK_S = 0.05
_LOOK_S = 0.005
_WAIT_S = 300.0
_TABLE = "stamped"
_COLUMNS = (
    "id BIGINT AUTO_INCREMENT PRIMARY KEY, customer INT NOT NULL, price DECIMAL(12,2), name VARCHAR(64), stamped DATETIME(6) NOT NULL"
)
_ROW = "NULL, n * 7, n + 0.25, CONCAT('item number ', n), SYSDATE(6)"


def run(quick: bool) -> Report:
    """Run the benchmark at its full or quick size."""
    burst, paced_s = (BURST_ROWS_QUICK, PACED_QUICK_S) if quick else (BURST_ROWS, PACED_S)
    bars: list[Bar] = []
    figures: dict[str, float | int | str] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-latency-") as folder:
        root = Path(folder)
        (root / "server").mkdir()
        with mariadb(root / "server") as server:
            say(f"latency: {burst:,} rows at once, then {paced_s:.0f} s at {LOAD} of their rate; flush intervals {INTERVALS_S} s")
            series = f"INSERT INTO numbers SELECT seq FROM seq_0_to_{TRANSACTION_ROWS - 1}"
            run_mysql(server.uri, ["CREATE TABLE numbers (n INT PRIMARY KEY)", series])
            for interval_s in INTERVALS_S:
                rate, latencies = measured(root / str(interval_s), server, interval_s, burst, max(paced_s, 3.0 * interval_s))
                half, high, most = (float(np.quantile(latencies, q)) for q in (0.5, 0.99, 1.0))
                say(f"  {interval_s} s: {rate:,.0f} rows/s at most; at half: median {half:.2f} s, 99 % {high:.2f} s, longest {most:.2f} s")
                bars.append(
                    Bar(f"commit to file, 99th percentile, flush interval {interval_s} s", high, interval_s + SLACK_S, at_least=False)
                )
                figures |= {f"rows_per_s_{interval_s}": round(rate), f"rows_{interval_s}": len(latencies)}
                figures |= {
                    f"p50_s_{interval_s}": round(half, 3),
                    f"p99_s_{interval_s}": round(high, 3),
                    f"max_s_{interval_s}": round(most, 3),
                }
    return Report("latency", tuple(bars), figures)


def measured(root: Path, server: Server, interval_s: int, burst: int, paced_s: float) -> tuple[float, npt.NDArray[np.float64]]:
    """Return the rows per second of a burst, and how long the rows of the time at half load took."""
    root.mkdir()
    run_mysql(server.uri, [f"DROP TABLE IF EXISTS {_TABLE}", f"CREATE TABLE {_TABLE} ({_COLUMNS})"])
    with feed(root, server, interval_s) as watcher:
        began_s = time.time()
        insert(server, burst // TRANSACTION_ROWS)
        watcher.until_rows(burst)
        rate = burst / (watcher.last_s - began_s)
        start_s = time.time()
        rows = burst + insert(server, None, rate * LOAD, paced_s)
        watcher.until_rows(rows)
        return rate, watcher.latencies(start_s + interval_s)


def insert(server: Server, transactions: int | None, rate: float = 0.0, seconds: float = 0.0) -> int:
    """Insert rows: so many transactions at once, or at a rate for a while; return how many rows."""
    done, began_s = 0, time.perf_counter()
    with contextlib.closing(_connect(server)) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        for _ in range(transactions or 0):
            cursor.execute(f"INSERT INTO {_TABLE} SELECT {_ROW} FROM numbers")
            done += TRANSACTION_ROWS
        while (passed_s := time.perf_counter() - began_s) < seconds:
            due = min(int(passed_s * rate) - done, TRANSACTION_ROWS)
            if due > 0:
                cursor.execute(f"INSERT INTO {_TABLE} SELECT {_ROW} FROM numbers WHERE n < {due}")
                done += due
            if due < TRANSACTION_ROWS:
                time.sleep(_TICK_S)
    return done


def _connect(server: Server) -> pymysql.Connection[pymysql.cursors.Cursor]:
    return pymysql.connect(host="127.0.0.1", port=server.port, user="penstock", database=DATABASE, autocommit=True)


class TargetWatcher:
    """Notes when files appear in a target. Knows nothing of what writes them."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._seen: dict[Path, float] = {}
        self._rows: dict[Path, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="target-watcher", daemon=True)
        self._thread.start()

    @property
    def last_s(self) -> float:
        """Return when the last file appeared."""
        return max(self._seen.values())

    def until_rows(self, rows: int) -> None:
        """Wait until the files hold so many rows."""
        deadline_s = time.perf_counter() + _WAIT_S
        while True:
            for path in list(self._seen):
                if path not in self._rows:
                    self._rows[path] = path.read_bytes().count(b"\n")
            if sum(self._rows.values()) >= rows:
                return
            if time.perf_counter() > deadline_s:
                raise PenstockError("FEED_FAILED", f"{sum(self._rows.values()):,} of {rows:,} rows came")
            time.sleep(_TICK_S)

    def latencies(self, from_s: float) -> npt.NDArray[np.float64]:
        """Return how long each row that was stamped since then took until its file appeared."""
        found = []
        for path, seen_s in self._seen.items():
            stamps = pl.read_csv(path, has_header=False, try_parse_dates=False, infer_schema_length=0).to_series(-1)
            stamped_s = stamps.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us").dt.epoch("us").to_numpy() / 1e6
            found.append(seen_s - stamped_s[stamped_s >= from_s])
        return np.concatenate(found)

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_S):
            now_s, folders = time.time(), [str(self._target)]
            while folders:
                # A folder may not be there yet.
                with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
                    for entry in entries:
                        if entry.is_dir():
                            folders.append(entry.path)
                        elif entry.name.endswith(".csv"):
                            self._seen.setdefault(Path(entry.path), now_s)


@contextlib.contextmanager
def feed(root: Path, server: Server, interval_s: int) -> Iterator[TargetWatcher]:
    """Run ``penstock run`` on the table until its first checkpoint is published; give a watcher of its target."""
    target = root / "files"
    watcher = TargetWatcher(target)
    command: Sequence[str] = [
        *(sys.executable, "-m", "penstock", "run", "--source", server.uri, "--table", f"{DATABASE}.{_TABLE}"),
        *("--sink", target.as_uri(), "--data-dir", str(root / "data"), "--set", f"flush-interval={interval_s}s"),
    ]
    with (root / "run.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline_s = time.perf_counter() + _WAIT_S
            while not (target / "metadata").exists():
                if process.poll() is not None or time.perf_counter() > deadline_s:
                    raise PenstockError("FEED_FAILED", (root / "run.log").read_text(encoding="utf-8")[-2_000:])
                time.sleep(_TICK_S)
            yield watcher
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            watcher.close()
