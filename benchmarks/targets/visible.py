"""From a commit in MariaDB to a message that a reader of Kafka has, or a body that an HTTP receiver has, at half load.

``penstock run`` delivers one table with ``flush-interval = "100ms"``. The bar is the interval plus four times the wall time of a bare Spark
job with a Python task, measured in a session of its own. Readers see what is committed: a broker of the tests in a process of its own, and
a receiver that notes the time. A part of the bench of targets.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from confluent_kafka import Consumer, TopicPartition

from benchmarks.report import Bar
from benchmarks.rigs.live_feed import TABLE, begin_table, half_load, numbered_server, running_feed, visible_bar
from benchmarks.rigs.source_servers import DATABASE, Server
from testing.servers.loopback import http_server

INTERVAL_S = 0.1
JOBS = 4
BURST_ROWS, BURST_ROWS_QUICK = 200_000, 30_000
PACED_S, PACED_QUICK_S = 30.0, 5.0
_STAMP = re.compile(rb'"stamped":"([0-9]{4}-[^"]+)"')


class Seen:
    """Bytes with rows in them, and when they were there. Thread safe for one who adds."""

    def __init__(self) -> None:
        self.last_s = 0.0
        self._pieces: list[tuple[float, bytes]] = []
        self._rows = 0

    def add(self, content: bytes) -> None:
        """Note what is there now; to look at it takes time, which counts for nobody."""
        now_s = time.time()
        found = len(_STAMP.findall(content))
        if found:
            self.last_s = now_s
            self._pieces.append((now_s, content))
            self._rows += found

    def rows(self) -> int:
        """Return how many rows are there."""
        return self._rows

    def latencies(self, from_s: float) -> npt.NDArray[np.float64]:
        """Return how long each row took that was stamped since then."""
        found = []
        for seen_s, content in self._pieces:
            stamps = pl.Series([text.decode() for text in _STAMP.findall(content)])
            stamped_s = stamps.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us").dt.epoch("us").to_numpy() / 1e6
            found.append(seen_s - stamped_s[stamped_s >= from_s])
        return np.concatenate(found)


def part(quick: bool) -> tuple[list[Bar], dict[str, float | int | str]]:
    """Return the bars and figures of both targets."""
    burst, paced_s = (BURST_ROWS_QUICK, PACED_QUICK_S) if quick else (BURST_ROWS, PACED_S)
    bars: list[Bar] = []
    figures: dict[str, float | int | str] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-visible-") as folder, numbered_server(Path(folder)) as server:
        for name, target in (("Kafka", _kafka), ("HTTP", _http)):
            bar, more = visible_bar(name, INTERVAL_S, JOBS, *measured(Path(folder) / name, server, target, burst, paced_s))
            bars.append(bar)
            figures |= more
    return bars, figures


def measured(
    root: Path, server: Server, target: Callable[[Seen], AbstractContextManager[str]], burst: int, paced_s: float
) -> tuple[float, npt.NDArray[np.float64]]:
    """Return the rows per second of a burst, and how long the rows of the time at half load took."""
    begin_table(server)
    seen, interval = Seen(), {"flush-interval": f"{INTERVAL_S * 1000:.0f}ms"}
    with target(seen) as uri, running_feed(root, server.uri, uri, lambda said: "running" in said, interval):
        return half_load(server, seen, burst, paced_s)


@contextmanager
def _kafka(seen: Seen) -> Iterator[str]:
    command = [sys.executable, "-m", "testing.servers.kafka.broker", "--partitions", "1"]
    stop = threading.Event()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdin is not None
        assert broker.stdout is not None
        address = broker.stdout.readline().strip()
        reader = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "watcher",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "allow.auto.create.topics": True,
            }
        )
        reader.assign([TopicPartition(f"lake.{DATABASE}.{TABLE}", 0, 0)])

        def watch() -> None:
            while not stop.is_set():
                seen.add(b"\n".join(message.value() or b"" for message in reader.consume(1000, 0.02) if message.error() is None))

        watcher = threading.Thread(target=watch, name="kafka-watcher", daemon=True)
        watcher.start()
        try:
            yield f"kafka://{address}/lake"
        finally:
            stop.set()
            watcher.join()
            reader.close()
            broker.stdin.close()


@contextmanager
def _http(seen: Seen) -> Iterator[str]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_HEAD(self) -> None:
            self.send_response(405)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                seen.add(body)
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            pass

    with http_server(Handler) as url:
        yield url.replace("://", "+json://") + "/changes"
