"""Watches a query of a filter, and cancels it where Spark tells no progress of it for too long while its tasks run.

What can be seen to take for ever is refused before (``cost.py``); this is for what depends on rows. Progress is whatever Spark counts of a
query, which executors tell every few seconds: rows and bytes from and to Python. Invariants: a query that waits for its turn is not
cancelled; no other query is. Runs in the driver, one thread for each query.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

from penstock.model.clock import Clock, SystemClock

IDLE_S_MAX = 1_800.0
"""For how long a query may run without progress; a target that hangs is given up earlier by the sink."""
IDLE_READING_S_MAX = 6 * 3_600.0
"""The same where a task first reads back what the target holds."""
LOOK_S = 10.0
"""How often queries are watched."""
_EXECUTIONS_MAX = 50
_numbers = itertools.count(1)


class QueryWatch:
    """Watches what its thread has Spark do between enter and exit."""

    def __init__(self, session: SparkSession, idle_s_max: float, look_s: float = LOOK_S, clock: Clock | None = None) -> None:
        self._session = session
        self._idle_s_max = idle_s_max
        self._look_s = look_s
        self._clock = clock or SystemClock()
        self._tag = f"penstock-filter-{next(_numbers)}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name=self._tag, daemon=True)
        self.cancelled = False
        """Whether the query was cancelled because it did not get on."""

    def __enter__(self) -> Self:
        self._session.sparkContext.addJobTag(self._tag)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(Exception):
            # A JVM that is gone has no tags.
            self._session.sparkContext.removeJobTag(self._tag)

    def _work(self) -> None:
        last, since_s = "", self._clock.monotonic_s()
        # A JVM that is gone says so to whoever waits for the query.
        with contextlib.suppress(Exception):
            while not self._clock.wait(self._stop, self._look_s):
                told, now_s = self._told(), self._clock.monotonic_s()
                if not told or told != last:
                    last, since_s = told, now_s
                elif now_s - since_s >= self._idle_s_max:
                    self.cancelled = True
                    self._session.sparkContext.cancelJobsWithTag(self._tag)
                    return

    def _told(self) -> str:
        """Return what Spark counted of the query so far; empty while no task of it runs."""
        tracker = self._session.sparkContext._jsc.sc().statusTracker()
        jobs = [int(number) for number in tracker.getJobIdsForTag(self._tag)]
        found = [tracker.getJobInfo(number) for number in jobs]
        stages = {int(stage) for info in found if info.isDefined() for stage in info.get().stageIds()}
        running = [tracker.getStageInfo(stage) for stage in sorted(stages)]
        if not any(info.isDefined() and info.get().numActiveTasks() for info in running):
            return ""
        store = self._session._jsparkSession.sharedState().statusStore()
        first = max(0, int(store.executionsCount()) - _EXECUTIONS_MAX)
        executions = store.executionsList(first, _EXECUTIONS_MAX)
        told = [str(sorted(stages))]
        for at in range(executions.length()):
            one = executions.apply(at)
            if any(one.jobs().contains(number) for number in jobs):
                told.append(str(store.executionMetrics(one.executionId()).toString()))
        return " ".join(told)
