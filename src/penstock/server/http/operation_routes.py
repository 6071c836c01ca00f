"""The part of the HTTP API with which an operator acts on servers: listing and draining them. Runs in the server."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from penstock.meta.database import MetaDatabase
from penstock.server.feeds.ports import Liveness


def add_operation_routes(app: FastAPI, meta: MetaDatabase, supervisor: Liveness) -> None:
    """Add the routes."""

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
