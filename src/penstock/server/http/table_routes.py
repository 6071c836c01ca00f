"""The part of the HTTP API about the tables of a feed: their states and progress, and a route for each verb. Runs in the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request

from penstock.feed.window.following import from_record
from penstock.meta.database import MetaDatabase
from penstock.meta.records import Actor, FeedRecord
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.server.doubts.doubted_tables import DoubtedTables
from penstock.server.feeds.creation import FeedDocument
from penstock.server.http.guard import caller_name
from penstock.server.http.table_views import FeedTable, feed_tables, find_table, progress_view, stopped_view, table_view, unknown_tables
from penstock.server.source_address import same_source
from penstock.settings.masking import mask_text

DoubtedOf = Callable[[FeedRecord], DoubtedTables | None]
"""Gives the doubted tables of a feed's source; None where they are never in doubt."""


def add_table_routes(app: FastAPI, meta: MetaDatabase, doubted_of: DoubtedOf, clock: Clock) -> None:
    """Add the routes."""

    @app.get("/api/v1/feeds/{name}/tables")
    def list_tables(name: str) -> dict[str, Any]:
        feed = meta.get_feed(name)
        return {"tables": table_views(meta, feed, doubted_of(feed), clock)}

    def find(name: str, table: str) -> tuple[DoubtedTables | None, FeedTable]:
        feed = meta.get_feed(name)
        doubted = doubted_of(feed)
        return doubted, find_table(_tables(meta, feed, doubted), table)

    def do(verb: str, name: str, table: str, actor: Actor) -> dict[str, Any]:
        doubted, found = find(name, table)
        TABLE_VERBS[verb](meta, _required(doubted), name, found)
        meta.lives.record(name, f"table {verb}", actor, found.name)
        return _views([found], doubted)[0]

    for verb in TABLE_VERBS:
        _add_verb(app, verb, do)


def _add_verb(app: FastAPI, verb: str, do: Callable[[str, str, str, Actor], dict[str, Any]]) -> None:
    @app.post(f"/api/v1/feeds/{{name}}/tables/{{table:path}}/{verb}", status_code=202, name=f"{verb} table")
    def ask(request: Request, name: str, table: str, arguments: Annotated[dict[str, Any] | None, Body()] = None) -> dict[str, Any]:
        reason = (arguments or {}).get("reason", "")
        if set(arguments or {}) - {"reason"} or not isinstance(reason, str):
            raise PenstockError("CONFIG_INVALID", f"table {verb}: takes a reason, a text, and nothing else")
        return do(verb, name, table, Actor(caller_name(request.scope), mask_text(reason)))


def _resnapshot(_meta: MetaDatabase, settling: DoubtedTables, _feed: str, table: FeedTable) -> None:
    for table_id in table.table_ids:
        settling.resnapshot(table_id, table.schema, table.table)
    if not table.table_ids:
        settling.look_again()


def _retry(_meta: MetaDatabase, settling: DoubtedTables, _feed: str, table: FeedTable) -> None:
    if table.table_ids:
        settling.retry(table.table_ids)
    else:
        settling.look_again()


def _exclude(meta: MetaDatabase, settling: DoubtedTables, feed: str, table: FeedTable) -> None:
    """Leave a table out, unless another feed has it too: they share the event store."""
    if not table.table_ids:
        raise PenstockError("TABLE_UNKNOWN", f"no version of {table.name} is known: none of its rows are captured as it is")
    source = FeedDocument.of(meta.get_feed(feed)).source
    names = [f.name for f in meta.list_feeds() if f.name != feed and same_source(FeedDocument.of(f).source, source)]
    others = [name for name in names if any(d.table_id in table.table_ids for d in meta.dispatchers(name) or ())]
    if others:
        raise PenstockError(
            "CONFIG_INVALID",
            f"{table.name} is also in feed {', '.join(others)}, and feeds of one source share what is captured",
            "Exclude it by the feed's patterns, in a feed of its own.",
        )
    for table_id in table.table_ids:
        settling.exclude(table_id, table.schema, table.table)


TABLE_VERBS: dict[str, Callable[[MetaDatabase, DoubtedTables, str, FeedTable], None]] = {
    "resnapshot": _resnapshot,
    "retry": _retry,
    "include": _retry,
    "exclude": _exclude,
}


def table_views(meta: MetaDatabase, feed: FeedRecord, doubted: DoubtedTables | None, clock: Clock) -> list[dict[str, Any]]:
    """Return every table of a feed as it is shown."""
    tables, records = _tables(meta, feed, doubted), meta.dispatchers(feed.name) or []
    delivered = {one.table_id: one for one in meta.table_progress(feed.name)}
    live = [from_record(record) for record in records]
    joining = {d.id.table_id for d in live if d.with_state}
    views = [stopped_view(view, table, live) for view, table in zip(_views(tables, doubted), tables, strict=True)]
    return [view | {"progress": progress_view(feed, table, delivered, joining, clock)} for view, table in zip(views, tables, strict=True)]


def _tables(meta: MetaDatabase, feed: FeedRecord, doubted: DoubtedTables | None) -> list[FeedTable]:
    known = feed_tables(meta.feed_tables(feed.name), meta.dispatchers(feed.name))
    if doubted is None:
        return known
    return [*known, *unknown_tables(doubted.states(), FeedDocument.of(feed).feed_config().tables, known)]


def _views(tables: Sequence[FeedTable], doubted: DoubtedTables | None) -> list[dict[str, Any]]:
    if doubted is None:
        return [table_view(table, ()) for table in tables]
    states = doubted.states()
    return [table_view(table, states, doubted.progress, doubted.will_settle) for table in tables]


def _required(doubted: DoubtedTables | None) -> DoubtedTables:
    if doubted is None:
        raise PenstockError("CONFIG_INVALID", "the source gives every state itself: its tables are never read again")
    return doubted
