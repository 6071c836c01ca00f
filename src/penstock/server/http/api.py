"""The HTTP API of a server.

Every answer is JSON, apart from the metrics; an error is ``{"code", "message", "hint"}`` with the HTTP status that its kind says. No
answer holds credentials. Handlers are plain functions, which FastAPI runs in its thread pool, because everything below is synchronous;
those that wait for a target or an upstream have pools of their own, and health waits for no thread. Who may call is decided before, in
``guard.py``. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.exceptions import HTTPException

import penstock
from penstock.meta.database import MetaDatabase
from penstock.model.clock import Clock
from penstock.model.errors import InvariantError, PenstockError
from penstock.server.doubts.table_control import DoubtedOf, TableControl
from penstock.server.feeds.control import FeedControl
from penstock.server.feeds.creation import FeedCreator
from penstock.server.feeds.ports import Liveness
from penstock.server.health.report import ServerHealth
from penstock.server.http.answers import error_answer
from penstock.server.http.bodies import checked_tree
from penstock.server.http.call_pool import CallPool, SharedCall
from penstock.server.http.callers import Callers
from penstock.server.http.control_routes import add_control_routes
from penstock.server.http.guard import caller_name
from penstock.server.http.health_routes import add_health_routes
from penstock.server.http.operation_routes import add_operation_routes
from penstock.server.http.table_routes import add_table_routes
from penstock.server.http.token_routes import add_token_routes
from penstock.server.http.views import ShownFeeds
from penstock.server.metrics import render
from penstock.server.openapi.document import document_api
from penstock.server.page.page_routes import add_page_routes
from penstock.server.sql.execution import SqlDesk
from penstock.server.sql.explanation import Explainer
from penstock.server.sql.sql_routes import add_sql_routes
from penstock.server.verify.verification import Verifies
from penstock.server.verify.verify_routes import add_verify_routes
from penstock.store.settings import StoreSettings

CREATIONS_AT_ONCE, CREATIONS_WAITING_MAX = 4, 16
_UNREADABLE = 400
_SEE = "See /api/openapi.json."


def build_api(
    meta: MetaDatabase,
    creator: FeedCreator,
    verifier: Verifies,
    supervisor: Liveness,
    registries: Sequence[CollectorRegistry],
    clock: Clock,
    health: ServerHealth,
    doubted: DoubtedOf = lambda _: None,
    verification: Callable[[str], dict[str, Any] | None] = lambda _: None,
    callers: Callers | None = None,
    kept_s: int = StoreSettings.gc_ttl_seconds,
    parallelism: Callable[[], int] = lambda: 1,
) -> FastAPI:
    """Return the application; ``doubted`` gives the doubted tables of a feed's source, None where they are never in doubt.

    ``verification`` gives what verification on a schedule found of a feed; ``callers`` are those who may call; ``kept_s`` is for how long
    history is kept for a feed that does not get on; ``parallelism`` is how many tasks of a window run at once.
    """
    # Not the pages that FastAPI has: they load scripts from elsewhere.
    app = FastAPI(
        title="Penstock",
        version=penstock.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        redirect_slashes=False,
    )
    _answer_errors(app)
    control = FeedControl(meta, creator, supervisor)
    table_control = TableControl(meta, doubted, control)
    shown = ShownFeeds(meta, creator, table_control, supervisor, clock, health, doubted, verification, kept_s)
    add_table_routes(app, shown, table_control)
    add_control_routes(app, control)
    add_verify_routes(app, meta, verifier)
    explainer = Explainer(meta, creator, parallelism)
    add_sql_routes(app, SqlDesk(control, table_control, shown, verifier, explainer))
    add_page_routes(app)
    add_operation_routes(app, meta, supervisor)
    add_health_routes(app, health)
    if callers is not None:
        add_token_routes(app, callers, clock)
    creations = CallPool("create a feed", CREATIONS_AT_ONCE, CREATIONS_WAITING_MAX)

    # Encoded at once, and once for all who ask: there may be thousands, and other calls wait meanwhile.
    listed = SharedCall("list-feeds", lambda: msgspec.json.encode({"feeds": shown.all()}))

    @app.get("/api/v1/feeds", response_model=dict[str, list[dict[str, Any]]])
    async def list_feeds() -> Response:
        return Response(await listed.get(), media_type="application/json")

    @app.post("/api/v1/feeds", status_code=201)
    async def create_feed(request: Request, tree: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        return await creations.run(lambda: shown.create(checked_tree(tree), caller_name(request.scope)))

    @app.post("/api/v1/feeds/preview")
    async def preview_feed(tree: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        # As EXPLAIN CHANGEFEED: nothing is created, and the target is not asked.
        return await creations.run(lambda: explainer.of_creation(checked_tree(tree)))

    @app.get("/api/v1/feeds/{name}")
    def show_feed(name: str) -> dict[str, Any]:
        return shown.show(name)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(render(registries), media_type=CONTENT_TYPE_LATEST)

    document_api(app)
    return app


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(PenstockError)
    async def penstock_error(_request: Request, error: PenstockError) -> JSONResponse:
        return error_answer(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(_request: Request, error: RequestValidationError) -> JSONResponse:
        # FastAPI's own text repeats what was sent, which may hold credentials; what it says of the query's parts does not.
        wrong = [f"{one['loc'][1]}: {one['msg']}" for one in error.errors() if one["loc"][0] == "query"]
        return error_answer(PenstockError("CONFIG_INVALID", "\n".join(wrong) or "the body must be a JSON object", _SEE))

    @app.exception_handler(HTTPException)
    async def no_such_path(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == _UNREADABLE:
            return error_answer(PenstockError("CONFIG_INVALID", "the body is no JSON that can be read", _SEE))
        text = f"{request.method} {request.url.path}: {error.detail}"
        return error_answer(PenstockError("NOT_FOUND", text, _SEE), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def broken(_request: Request, error: Exception) -> JSONResponse:
        # Its text may repeat what the call held; the log has it all.
        return error_answer(InvariantError(f"the call failed with {type(error).__name__}"))
