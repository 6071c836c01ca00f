"""The HTTP API of a server.

Every answer is JSON, apart from the metrics; an error is ``{"code", "message", "hint"}`` with the HTTP status that its kind says. No
answer holds credentials. Handlers are plain functions, which FastAPI runs in its thread pool, because everything below is synchronous.
Runs in the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.exceptions import HTTPException

import penstock
from penstock.meta.database import MetaDatabase
from penstock.meta.records import RequestedState
from penstock.model.clock import Clock
from penstock.model.errors import ErrorKind, PenstockError
from penstock.server.doubts.doubted_tables import DoubtedTables
from penstock.server.feeds.creation import FeedCreator
from penstock.server.feeds.ports import Liveness
from penstock.server.health.report import ServerHealth
from penstock.server.http.health_routes import add_health_routes
from penstock.server.http.operation_routes import add_operation_routes
from penstock.server.http.table_routes import add_table_routes, table_views
from penstock.server.http.views import error_body, feed_detail, feed_summary, verdict_body
from penstock.server.metrics import render
from penstock.server.verify.verification import FeedVerifier

_STATUS_BY_CODE = {"FEED_UNKNOWN": 404, "FEED_EXISTS": 409, "SINK_OCCUPIED": 409}
_STATUS_BY_KIND = {
    ErrorKind.INVALID: 422,
    ErrorKind.BLOCKED: 424,
    ErrorKind.TRANSIENT: 503,
    ErrorKind.FENCED: 409,
    ErrorKind.CORRUPT: 500,
    ErrorKind.BUG: 500,
}


def build_api(
    meta: MetaDatabase,
    creator: FeedCreator,
    verifier: FeedVerifier,
    supervisor: Liveness,
    registries: Sequence[CollectorRegistry],
    clock: Clock,
    health: ServerHealth,
    doubted: DoubtedTables | None = None,
    verification: Callable[[str], dict[str, Any] | None] = lambda _: None,
) -> FastAPI:
    """Return the application; ``doubted`` is None where the upstream's tables are never in doubt.

    ``verification`` gives what verification on a schedule found of a feed.
    """
    app = FastAPI(title="Penstock", version=penstock.__version__, docs_url="/api/docs", openapi_url="/api/openapi.json")
    _answer_errors(app)
    add_table_routes(app, meta, doubted)
    add_operation_routes(app, meta, supervisor)
    add_health_routes(app, meta, health)

    @app.get("/api/v1/feeds")
    def list_feeds() -> dict[str, Any]:
        retries = meta.retries()
        told = health.problems()
        return {
            "feeds": [feed_summary(f, supervisor.status(f.name), clock, retries.get(f.name), told.get(f.name)) for f in meta.list_feeds()]
        }

    @app.post("/api/v1/feeds", status_code=201)
    def create_feed(tree: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        feed = creator.create(tree)
        supervisor.wake()
        return feed_detail(feed, meta.feed_tables(feed.name), None, clock)

    @app.get("/api/v1/feeds/{name}")
    def show_feed(name: str) -> dict[str, Any]:
        feed, retry, views = meta.get_feed(name), meta.retries().get(name), table_views(meta, name, doubted)
        status, problem = supervisor.status(name), health.problem(name)
        shown = feed_detail(feed, meta.feed_tables(name), status, clock, meta.dispatchers(name), views, retry, problem)
        return shown | {"verification": verification(name)}

    @app.delete("/api/v1/feeds/{name}", status_code=202)
    def remove_feed(name: str) -> dict[str, Any]:
        meta.get_feed(name)
        meta.set_requested_state(name, RequestedState.RUNNING, RequestedState.REMOVED)
        supervisor.wake()
        return {"name": name, "requested_state": RequestedState.REMOVED.value}

    @app.post("/api/v1/feeds/{name}/verify")
    def verify_feed(name: str) -> dict[str, Any]:
        # A difference is an answer, not an error: the caller sees every table.
        return verdict_body(verifier.verify(name))

    @app.get("/api/v1/feeds/{name}/verify")
    def verify_progress(name: str, after: int = 0) -> dict[str, Any]:
        meta.get_feed(name)
        return {"progress": verifier.progress(name)[after:]}

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(render(registries), media_type=CONTENT_TYPE_LATEST)

    return app


def status_of(error: PenstockError) -> int:
    """Return the HTTP status of an error."""
    return _STATUS_BY_CODE.get(error.code) or _STATUS_BY_KIND[error.kind]


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(PenstockError)
    async def penstock_error(_request: Request, error: PenstockError) -> JSONResponse:
        return JSONResponse(error_body(error), status_of(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(_request: Request, _error: RequestValidationError) -> JSONResponse:
        # FastAPI's own text repeats the body, which may hold credentials.
        return JSONResponse(error_body(PenstockError("CONFIG_INVALID", "the body must be a JSON object")), 422)

    @app.exception_handler(HTTPException)
    async def no_such_path(request: Request, error: HTTPException) -> JSONResponse:
        body = {"code": "NOT_FOUND", "message": f"{request.method} {request.url.path}: {error.detail}", "hint": "See /api/docs."}
        return JSONResponse(body, error.status_code)
