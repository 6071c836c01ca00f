"""The part of the HTTP API about the tables of a feed: their states, and asking for one to be read again. Runs in the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI

from penstock.meta.database import MetaDatabase
from penstock.model.errors import PenstockError
from penstock.server.doubts.doubted_tables import DoubtedTables
from penstock.server.feeds.creation import FeedDocument
from penstock.server.http.table_views import FeedTable, feed_tables, find_table, table_view, unknown_tables


def add_table_routes(app: FastAPI, meta: MetaDatabase, doubted: DoubtedTables | None) -> None:
    """Add the routes; ``doubted`` is None where the upstream's tables are never in doubt."""

    @app.get("/api/v1/feeds/{name}/tables")
    def list_tables(name: str) -> dict[str, Any]:
        return {"tables": table_views(meta, name, doubted)}

    @app.post("/api/v1/feeds/{name}/tables/{table:path}/resnapshot", status_code=202)
    def resnapshot_table(name: str, table: str) -> dict[str, Any]:
        found, settling = find_table(_tables(meta, name, doubted), table), _required(doubted)
        for table_id in found.table_ids:
            settling.resnapshot(table_id, found.schema, found.table)
        if not found.table_ids:
            settling.look_again()
        return _views([found], doubted)[0]

    @app.post("/api/v1/feeds/{name}/tables/{table:path}/retry", status_code=202)
    def retry_table(name: str, table: str) -> dict[str, Any]:
        found, settling = find_table(_tables(meta, name, doubted), table), _required(doubted)
        if found.table_ids:
            settling.retry(found.table_ids)
        else:
            settling.look_again()
        return _views([found], doubted)[0]


def table_views(meta: MetaDatabase, name: str, doubted: DoubtedTables | None) -> list[dict[str, Any]]:
    """Return every table of a feed as it is shown."""
    return _views(_tables(meta, name, doubted), doubted)


def _tables(meta: MetaDatabase, name: str, doubted: DoubtedTables | None) -> list[FeedTable]:
    feed = meta.get_feed(name)
    known = feed_tables(meta.feed_tables(name), meta.dispatchers(name))
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
