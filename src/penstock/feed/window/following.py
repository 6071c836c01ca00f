"""How a feed follows DDLs: which dispatchers there are after one, and what of it is written to the target.

Pure functions of the DDL, the feed's patterns and the dispatchers before it, so every attempt of a window, on any server, comes to the
same. A table that is made begins with the DDL's ts; one that had rows before it came into the feed (a rename into the patterns)
begins with its state, in the first window for which that is known. A table that is dropped, truncated away or renamed out of the
patterns ends there. Runs in the driver.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from penstock.ddl.compose import create_text
from penstock.ddl.tokens import statements
from penstock.feed.filters.rules import FilterSettings
from penstock.feed.filters.views import FeedViews
from penstock.feed.window.assignment import Dispatcher, FeedContext
from penstock.meta.progress import ProgressDatabase
from penstock.meta.records import DispatcherRecord
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.decoding import decoded
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.model.table_pattern import TablePatterns
from penstock.model.timestamp import TS_ZERO
from penstock.sink.contract import DispatcherId
from penstock.store.contract import SpanWindow, WindowKind, WindowPlan

log = logging.getLogger(__name__)
_BEGINS_EMPTY = frozenset(
    {
        DdlType.CREATE_TABLE,
        DdlType.CREATE_TABLES,
        DdlType.TRUNCATE_TABLE,
        DdlType.ADD_PARTITION,
        DdlType.TRUNCATE_PARTITION,
        # The rows of reorganised partitions move between physical ids; the table's content stays, so nothing is to be delivered.
        DdlType.DROP_PARTITION,
        DdlType.REORGANIZE_PARTITION,
    }
)
_ROWS_GO = frozenset({DdlType.DROP_PARTITION, DdlType.TRUNCATE_PARTITION, DdlType.EXCHANGE_PARTITION})
_DATABASE_DDLS = frozenset({DdlType.CREATE_SCHEMA, DdlType.DROP_SCHEMA})
_RENAMES = frozenset({DdlType.RENAME_TABLE, DdlType.RENAME_TABLES})


def follow(dispatchers: Sequence[Dispatcher], ddls: Iterable[DdlEvent], patterns: TablePatterns) -> tuple[Dispatcher, ...]:
    """Return the dispatchers after some DDLs, by table id and span."""
    for ddl in ddls:
        dispatchers = _follow_one(dispatchers, ddl, patterns)
    return tuple(sorted(dispatchers, key=lambda d: d.id))


def workers(dispatchers: Sequence[Dispatcher], plan: WindowPlan) -> list[tuple[Dispatcher, SpanWindow, tuple[DdlEvent, ...]]]:
    """Return the dispatchers that do something in a window: those with rows, with a state to deliver, or with a DDL to pass."""
    sizes = {s.span_id: s for s in plan.spans}
    of_state = plan.from_ts == TS_ZERO or plan.kind is WindowKind.RESNAPSHOT
    passed: dict[int | None, list[DdlEvent]] = defaultdict(list)
    for ddl in plan.inner_ddls:
        passed[ddl.one_table_id].append(ddl)
    found = []
    for dispatcher in dispatchers:
        size = sizes.get(dispatcher.span.span_id) if dispatcher.id.table_id not in plan.stopped else None
        ddls = tuple(passed.get(dispatcher.id.table_id, ()))
        if size is not None and (size.rows or ddls or of_state or dispatcher.with_state):
            found.append((dispatcher, size, ddls))
    return found


def without_idle_spans(plan: WindowPlan) -> WindowPlan:
    """Return a plan of changes as it is recorded: of thousands of spans a window mostly has rows of a few, and the others do nothing."""
    altered = {Span(ddl.one_table_id).span_id for ddl in plan.inner_ddls if ddl.one_table_id is not None}
    return msgspec.structs.replace(plan, spans=tuple(s for s in plan.spans if s.rows or s.nbytes or s.span_id in altered))


def first_dispatchers(dispatchers: Sequence[Dispatcher]) -> tuple[Dispatcher, ...]:
    """Return dispatchers as those that a feed begins with: the first window delivers the state of each."""
    return tuple(msgspec.structs.replace(d, begin_ts=0, with_state=False) for d in dispatchers)


def joined(dispatchers: Sequence[Dispatcher], span_ids: Iterable[int]) -> tuple[Dispatcher, ...]:
    """Return the dispatchers after a window over these spans: those that delivered their state in it are like all others from then on."""
    taken = frozenset(span_ids)
    begun = {"with_state": False, "returns": False}
    return tuple(msgspec.structs.replace(d, **begun) if d.with_state and d.span.span_id in taken else d for d in dispatchers)


def written_parts(
    ddl: DdlEvent, dispatchers: Sequence[Dispatcher], patterns: TablePatterns, views: FeedViews | None = None
) -> list[DdlEvent]:
    """Return what the target is told of a DDL: the tables that belong to the feed after it or did before, as it sees them."""
    parts = _parts(ddl, dispatchers, patterns)
    told = parts if views is None else [views.told(part) for part in parts]
    return [part for part in told if part is not None]


def with_filters(after: Sequence[Dispatcher], ddls: Iterable[DdlEvent], views: FeedViews) -> tuple[Dispatcher, ...]:
    """Return the dispatchers after some DDLs; of a table that no longer fits its filter they stop, until another DDL or filter mends it."""
    if not views.settings.is_sql:
        return tuple(after)
    newest = {table.table_id: table for ddl in ddls for table in ddl.tables}
    found = []
    for one in after:
        table = newest.get(one.id.table_id)
        problem = one.stopped if table is None else views.problem(table)
        if problem and not one.stopped:
            log.warning("table is stopped", extra={"table": f"{one.schema}.{one.table}", "reason": problem})
        found.append(one if problem == one.stopped else stopped(one, problem))
    return tuple(found)


def without_stopped(after: Sequence[Dispatcher], plan: WindowPlan) -> tuple[Dispatcher, ...]:
    """Return the dispatchers after a window: of the tables that left it they stop."""
    return tuple(stopped(one, plan.stopped[one.id.table_id]) if one.id.table_id in plan.stopped else one for one in after)


def with_other_rules(dispatchers: Sequence[Dispatcher], before: FilterSettings, after: FilterSettings, ts: int) -> tuple[Dispatcher, ...]:
    """Return the dispatchers under another filter from a ts on: a table with another rule comes again, with what differs."""
    changed = {d.id for d in dispatchers if before.rule(d.schema, d.table) != after.rule(d.schema, d.table)}
    again = {"begin_ts": ts, "with_state": True, "returns": True, "stopped": ""}
    return tuple(msgspec.structs.replace(d, **again) if d.id in changed and d.begin_ts != ts else d for d in dispatchers)


def compared_again(dispatchers: Sequence[Dispatcher], ddls: Iterable[DdlEvent]) -> tuple[Dispatcher, ...]:
    """Return the dispatchers of a target that holds tables after some DDLs: where rows went with partitions, what differs is delivered."""
    names = {
        (table.schema, table.table): ddl.commit_ts
        for ddl in ddls
        if ddl.type in _ROWS_GO and any(t.partition_id for t in ddl.tables)
        for table in ddl.tables
    }
    again = {"with_state": True, "returns": True}
    return tuple(
        msgspec.structs.replace(d, begin_ts=names[d.schema, d.table], **again) if (d.schema, d.table) in names else d for d in dispatchers
    )


def stopped(dispatcher: Dispatcher, problem: str) -> Dispatcher:
    """Return a dispatcher that delivers nothing because of a problem; without one, what differs from what the target has by then."""
    return msgspec.structs.replace(dispatcher, stopped=problem, with_state=True, returns=True)


def _parts(ddl: DdlEvent, dispatchers: Sequence[Dispatcher], patterns: TablePatterns) -> list[DdlEvent]:
    """Return the parts of a DDL that concern the feed.

    A table that comes into the feed by a rename is new to the target, whatever the target knows under its former name: it is told of
    a table that is made.
    """
    if ddl.type in _DATABASE_DDLS:
        return [ddl]
    known = {d.id.table_id: d for d in dispatchers}
    kept = [t for t in ddl.tables if t.table_id in known or patterns.match(t.schema, t.table)]
    came = [t for t in kept if t.table_id not in known] if ddl.type in _RENAMES else []
    made = [DdlEvent(ddl.commit_ts, DdlType.CREATE_TABLE, create_text(t), t.schema, (t,)) for t in came]
    kept = [t for t in kept if t not in came]
    if ddl.tables and not kept:
        return made
    names = ddl.old_names
    if not ddl.tables:
        # Partitions of one table have one name; the target hears of it once.
        gone = {(known[i].schema, known[i].table): i for i in ddl.dropped_table_ids if i in known}
        names = tuple((table_id, schema, table) for (schema, table), table_id in gone.items())
    return [msgspec.structs.replace(ddl, tables=tuple(kept), old_names=names, query=_chosen_text(ddl, kept)), *made]


def to_record(dispatcher: Dispatcher) -> DispatcherRecord:
    """Return a dispatcher as the meta database keeps it."""
    return DispatcherRecord(
        range_id=str(dispatcher.id),
        table_id=dispatcher.id.table_id,
        db_name=dispatcher.schema,
        table_name=dispatcher.table,
        document=msgspec.json.encode(dispatcher).decode(),
        begin_ts=dispatcher.begin_ts,
    )


def to_records(after: Sequence[Dispatcher], before: Sequence[Dispatcher], ts: int) -> list[DispatcherRecord]:
    """Return what the meta database writes down where the dispatchers change at a ts: those after it, and those that end there."""
    kept = {(d.id, d.begin_ts) for d in after}
    ended = [msgspec.structs.replace(to_record(d), end_ts=ts) for d in before if (d.id, d.begin_ts) not in kept]
    return [*(to_record(d) for d in after), *ended]


def from_record(record: DispatcherRecord) -> Dispatcher:
    """Read what ``to_record`` made."""
    return decoded(record.document, Dispatcher)


def live_dispatchers(context: FeedContext, meta: ProgressDatabase, ts: int | None = None) -> tuple[Dispatcher, ...]:
    """Return the feed's dispatchers while its checkpoint is this ts, or now, by table id and span."""
    records = meta.dispatchers(context.feed, ts)
    if records is None:
        return context.dispatchers
    return tuple(sorted(map(from_record, records), key=lambda d: d.id))


