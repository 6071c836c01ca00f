"""The part of a window that goes through Spark SQL: one query for each table whose rows are filtered, beside the plain job.

A feed without expressions does not come here, and nothing of Spark SQL is imported for it. Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from penstock.feed.filters.rules import FilterSettings
from penstock.feed.filters.views import FeedViews
from penstock.feed.spark.jobs import Job, Jobs, Querying
from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.packing import PlannedPartition, WorkItem
from penstock.model.errors import InvariantError, PenstockError

if TYPE_CHECKING:
    from penstock.feed.filters.row_queries import QueryJob, RowQueries

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


def query_job(told: FeedContext, views: FeedViews, items: Sequence[WorkItem], group: str, pool: str, description: str) -> QueryJob:
    """Return the query of one table, one task for each of its dispatchers. Raises ``FILTER_BROKEN``."""
    from penstock.feed.filters.query_task import QueryTask, deliver_kept, read_typed
    from penstock.feed.filters.row_queries import QueryJob

    table = items[0].work.table
    rule, view = views.settings.sql_rule(table.schema, table.table), views.sql_view(table)
    if rule is None or view is None:
        raise InvariantError(f"{table.full_name} has no expressions")
    shown = [msgspec.structs.replace(item, work=msgspec.structs.replace(item.work, table=view.shown)) for item in items]
    tasks = [msgspec.json.encode(QueryTask(told, item, view)) for item in shown]
    return QueryJob(group, pool, f"{description}: {table.full_name} filtered", view, rule, tasks, read_typed, deliver_kept)


def run_all(jobs: Jobs, plain: Job, queries: Sequence[QueryJob]) -> list[bytes]:
    """Run a job and the queries beside it; return all answers. Of several errors the first is raised, once all have ended."""
    evaluates = queries_of(jobs)
    if evaluates is None:
        raise PenstockError("CONFIG_INVALID", f"{queries[0].view.base.full_name}: there is no Spark here that could evaluate its filter")
    with ThreadPoolExecutor(min(_QUERIES_MAX, len(queries)) + 1) as pool:
        running = [pool.submit(jobs.run, plain)] if plain.tasks else []
        running += [pool.submit(evaluates.run, query) for query in queries]
        return [answer for one in running for answer in one.result()]
