"""How the tables of a feed are shown: by the API, and through it by the command line.

A table is ``ok`` unless the log service has a doubt about it. Partitions share their table's name; the worst of their states is shown. Runs
in the server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from penstock.feed.bootstrap.bootstrap import BootstrapProgress
from penstock.feed.window.assignment import Dispatcher
from penstock.feed.window.coverage import DELIVERING, STOPPED
from penstock.meta.records import Counted, DispatcherRecord, FeedRecord, RangeProgress, SubscribeRecord, TableProgress
from penstock.meta.table_states import TableCondition, TableState
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.table_pattern import TablePatterns
from penstock.model.timestamp import lag_seconds
from penstock.settings.masking import mask_text

_WORST_FIRST = (TableCondition.QUARANTINED, TableCondition.REREADING, TableCondition.DOUBTFUL, TableCondition.OK)


class FeedTable(msgspec.Struct, frozen=True):
    """A table of a feed; more than one id where it has partitions, none where the log gave no version of it yet."""

    schema: str
    table: str
    table_ids: tuple[int, ...]

    @property
    def name(self) -> str:
        """Return ``schema.table``."""
        return f"{self.schema}.{self.table}"


def feed_tables(subscribed: Sequence[SubscribeRecord], dispatchers: Sequence[DispatcherRecord] | None) -> list[FeedTable]:
    """Return the tables that a feed was created with and those that came later, by name."""
    ids: dict[tuple[str, str], dict[int, None]] = {}
    for one in subscribed:
        ids.setdefault((one.db_name, one.table_name), {})[one.table_id] = None
    for live in dispatchers or ():
        ids.setdefault((live.db_name, live.table_name), {})[live.table_id] = None
    return [FeedTable(schema, table, tuple(found)) for (schema, table), found in ids.items()]


def unknown_tables(states: Sequence[TableState], patterns: Sequence[str], known: Sequence[FeedTable]) -> list[FeedTable]:
    """Return the tables that a feed should have and of which the log told nothing but the name: their rows are in no file."""
    wanted, names = TablePatterns(tuple(patterns)), {(t.schema.lower(), t.table.lower()) for t in known}
    lost = [s for s in states if s.table_id == 0 and s.is_open and wanted.match(s.schema, s.table)]
    return [FeedTable(s.schema, s.table, ()) for s in lost if (s.schema.lower(), s.table.lower()) not in names]


def find_table(tables: Sequence[FeedTable], name: str) -> FeedTable:
    """Return the table of a name; raise ``TABLE_UNKNOWN`` where the feed has none."""
    for table in tables:
        if table.name.lower() == name.lower():
            return table
    raise PenstockError("TABLE_UNKNOWN", f"the feed has no table {name}", "See penstock feed table list FEED.")


def table_view(
    table: FeedTable,
    states: Sequence[TableState],
    progress: Callable[[int], BootstrapProgress | None] = lambda _: None,
    will_settle: Callable[[TableState], bool] = lambda _: True,
) -> dict[str, Any]:
    """Return everything that may be shown of one table; ``settling`` says whether it is read again without an operator."""
    named = {(table.schema.lower(), table.table.lower())}
    mine = [s for s in states if s.table_id in table.table_ids or (s.table_id == 0 and (s.schema.lower(), s.table.lower()) in named)]
    worst = min(mine, key=lambda s: _WORST_FIRST.index(s.state), default=None)
    view: dict[str, Any] = {
        "name": table.name,
        "table_id": table.table_ids[0] if table.table_ids else None,
        "state": TableCondition.OK.value,
    }
    if worst is None:
        return view
    view |= {"settled_ts": max(s.settled_ts for s in mine), "state": worst.state.value}
    if worst.is_open:
        done = progress(worst.table_id)
        view |= {
            "since_ms": worst.since_ms,
            "reason": mask_text(worst.reason),
            "code": worst.code,
            "hint": worst.hint,
            "attempts": worst.attempts,
            "settling": will_settle(worst),
            "next_attempt_ms": worst.next_attempt_ms or None,
            "reread": None if done is None else msgspec.to_builtins(done),
        }
    return view


def stopped_view(view: dict[str, Any], table: FeedTable, dispatchers: Sequence[Dispatcher]) -> dict[str, Any]:
    """Return what is shown of a table, with why nothing of it is delivered where its filter does not fit it any more."""
    found = next((d.stopped for d in dispatchers if d.stopped and d.id.table_id in table.table_ids), "")
    if not found:
        return view
    error = PenstockError.from_text(found)
    return view | {"state": STOPPED, "code": error.code, "reason": mask_text(error.detail), "hint": error.hint}


def progress_view(
    feed: FeedRecord, table: FeedTable, delivered: Mapping[int, TableProgress], joining: Collection[int], clock: Clock
) -> dict[str, Any]:
    """Return how far a table is: all tables of a feed have its checkpoint, but for those whose state is still being read."""
    mine = [delivered[table_id] for table_id in table.table_ids if table_id in delivered]
    joins = any(table_id in joining for table_id in table.table_ids)
    checkpoint_ts = 0 if joins else feed.checkpoint_ts
    return {
        "rows": sum(one.counted.rows for one in mine),
        "bytes": sum(one.counted.nbytes for one in mine),
        "files": sum(one.counted.files for one in mine),
        "delivered_ts": max((one.delivered_ts for one in mine), default=0),
        "checkpoint_ts": checkpoint_ts,
        "lag_s": round(lag_seconds(checkpoint_ts, clock), 3) if checkpoint_ts else None,
        "joining": joins,
    }


def range_view(feed: FeedRecord, one: Dispatcher, delivered: RangeProgress | None, clock: Clock) -> dict[str, Any]:
    """Return how far one range of a table is."""
    counted = delivered.counted if delivered else Counted()
    checkpoint_ts = 0 if one.with_state else feed.checkpoint_ts
    return {
        "table": f"{one.schema}.{one.table}",
        "range_id": str(one.id),
        "number": one.id.span + 1,
        "of": one.id.spans,
        "rows": counted.rows,
        "bytes": counted.nbytes,
        "files": counted.files,
        "delivered_ts": delivered.delivered_ts if delivered else 0,
        "checkpoint_ts": checkpoint_ts,
        "lag_s": round(lag_seconds(checkpoint_ts, clock), 3) if checkpoint_ts else None,
        "joining": one.with_state,
        "stopped": bool(one.stopped),
    }


def uncovered(views: Sequence[dict[str, Any]], checkpoint_ts: int) -> list[dict[str, str]]:
    """Return the tables whose rows a checkpoint does not promise, each with its state; as ``feed/window/coverage.py`` publishes them."""
    found = []
    for view in views:
        is_open = view["state"] != TableCondition.OK.value
        if is_open or view.get("settled_ts", 0) > checkpoint_ts:
            found.append({"name": view["name"], "state": view["state"] if is_open else DELIVERING})
    return found
