"""What is asked of a feed's filter before it may hold: every expression fits its tables, and nothing makes files unreadable.

Runs in the server.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.feed.filters.rules import FilterSettings
from penstock.feed.filters.views import BROKEN, FeedViews, Viewer
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.model.table_pattern import TablePatterns
from penstock.settings.loader import Problems


def check_filter(settings: FilterSettings, tables: Sequence[TableSchema], viewer: Viewer | None) -> None:
    """Raise ``CONFIG_INVALID`` with every rule that matches no table, and every expression that a table does not have."""
    problems, views = Problems(), FeedViews(settings, viewer)
    for at, rule in enumerate(settings.rules):
        if not any(TablePatterns(rule.tables).match(t.schema, t.table) for t in tables):
            problems.add(f"filter.rules[{at}].tables", "match no table of the feed")
    for table in tables:
        try:
            views.sql_view(table)
        except PenstockError as error:
            if error.code != BROKEN:
                raise
            mine = settings.rule(table.schema, table.table)
            at = next(at for at, one in enumerate(settings.rules) if one is mine)
            problems.add(f"filter.rules[{at}]", error.detail)
    problems.raise_if_any()


def check_columns_stay(
    before: FilterSettings,
    after: FilterSettings,
    tables: Sequence[TableSchema],
    stopped: Collection[int] = (),
    viewer: Viewer | None = None,
) -> None:
    """Raise where a table would have other columns, or another meaning, in files that are there.

    A table that is stopped, by its id, may get other expressions for the columns that it has; any, where it has no files as it is now.
    """
    problems, views = Problems(), [FeedViews(s, viewer) for s in (before, after)]
    if (before.events, before.ddl) != (after.events, after.ddl):
        problems.add("filter", "events and ddl stay: the target would hold what it was not told, or lack what it was")
    for table in tables:
        old, new = (s.rule(table.schema, table.table) for s in (before, after))
        shapes = [(r.select, r.join, r.key, r.columns, r.events) if r is not None else ("", "", (), (), ()) for r in (old, new)]
        mended = table.table_id in stopped and shapes[0][-1] == shapes[1][-1]
        mended = mended and (bool(views[0].problem(table)) or views[0].shown(table) == views[1].shown(table))
        if shapes[0] != shapes[1] and not mended:
            problems.add(
                "filter.rules", f"{table.full_name} would have other columns in files that are read by those it has; only where may change"
            )
    try:
        problems.raise_if_any()
    except PenstockError as error:
        raise PenstockError(error.code, error.detail, "Use `penstock feed clone` to have it in a target of its own.") from None