def _follow_one(dispatchers: Sequence[Dispatcher], ddl: DdlEvent, patterns: TablePatterns) -> list[Dispatcher]:
    dropped = frozenset(ddl.dropped_table_ids)
    after = {t.table_id: t for t in ddl.tables}
    kept: list[Dispatcher] = []
    if ddl.type is DdlType.EXCHANGE_PARTITION:
        # Both sides are other tables from now on: the target gets their state, whatever it made of the DDL.
        places = {d.id.table_id: (d.schema, d.table) for d in dispatchers}
        moved = {t.table_id for t in ddl.tables if places.get(t.table_id) != (t.schema, t.table)}
        dispatchers = [d for d in dispatchers if d.id.table_id not in moved]
    for dispatcher in dispatchers:
        table = after.get(dispatcher.id.table_id)
        if dispatcher.id.table_id in dropped and table is None:
            continue
        if table is None:
            kept.append(dispatcher)
        elif patterns.match(table.schema, table.table):
            kept.append(msgspec.structs.replace(dispatcher, schema=table.schema, table=table.table))
    known = {d.id.table_id for d in dispatchers}
    fresh = [t for t in ddl.tables if t.table_id not in known and patterns.match(t.schema, t.table)]
    return [*kept, *(_begin(t, ddl) for t in fresh)]


def _begin(table: TableSchema, ddl: DdlEvent) -> Dispatcher:
    # A new table has one range, so there is nothing to divide it by yet.
    return Dispatcher(
        DispatcherId(table.table_id),
        Span(table.table_id),
        table.schema,
        table.table,
        begin_ts=ddl.commit_ts,
        with_state=ddl.type not in _BEGINS_EMPTY,
    )


def _chosen_text(ddl: DdlEvent, kept: Sequence[TableSchema]) -> str:
    """Return the statements of the tables that are kept, where one DDL makes several tables."""
    parts = statements(ddl.query)
    if ddl.type is not DdlType.CREATE_TABLES or len(parts) != len(ddl.tables):
        return ddl.query
    return "; ".join(part for part, table in zip(parts, ddl.tables, strict=True) if table in kept)
