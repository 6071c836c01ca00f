"""The part of the HTTP API about the tables of a feed: their states, and asking for one to be read again. Runs in the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI

from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord
from penstock.model.errors import PenstockError
from penstock.server.doubts.doubted_tables import DoubtedTables
from penstock.server.feeds.creation import FeedDocument
from penstock.server.http.table_views import FeedTable, feed_tables, find_table, table_view, unknown_tables
from penstock.server.source_address import same_source

DoubtedOf = Callable[[FeedRecord], DoubtedTables | None]
"""Gives the doubted tables of a feed's source; None where they are never in doubt."""


def add_table_routes(app: FastAPI, meta: MetaDatabase, doubted_of: DoubtedOf) -> None:
    """Add the routes."""

    @app.get("/api/v1/feeds/{name}/tables")
    def list_tables(name: str) -> dict[str, Any]:
        feed = meta.get_feed(name)
        return {"tables": table_views(meta, feed, doubted_of(feed))}

    def find(name: str, table: str) -> tuple[DoubtedTables | None, FeedTable]:
        feed = meta.get_feed(name)
        doubted = doubted_of(feed)
        return doubted, find_table(_tables(meta, feed, doubted), table)

    @app.post("/api/v1/feeds/{name}/tables/{table:path}/resnapshot", status_code=202)
    def resnapshot_table(name: str, table: str) -> dict[str, Any]:
        doubted, found = find(name, table)
        settling = _required(doubted)
        for table_id in found.table_ids:
            settling.resnapshot(table_id, found.schema, found.table)
        if not found.table_ids:
            settling.look_again()
        return _views([found], doubted)[0]

    @app.post("/api/v1/feeds/{name}/tables/{table:path}/retry", status_code=202)
    def retry_table(name: str, table: str) -> dict[str, Any]:
        doubted, found = find(name, table)
        settling = _required(doubted)
        if found.table_ids:
            settling.retry(found.table_ids)
        else:
            settling.look_again()
        return _views([found], doubted)[0]

    @app.post("/api/v1/feeds/{name}/tables/{table:path}/exclude", status_code=202)
    def exclude_table(name: str, table: str) -> dict[str, Any]:
        doubted, found = find(name, table)
        _exclude(meta, _required(doubted), name, found)
        return _views([found], doubted)[0]


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


def table_views(meta: MetaDatabase, feed: FeedRecord, doubted: DoubtedTables | None) -> list[dict[str, Any]]:
    """Return every table of a feed as it is shown."""
    return _views(_tables(meta, feed, doubted), doubted)


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
