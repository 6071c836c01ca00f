"""The part of the HTTP API with which an operator acts on servers: listing and draining them, reading their logs. Runs in the server."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

import msgspec
from fastapi import FastAPI, Query

from penstock.config.feed_group import full_name
from penstock.meta.database import MetaDatabase
from penstock.server.feeds.ports import Liveness
from penstock.server.log_tail import ENTRIES_MAX, keep_tail


def add_operation_routes(app: FastAPI, meta: MetaDatabase, supervisor: Liveness) -> None:
    """Add the routes."""
    tail = keep_tail()

    @app.get("/api/v1/logs")
    def read_log(
        after: Annotated[int, Query(ge=0, le=2**53)] = 0,
        feed: Annotated[str, Query(max_length=200)] = "",
        level: Literal["debug", "info", "warning", "error"] = "info",
        lines: Annotated[int, Query(ge=1, le=ENTRIES_MAX)] = 200,
    ) -> dict[str, Any]:
        entries, last = tail.read(after, full_name(feed), logging.getLevelNamesMapping()[level.upper()], lines)
        return {"entries": [msgspec.to_builtins(entry) for entry in entries], "last": last}

    @app.get("/api/v1/servers")
    def list_servers() -> dict[str, Any]:
        feeds = meta.list_feeds()
        return {
            "servers": [
                {
                    "owner": server.owner,
                    "url": server.url,
                    "state": server.state.value,
                    "feeds": sorted(feed.name for feed in feeds if feed.owner == server.owner),
                    "self": server.owner == supervisor.owner,
                }
                for server in supervisor.servers
            ]
        }

    @app.post("/api/v1/server/drain", status_code=202)
    def drain() -> dict[str, Any]:
        supervisor.drain(True)
        return _drained()

    @app.delete("/api/v1/server/drain", status_code=202)
    def end_drain() -> dict[str, Any]:
        supervisor.drain(False)
        return _drained()

    @app.get("/api/v1/server/drain")
    def drained() -> dict[str, Any]:
        return _drained()

    def _drained() -> dict[str, Any]:
        left = sorted(feed.name for feed in meta.list_feeds() if feed.owner == supervisor.owner)
        return {"owner": supervisor.owner, "draining": supervisor.draining, "feeds": left}
