"""The part of the HTTP API about the tables of a feed: their states and progress, and a route for each verb. Runs in the server."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Request

from penstock.server.doubts.table_control import TABLE_VERBS, TableControl
from penstock.server.http.bodies import checked_tree
from penstock.server.http.guard import caller_name
from penstock.server.http.views import ShownFeeds

RANGES_MAX = 1_000
"""So many ranges are shown at once; ``after`` goes on."""


def add_table_routes(app: FastAPI, shown: ShownFeeds, control: TableControl) -> None:
    """Add the routes."""

    @app.get("/api/v1/feeds/{name}/tables")
    def list_tables(name: str) -> dict[str, Any]:
        return {"tables": shown.tables(name)}

    @app.get("/api/v1/feeds/{name}/ranges")
    def list_ranges(
        name: str,
        table: Annotated[str, Query(max_length=1_000)] = "",
        after: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=RANGES_MAX)] = RANGES_MAX,
    ) -> dict[str, Any]:
        found = shown.ranges(name, table)
        return {"ranges": found[after : after + limit], "total": len(found)}

    for verb in TABLE_VERBS:
        _add_verb(app, verb, control)


def _add_verb(app: FastAPI, verb: str, control: TableControl) -> None:
    @app.post(f"/api/v1/feeds/{{name}}/tables/{{table:path}}/{verb}", status_code=202, name=f"{verb} table")
    def ask(request: Request, name: str, table: str, arguments: Annotated[dict[str, Any] | None, Body()] = None) -> dict[str, Any]:
        return control.do(verb, name, table, checked_tree(arguments or {}), caller_name(request.scope))
