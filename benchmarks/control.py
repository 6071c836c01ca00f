"""``make bench NAME=control``: what control of a running feed costs.

Filters: a feed with a ``where`` in Spark SQL that keeps every row, against the same feed without; and one that keeps a tenth of the rows,
against the typed way without a filter, in which all typed rows go through Spark to the process that chooses the same rows and writes the
same files. Each bar is a function of ``benchmarks/rigs``, and all runs are warm.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from benchmarks.feed import fill
from benchmarks.report import Report, say
from benchmarks.rigs.filtered_feed import FilterArena, tenth_bar, where_bar
from penstock.feed.spark.session import SparkSettings, open_session
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.server import FlightService

ROWS, ROWS_QUICK, ROWS_WARM = 2_000_000, 400_000, 50_000


def run(quick: bool) -> Report:
    """Run the benchmark at its full or quick size."""
    rows, cores = ROWS_QUICK if quick else ROWS, os.cpu_count() or 1
    runs = 2 if quick else 3
    say(f"control: {rows:,} changes of a 12-column table, {cores} cores; best of {runs} runs each, all warm")
    root = Path(tempfile.mkdtemp(prefix="penstock-bench-control-"))
    session = open_session(SparkSettings(master=f"local[{cores}]", driver_memory="2g"), "penstock bench control")
    arenas = []
    try:
        for size in (ROWS_WARM, rows):
            store = ColumnarEventStore(root / str(size) / "store")
            arenas.append(FilterArena(root / str(size), size, store, FlightService(store), fill(store, size, cores), runs))
        where, tenth = where_bar(session, *arenas), tenth_bar(session, *arenas)
    finally:
        session.stop()
        for arena in arenas:
            arena.flight.close()
            arena.store.close()
        shutil.rmtree(root, ignore_errors=True)
    return Report("control", (where.bar, tenth.bar), {"rows": rows} | where.figures | tenth.figures)
