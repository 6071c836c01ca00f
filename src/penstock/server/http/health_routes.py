"""The part of the HTTP API that says how a server fares. Runs in the server.

``/health/live``: whether the process can do its work at all; what starts processes ends and starts one that cannot. ``/health/ready``:
whether everything works, each component and each feed of this server by name; ``?feeds=no`` leaves the feeds out, for a load balancer that
shall reach the API also while a feed has a problem. Both answer at once, with 503 where it is not so, and wait for no thread.
``/api/v1/health`` is the same as ready, with the version; with ``?quiet=yes`` it is 200 whatever the body says, for a page that shows it.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from fastapi import FastAPI
from fastapi.responses import JSONResponse

import penstock
from penstock.server.health.watch import ComponentHealth

_NOT_WELL = 503
_FEEDS = "feeds"


class HealthReport(Protocol):
    """What the API asks about health. Answers at once."""

    def components(self) -> dict[str, ComponentHealth]:
        """Return what is known of every component."""

    def alive(self) -> str:
        """Return why the process cannot do its work, or nothing where it can."""


def add_health_routes(app: FastAPI, health: HealthReport) -> None:
    """Add the routes."""

    @app.get("/health/live")
    async def live() -> JSONResponse:
        why = health.alive()
        return JSONResponse({"status": "failing", "detail": why} if why else {"status": "ok"}, _NOT_WELL if why else 200)

    @app.get("/health/ready")
    async def ready(feeds: str = "yes") -> JSONResponse:
        body = _body(health, with_feeds=feeds != "no")
        return JSONResponse(body, 200 if body["status"] == "ok" else _NOT_WELL)

    @app.get("/api/v1/health")
    async def summary(quiet: str = "no") -> JSONResponse:
        body = _body(health, with_feeds=True)
        well = body["status"] == "ok" or quiet == "yes"
        return JSONResponse(body | {"version": penstock.__version__}, 200 if well else _NOT_WELL)


def _body(health: HealthReport, *, with_feeds: bool) -> dict[str, Any]:
    found = {name: one for name, one in health.components().items() if with_feeds or name != _FEEDS}
    why = health.alive()
    ok = not why and all(one.ok for one in found.values())
    return {"status": "ok" if ok else "failing", "components": {name: msgspec.to_builtins(one) for name, one in found.items()}}
