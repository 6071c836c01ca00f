"""Which tables a feed begins with: those that match when the log of its source has begun, not when the feed was created.

A feed lists its tables when it is created; the log may begin later, when the feed runs for the first time. What was made, dropped or
renamed in between stands in no log that anyone reads. So the tables are listed once more behind the log's beginning, until the first
window is on record: from then on the log tells. Runs in the server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from penstock.feed.window.assignment import Dispatcher, FeedContext, assign_dispatchers
from penstock.feed.window.following import first_dispatchers, live_dispatchers, to_record
from penstock.meta.database import MetaDatabase
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.source.contract import Upstream
from penstock.source.single_log import has_log

log = logging.getLogger(__name__)


def begin_with_tables_of_now(
    context: FeedContext, meta: MetaDatabase, upstream: Upstream, settled_ts: Callable[[], int]
) -> tuple[Dispatcher, ...]:
    """Return the dispatchers of a feed; those of one that has not begun are made to be those of the tables that there are.

    ``settled_ts`` returns once the log is read up to its end.
    """
    dispatchers = live_dispatchers(context, meta)
    has_begun = meta.checkpoint_ts(context.feed) != TS_ZERO or meta.pending_window(context.feed) is not None
    if has_begun or not has_log(upstream) or context.snapshot_ts != TS_ZERO or context.settings.start_ts != TS_ZERO:
        return dispatchers
    # Whatever comes behind this is told.
    settled_ts()
    listed = {t.table_id: t for t in upstream.list_tables()}
    tables = {i: t for i, t in listed.items() if context.patterns.match(t.schema, t.table)}
    kept = [_named(d, tables[d.id.table_id]) for d in dispatchers if d.id.table_id in tables]
    # Of those that are not there under their id, the log tells what became of them, if it ever knew them.
    kept += [d for d in dispatchers if d.id.table_id not in listed and _is_known(upstream, d.id.table_id)]
    missing = [t for i, t in tables.items() if i not in {d.id.table_id for d in dispatchers}]
    fresh = assign_dispatchers(missing, upstream, context.settings.spans_per_table)
    after = first_dispatchers(sorted([*kept, *fresh], key=lambda d: d.id))
    if after == dispatchers:
        return dispatchers
    log.info("the tables of a feed changed before it began", extra={"feed": context.feed, "tables": len(missing)})
    meta.replace_first_dispatchers(context.feed, context.epoch, [to_record(d) for d in after])
    return after


def _named(dispatcher: Dispatcher, table: TableSchema) -> Dispatcher:
    return msgspec.structs.replace(dispatcher, schema=table.schema, table=table.table)


def _is_known(upstream: Upstream, table_id: int) -> bool:
    """Return whether a table has a history."""
    try:
        return bool(upstream.schema_history(table_id))
    except PenstockError as error:
        if error.code != "TABLE_UNKNOWN":
            raise
        return False
