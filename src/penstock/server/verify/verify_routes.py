"""The part of the HTTP API with which a feed is verified: beginning that, seeing how far it is, ending it. Runs in the server."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Query

from penstock.meta.database import MetaDatabase
from penstock.server.http.call_pool import CallPool
from penstock.server.http.views import verdict_body
from penstock.server.verify.verification import Verifies

VERIFICATIONS_AT_ONCE, VERIFICATIONS_WAITING_MAX = 2, 4


def add_verify_routes(app: FastAPI, meta: MetaDatabase, verifier: Verifies) -> None:
    """Add the routes."""
    verifications = CallPool("verify a feed", VERIFICATIONS_AT_ONCE, VERIFICATIONS_WAITING_MAX)

    @app.post("/api/v1/feeds/{name}/verify")
    async def verify_feed(name: str) -> dict[str, Any]:
        # A difference is an answer, not an error: the caller sees every table.
        return verdict_body(await verifications.run(lambda: verifier.verify(name)))

    @app.get("/api/v1/feeds/{name}/verify")
    def verify_progress(name: str, after: Annotated[int, Query(ge=0, le=2**31)] = 0) -> dict[str, Any]:
        meta.get_feed(name)
        told = verifier.progress(name)
        return {"under_way": told is not None, "progress": (told or [])[after:]}

    # Who called for it may be gone: a tab that was closed, a command that was killed.
    @app.delete("/api/v1/feeds/{name}/verify", status_code=202)
    def cancel_verification(name: str) -> dict[str, Any]:
        meta.get_feed(name)
        return {"name": name, "cancelled": verifier.cancel(name)}
