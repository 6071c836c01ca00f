"""The part of a window that goes through Spark SQL: one query for each table whose rows are filtered, beside the plain job.

A feed without expressions does not come here, and nothing of Spark SQL is imported for it. Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from penstock.feed.filters.rules import FilterSettings
from penstock.feed.filters.views import BROKEN, FeedViews
from penstock.feed.spark.jobs import Job, Jobs, Querying
from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.packing import PlannedPartition, WorkItem
from penstock.model.errors import InvariantError, PenstockError

if TYPE_CHECKING:
    from penstock.feed.filters.row_queries import QueryJob, RowQueries

OF_THE_TABLE = frozenset({BROKEN, "FILTER_FAILED"})
"""Errors that stop their table only."""
_QUERIES_MAX = 4
"""How many tables of a window go through Spark SQL at once."""


def queries_of(jobs: Jobs) -> RowQueries | None:
    """Return what evaluates expressions beside some jobs, None where nothing can."""
    return jobs.queries if isinstance(jobs, Querying) else None


def apart(parts: Sequence[PlannedPartition], settings: FilterSettings) -> tuple[Sequence[PlannedPartition], list[list[WorkItem]]]:
    """Return the work of a window that needs no Spark SQL, and that of each table that does."""
    if not settings.is_sql:
        return parts, []
    plain: list[PlannedPartition] = []
    tables: dict[int, list[WorkItem]] = {}
    for part in parts:
        kept = []
        for item in part.items:
            if settings.sql_rule(item.work.table.schema, item.work.table.table) is None:
                kept.append(item)
            else:
                tables.setdefault(item.work.dispatcher.table_id, []).append(item)
        if kept:
            plain.append(msgspec.structs.replace(part, items=tuple(kept)))
    return plain, list(tables.values())


def query_jobs(
    told: FeedContext, views: FeedViews, tables: Sequence[Sequence[WorkItem]], group: str, pool: str, description: str
) -> tuple[list[QueryJob], dict[int, PenstockError]]:
    """Return the query of each table, and the tables that their filter does not fit."""
    found, failed = [], {}
    for items in tables:
        try:
            found.append(_query_job(told, views, items, group, pool, description))
        except PenstockError as error:
            if error.code not in OF_THE_TABLE:
                raise
            failed[items[0].work.dispatcher.table_id] = error
    return found, failed


def _query_job(told: FeedContext, views: FeedViews, items: Sequence[WorkItem], group: str, pool: str, description: str) -> QueryJob:
    """Return the query of one table, one task for each of its dispatchers. Raises ``FILTER_BROKEN``."""
    from penstock.feed.filters.query_task import QueryTask, deliver_kept, read_typed
    from penstock.feed.filters.query_watch import IDLE_READING_S_MAX, IDLE_S_MAX
    from penstock.feed.filters.row_queries import QueryJob

    table = items[0].work.table
    rule, view = views.settings.sql_rule(table.schema, table.table), views.sql_view(table)
    if rule is None or view is None:
        raise InvariantError(f"{table.full_name} has no expressions")
    shown = [msgspec.structs.replace(item, work=msgspec.structs.replace(item.work, table=view.shown)) for item in items]
    tasks = [msgspec.json.encode(QueryTask(told, item, view)) for item in shown]
    idle_s = IDLE_S_MAX if all(item.difference_nbytes is None for item in items) else IDLE_READING_S_MAX
    return QueryJob(group, pool, f"{description}: {table.full_name} filtered", view, rule, tasks, read_typed, deliver_kept, idle_s)


def run_all(jobs: Jobs, plain: Job, queries: Sequence[QueryJob]) -> tuple[list[bytes], dict[int, PenstockError]]:
    """Run a job and the queries beside it; return all answers, and the tables whose filter failed. Ends when everything has.

    Of several other errors the first is raised.
    """
    evaluates = queries_of(jobs)
    if evaluates is None:
        raise PenstockError("CONFIG_INVALID", f"{queries[0].view.base.full_name}: there is no Spark here that could evaluate its filter")
    with ThreadPoolExecutor(min(_QUERIES_MAX, len(queries)) + 1) as pool:
        others = [pool.submit(jobs.run, plain)] if plain.tasks else []
        running = [(query.view.base.table_id, pool.submit(evaluates.run, query)) for query in queries]
    answers = [answer for one in others for answer in one.result()]
    failed: dict[int, PenstockError] = {}
    for table_id, one in running:
        error = one.exception()
        if isinstance(error, PenstockError) and error.code in OF_THE_TABLE:
            failed[table_id] = error
        else:
            answers += one.result()
    return answers, failed
