"""``make bench NAME=shared_storage``: what a takeover costs where the event store's objects are on shared storage.

A feed captures a log of MariaDB into a store whose objects lie in a directory that outlives the machine. A load of 40 parts is written
and captured; the store is shared after each of them but the last, as the clock would every minute of 40. Then the machine is lost, as by
``kill -9`` with its disk, at the worst moment: just before it shares again. A server with an empty disk goes on. Counted are the bytes of
changes that the reader of the log gave to both: what the second was given up to where the first had been is pulled again. The files must
hold exactly the table in the end.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Bar, Report, say
from benchmarks.rigs.source_servers import DATABASE, Server, mariadb, run_mysql
from penstock.model.batch import ChangeBatch
from penstock.puller.logged.settings import SingleLogPullerSettings
from penstock.store.event_store import ColumnarEventStore
from testing.paths.one_log_path import OneLogPath

ROWS, ROWS_QUICK = 2_000_000, 200_000
PARTS = 40
TABLE = "steady"


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
    rows = ROWS_QUICK if quick else ROWS
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-shared-"))
    try:
        (root / "server").mkdir()
        (root / "path").mkdir()
        with mariadb(root / "server") as server:
            run_mysql(server.uri, [f"CREATE TABLE {TABLE} (id BIGINT PRIMARY KEY, note VARCHAR(40), amount INT)"])
            path = OneLogPath(root / "path", server.uri, [f"{DATABASE}.{TABLE}"], shared=root / "shared")
            with contextlib.closing(path):
                return _measure(path, server, rows)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _measure(path: OneLogPath, server: Server, rows: int) -> Report:
    path.begin()
    span_id = path.dispatchers[0].span.span_id
    sharing = path.store._sharing
    if sharing is None:
        raise AssertionError("the store is not shared")
    first = _Given(path.store)
    say(f"MariaDB: {rows:,} rows in {PARTS} parts, shared after each but the last, then the machine is lost")
    for part in range(PARTS):
        if part:
            sharing.share()
            # Parts stand for minutes, so each is journaled: the journal writes a position at most once in its interval.
            time.sleep(1.1 * SingleLogPullerSettings().journal_interval_s)
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
    return Report("shared_storage", bars, figures)
