"""``EXPLAIN CHANGEFEED``: how a feed is, or would be, delivered: its tables and columns, how they are divided, how many tasks run at once.

Nothing is changed and no target is asked. Invariant: no credentials. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.config.tree import FeedConfig
from penstock.ddl.compose import full_type
from penstock.feed.window.assignment import Dispatcher
from penstock.feed.window.following import from_record
from penstock.meta.database import MetaDatabase
from penstock.model.table import TableSchema
from penstock.server.feeds.creation import FeedCreator, FeedDocument, FeedPlan
from penstock.settings.masking import mask_uri
from penstock.sink.catalog import settings_of


class Explainer:
    """Explains feeds. Thread safe."""

    def __init__(self, meta: MetaDatabase, creator: FeedCreator, parallelism: Callable[[], int]) -> None:
        """``parallelism`` is how many tasks the server's Spark runs at once."""
        self._meta = meta
        self._creator = creator
        self._parallelism = parallelism

    def of_creation(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return how a feed would be delivered that does not exist."""
        return self._explained(self._creator.plan(tree))

    def of_feed(self, name: str) -> dict[str, Any]:
        """Return how a feed is delivered."""
        document = FeedDocument.of(self._meta.get_feed(name))
        live = self._meta.dispatchers(name)
        dispatchers = document.dispatchers if live is None else tuple(map(from_record, live))
        return self._explained(self._creator.plan_of(document, dispatchers))

    def _explained(self, plan: FeedPlan) -> dict[str, Any]:
        config, settings = plan.config, plan.config.settings
        sink = settings_of(config.target.uri, config.target.options)[1]
        tasks = min(len(plan.dispatchers), settings.partitions or max(1, self._parallelism()))
        return {
            "name": config.name,
            "source": mask_uri(plan.source),
            "sink": mask_uri(config.target.uri),
            "protocol": sink.format_name,
            "dispatchers": len(plan.dispatchers),
            "tasks_at_once": tasks,
            "plan": _steps(plan, config, tasks, sink.format_name),
            "tables": [_table(table, plan.dispatchers) for table in _whole(plan.tables)],
        }


def _steps(plan: FeedPlan, config: FeedConfig, tasks: int, form: str) -> list[str]:
    settings = config.settings
    if settings.start_ts:
        begins = f"begin with the changes after ts {settings.start_ts}"
    else:
        begins = (
            f"read the state with {settings.bootstrap_tasks} Spark tasks" if plan.reads_by_job else "take the state from the change stream"
        )
    ends = [f"end at ts {settings.until_ts}"] if settings.until_ts else []
    return [
        f"capture {len(plan.dispatchers)} spans of {len(_whole(plan.tables))} tables into the event store",
        begins,
        f"every {settings.flush_interval_s:g} s, or at {settings.window_bytes_max:,} bytes: one window, at most {tasks} tasks at once",
        f"deliver them to the target as {form}, commit progress, publish the checkpoint",
        *ends,
    ]


def _whole(tables: Sequence[TableSchema]) -> list[TableSchema]:
    """Return tables, of partitions one for all."""
    return list({table.full_name: table for table in tables}.values())


def _table(table: TableSchema, dispatchers: Sequence[Dispatcher]) -> dict[str, Any]:
    keys = {column.id for column in table.handle_columns}
    return {
        "name": table.full_name,
        "dispatchers": sum((d.schema, d.table) == (table.schema, table.table) for d in dispatchers),
        "columns": [
            {"name": column.name, "type": full_type(column.type), "nullable": column.nullable, "key": column.id in keys}
            for column in table.columns
        ],
    }
