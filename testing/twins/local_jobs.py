"""Jobs in this process, one task after the other. Runs in tests."""

from __future__ import annotations

import threading

from penstock.feed.filters.row_queries import RowQueries
from penstock.feed.spark.jobs import Job, attempt, sorted_out
from penstock.model.errors import PenstockError


class LocalJobs:
    """``Jobs`` without Spark. A group that was cancelled stays so; ``done`` lists what was run."""

    def __init__(self, parallelism: int = 2, queries: RowQueries | None = None) -> None:
        self.parallelism = parallelism
        self.queries = queries
        self.done: list[Job] = []
        self._lock = threading.Lock()
        self._cancelled: set[str] = set()

    def run(self, job: Job) -> list[bytes]:
        """Do a job's tasks."""
        answers: list[bytes | PenstockError] = []
        for task in job.tasks:
            with self._lock:
                if job.group in self._cancelled:
                    raise PenstockError("CANCELLED", "the job was cancelled")
            answers.extend(attempt(job.work, 1, [task]))
        with self._lock:
            self.done.append(job)
        return sorted_out(answers)

    def cancel(self, group: str) -> None:
        """End a group's jobs before their next task, and refuse those that come later."""
        with self._lock:
            self._cancelled.add(group)
