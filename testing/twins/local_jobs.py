"""Jobs and row queries in this process, one task after the other, without Spark. Runs in tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.feed.filters.query_task import CHECK, PLACE
from penstock.feed.filters.row_queries import QueryJob, RowQueries
from penstock.feed.filters.rules import FilterRule
from penstock.feed.filters.views import TableView
from penstock.feed.spark.jobs import Job, attempt, sorted_out
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema


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


class LocalQueries:
    """``RowQueries`` over tables with a text column ``v``, of which a ``where`` keeps those that do not contain it.

    ``fails`` says of a ``where`` and a text whether its evaluation fails.
    """

    def __init__(self, fails: Callable[[str, str], bool] = lambda where, text: False) -> None:
        self.fails = fails
        self.broken: set[str] = set()
        """Conditions that fit no table."""

    def view(self, table: TableSchema, rule: FilterRule) -> TableView:
        """Show a table as it is."""
        text = next((c for c in table.columns if c.name == "v"), None)
        if text is None or rule.where in self.broken:
            raise PenstockError("FILTER_BROKEN", f"{table.full_name}: where: does not fit; in where = {rule.where!r}")
        return TableView(table, table, (text.id,))

    def run(self, job: QueryJob) -> list[bytes]:
        """Do the tasks one after the other."""
        return [job.deliver(task, part, self._kept(job, job.read(task, part))) for part, task in enumerate(job.tasks)]

    def _kept(self, job: QueryJob, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = batch.column("v")
            if any(self.fails(job.rule.where, str(text)) for text in texts.to_pylist()):
                raise PenstockError(
                    "FILTER_FAILED", f"{job.view.base.full_name}: [A_ROW] while rows were filtered; where = {job.rule.where!r}"
                )
            yield batch.filter(pc.invert(pc.match_substring(texts, job.rule.where))).select([PLACE, CHECK])
