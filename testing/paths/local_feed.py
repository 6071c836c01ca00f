"""A feed without Spark: the same planner, reader, sink and commit, called one after the other in this process.

For tests of the whole path that need no JVM. A crash is a window that is not committed, or a feed that is opened again. Runs in tests.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from contextlib import closing

import msgspec

from penstock.feed.spark.jobs import Jobs
from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.planner import WindowPlanner
from penstock.feed.window.window_job import WindowJobs
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from testing.twins.local_jobs import LocalJobs

_PAUSE_S = 0.02


class LocalFeed:
    """Runs one window at a time."""

    def __init__(self, context: FeedContext, before_window: Callable[[], None] = lambda: None, jobs: Jobs | None = None) -> None:
        """``before_window`` is called before each window is planned: there a test captures the spans of tables that came."""
        self._before_window = before_window
        self._jobs = jobs or LocalJobs()
        # Windows are run by hand, so one is always due.
        self._planned = msgspec.structs.replace(context, settings=dataclasses.replace(context.settings, flush_interval_s=0.0))

    def checkpoint_ts(self) -> int:
        """Return the committed checkpoint."""
        with closing(WindowPlanner.open(self._planned)) as planner:
            return planner.checkpoint_ts()

    def drain(self, until_ts: int, timeout_s: float) -> None:
        """Run windows until the checkpoint is at or beyond a ts."""
        clock, pause = SystemClock(), threading.Event()
        deadline_s = clock.monotonic_s() + timeout_s
        while self.checkpoint_ts() < until_ts:
            if clock.monotonic_s() > deadline_s:
                raise PenstockError("FEED_FAILED", f"the checkpoint did not reach {until_ts} within {timeout_s} s")
            if not self.run_window():
                pause.wait(_PAUSE_S)

    def run_window(self, *, commit: bool = True) -> bool:
        """Plan, read and write one window, and commit it unless told to crash before that; return whether there was one."""
        self._before_window()
        with closing(WindowPlanner.open(self._planned)) as planner:
            windows = WindowJobs(self._planned, planner, self._jobs)
            window = windows.plan()
            if window is None:
                return False
            parts = windows.deliver(window)
            if commit:
                windows.commit(window, parts)
        return True
