"""``make bench NAME=latency``: from a commit in MariaDB to the published file that holds it, at half load.

``penstock run`` delivers one table, with flush intervals of 1 s and of 5 s, one after the other. A watcher of its own notes when the name
of a file appears in the target. Percentiles are over rows, those of the first second left out.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks.report import Bar, Report, say
from benchmarks.rigs.live_feed import LOAD, begin_table, half_load, numbered_server, running_feed
from benchmarks.rigs.source_servers import Server

INTERVALS_S = (1, 5)
BURST_ROWS, BURST_ROWS_QUICK = 2_000_000, 300_000
PACED_S, PACED_QUICK_S = 60.0, 10.0
SLACK_S = 1.0
_LOOK_S = 0.005


def run(quick: bool) -> Report:
    """Run the benchmark at its full or quick size."""
    burst, paced_s = (BURST_ROWS_QUICK, PACED_QUICK_S) if quick else (BURST_ROWS, PACED_S)
    bars: list[Bar] = []
    figures: dict[str, float | int | str] = {}
    say(f"latency: {burst:,} rows at once, then {paced_s:.0f} s at {LOAD} of their rate; flush intervals {INTERVALS_S} s")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-latency-") as folder, numbered_server(Path(folder)) as server:
        for interval_s in INTERVALS_S:
            rate, latencies = measured(Path(folder) / str(interval_s), server, interval_s, burst, max(paced_s, 3.0 * interval_s))
            half, high, most = (float(np.quantile(latencies, q)) for q in (0.5, 0.99, 1.0))
            say(f"  {interval_s} s: {rate:,.0f} rows/s at most; at half: median {half:.2f} s, 99 % {high:.2f} s, longest {most:.2f} s")
            bars.append(Bar(f"commit to file, 99th percentile, flush interval {interval_s} s", high, interval_s + SLACK_S, at_least=False))
            figures |= {f"rows_per_s_{interval_s}": round(rate), f"rows_{interval_s}": len(latencies)}
            figures |= {
                f"p50_s_{interval_s}": round(half, 3),
                f"p99_s_{interval_s}": round(high, 3),
                f"max_s_{interval_s}": round(most, 3),
            }
    return Report("latency", tuple(bars), figures)


def measured(root: Path, server: Server, interval_s: int, burst: int, paced_s: float) -> tuple[float, npt.NDArray[np.float64]]:
    """Return the rows per second of a burst, and how long the rows of the time at half load took."""
    begin_table(server)
    settings, files = {"flush-interval": f"{interval_s}s"}, root / "files"
    with (
        contextlib.closing(TargetWatcher(files)) as watcher,
        running_feed(root, server.uri, files.as_uri(), lambda _: (files / "metadata").exists(), settings),
    ):
        return half_load(server, watcher, burst, paced_s)


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

    def rows(self) -> int:
        """Return how many rows the files hold."""
        for path in list(self._seen):
            if path not in self._rows:
                self._rows[path] = path.read_bytes().count(b"\n")
        return sum(self._rows.values())

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
