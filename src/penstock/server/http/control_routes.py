"""The part of the HTTP API with which an operator changes a feed: a route for each verb, history, dead letters. Runs in the server."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI, Request

from penstock.server.feeds.control import VERBS, FeedControl
from penstock.server.http.bodies import checked_tree
from penstock.server.http.call_pool import CallPool
from penstock.server.http.guard import caller_name

VERBS_AT_ONCE, VERBS_WAITING_MAX = 4, 32
_Arguments = Annotated[dict[str, Any] | None, Body()]


def add_control_routes(app: FastAPI, control: FeedControl) -> None:
    """Add the routes."""
    # Some of them ask the source or the target, which may take its time.
    quick, slow = (CallPool(f"{what} a feed", VERBS_AT_ONCE, VERBS_WAITING_MAX) for what in ("control", "change"))
    for verb, known in VERBS.items():
        _add_verb(app, control, verb, slow if known.waits else quick)

    @app.get("/api/v1/feeds/{name}/dead-letters")
    async def list_letters(name: str) -> dict[str, Any]:
        return {"dead_letters": await slow.run(lambda: list(control.dead_letters(name).names()))}

    # Asked for like a change, because a letter has rows in it: who may only read feeds does not read tables.
    @app.post("/api/v1/feeds/{name}/dead-letters/{letter}/show")
    async def show_letter(name: str, letter: str) -> dict[str, Any]:
        return await slow.run(lambda: control.dead_letters(name).show(letter))

    @app.post("/api/v1/feeds/{name}/dead-letters/{letter}/retry")
    async def retry_letter(name: str, letter: str) -> dict[str, Any]:
        await slow.run(lambda: control.dead_letters(name).retry(letter))
        return {"name": name, "dead_letter": letter, "taken": True}

    @app.delete("/api/v1/feeds/{name}", status_code=202)
    def remove_feed(request: Request, name: str) -> dict[str, Any]:
        return control.do("remove", name, {}, caller_name(request.scope))

    @app.get("/api/v1/feeds/{name}/history")
    def feed_history(name: str) -> dict[str, Any]:
        return {"history": control.history(name)}


def _add_verb(app: FastAPI, control: FeedControl, verb: str, pool: CallPool) -> None:
    @app.post(f"/api/v1/feeds/{{name}}/{verb}", status_code=202, name=verb)
    async def ask(request: Request, name: str, arguments: _Arguments = None) -> dict[str, Any]:
        return await pool.run(lambda: control.do(verb, name, checked_tree(arguments or {}), caller_name(request.scope)))
