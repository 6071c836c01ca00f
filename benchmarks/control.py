"""``make bench NAME=control``: what control of a running feed costs.

Transactions: a feed of eight tables with ``atomicity = "transaction"`` against the same feed without. Filters: a feed with a ``where`` in
Spark SQL that keeps every row, against the same feed without; and one that keeps a tenth of the rows, against the typed way without a
filter, in which all typed rows go through Spark to the process that chooses the same rows and writes the same files. Operators: how long
a pause and a resume take, and lists of many feeds. Each bar is a function of ``benchmarks/rigs``, and all runs of feeds are warm.
"""

from __future__ import annotations

import os

from benchmarks.report import Report, say
from benchmarks.rigs.filtered_feed import filter_bars
from benchmarks.rigs.operated_feeds import halting, listing
from benchmarks.rigs.transaction_feed import transaction_bars
from penstock.feed.spark.session import SparkSettings, open_session

ROWS, ROWS_QUICK, ROWS_WARM = 2_000_000, 400_000, 40_000


def run(quick: bool) -> Report:
    """Run the benchmark at its full or quick size."""
    rows, runs, cores = ROWS_QUICK if quick else ROWS, 2 if quick else 3, os.cpu_count() or 1
    say(f"control: {rows:,} changes of 12-column tables, {cores} cores; best of {runs} runs each, all warm")
    session = open_session(SparkSettings(master=f"local[{cores}]", driver_memory="2g"), "penstock bench control")
    try:
        bars, figures = transaction_bars(session, rows, ROWS_WARM, cores, runs)
        more_bars, more_figures = filter_bars(session, rows, ROWS_WARM, cores, runs)
    finally:
        session.stop()
    halted, listed = halting(quick), listing()
    return Report(
        "control",
        (*bars, *more_bars, *halted.bars, *listed.bars),
        {**figures, **more_figures, **halted.figures, **listed.figures},
    )
