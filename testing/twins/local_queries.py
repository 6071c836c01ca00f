"""Row queries in this process, without Spark: a ``where`` keeps rows whose text does not contain it. Runs in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.feed.filters.query_task import CHECK, PLACE
from penstock.feed.filters.row_queries import QueryJob
from penstock.feed.filters.rules import FilterRule
from penstock.feed.filters.views import TableView
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema


class LocalQueries:
    """``RowQueries`` over tables with a text column ``v``. ``fails`` says of a ``where`` and a text whether its evaluation fails."""

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
