"""One window: planned and recorded, delivered by a job, committed.

The three steps are apart so that whoever drives them can end between them; a window that was recorded and not committed is planned again
with the same end, and delivers the same files. Only this run's windows are here, one at a time. A window in which no dispatcher has work
needs no job. Runs in the driver; what a task does, in ``feed/window/delivery.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.feed.filters.views import FeedViews
from penstock.feed.filters.window_queries import apart, queries_of, query_jobs, run_all
from penstock.feed.spark.jobs import WINDOWS_POOL, Job, Jobs
from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.barrier import commit_recorded_window
from penstock.feed.window.delivery import WindowPart, WindowTask, deliver_part
from penstock.feed.window.packing import PlannedPartition
from penstock.feed.window.planner import WindowPlanner
from penstock.model.decoding import decoded

_NAMES_SHOWN = 3


@dataclass(frozen=True)
class PlannedWindow:
    """A window on record: ``(from_ts, to_ts]``, and its work, one part for each task."""

    from_ts: int
    to_ts: int
    parts: Sequence[PlannedPartition]


class WindowJobs:
    """Does the windows of one run of a feed. One thread."""

    def __init__(self, context: FeedContext, planner: WindowPlanner, jobs: Jobs) -> None:
        self._context = context
        # Which dispatchers there are is the planner's business, and there may be thousands.
        self._told = msgspec.structs.replace(context, dispatchers=(), tables=())
        self._planner = planner
        self._jobs = jobs
        self.views = FeedViews(context.settings.filter, queries_of(jobs) if context.settings.filter.is_sql else None)
        planner.use_views(self.views)
        self._from_ts: int | None = None

    @staticmethod
    def group(context: FeedContext) -> str:
        """Return the group that the jobs of a run are cancelled by: no other run has it, nor another server's."""
        return f"penstock feed {context.feed} epoch {context.epoch}"

    def plan(self) -> PlannedWindow | None:
        """Plan the next window, or find the one on record; None while there is nothing to do."""
        if self._from_ts is None:
            self._from_ts = self._planner.checkpoint_ts()
        to_ts = self._planner.next_window_end(self._from_ts)
        if to_ts == self._from_ts:
            return None
        return PlannedWindow(self._from_ts, to_ts, self._planner.partitions(self._from_ts, to_ts))

    def deliver(self, window: PlannedWindow) -> list[WindowPart]:
        """Have a window delivered; everything of it is durable in the target when this returns.

        Tables whose filter fails leave the window, which is recorded before the others are committed.
        """
        group = self.group(self._context)
        plain, filtered = apart(window.parts, self._context.settings.filter)
        tasks = [msgspec.json.encode(WindowTask(self._told, part)) for part in plain]
        # One that fills the cluster more than once takes turns with all others, which have theirs as they come.
        pool = WINDOWS_POOL if len(tasks) <= self._jobs.parallelism else f"{WINDOWS_POOL} {self._context.feed}"
        job = Job(group, pool, self._describe(window), deliver_part, tasks)
        if filtered:
            queries, broken = query_jobs(self._told, self.views, filtered, group, pool, self._describe(window))
            answers, failed = run_all(self._jobs, job, queries)
            if broken or failed:
                self._planner.leave_out(window.from_ts, window.to_ts, broken | failed)
        else:
            answers = self._jobs.run(job) if tasks else []
        return [decoded(answer, WindowPart) for answer in answers]

    def commit(self, window: PlannedWindow, parts: Sequence[WindowPart]) -> None:
        """Commit a window that was delivered, and publish its checkpoint."""
        results = [result for part in parts for result in part.results]
        reports = [part.report for part in parts]
        followers = commit_recorded_window(
            self._context, window.to_ts, results, reports, self._planner.dispatchers(window.from_ts), self.views
        )
        self._planner.note_committed(window.to_ts, followers)
        self._from_ts = window.to_ts

    def _describe(self, window: PlannedWindow) -> str:
        names = sorted({item.work.table.full_name for part in window.parts for item in part.items})
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
        nbytes = sum(part.nbytes for part in window.parts)
        return f"feed {self._context.feed}, window ({window.from_ts}, {window.to_ts}]: {len(names)} tables ({shown}), {nbytes:,} bytes"
