"""The OpenAPI document: FastAPI's own, with the types of answers and the errors that each route gives in the place of its guesses.

Invariants: every route has an answer of a type and the statuses of its errors, or the document is not made; operation ids are short and
their own. Made once, when it is first asked for. Runs in the server.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from penstock.model.errors import InvariantError
from penstock.server.openapi import answers as a

_TEMPLATE = "#/components/schemas/{name}"
_FEED = "/api/v1/feeds/{name}"
_SHOWN = (a.Feed, a.FeedGroup)
TYPES: dict[tuple[str, str], tuple[int, tuple[Any, ...]]] = {
    ("get", "/api/v1/feeds"): (200, (a.Feeds,)),
    ("post", "/api/v1/feeds"): (201, _SHOWN),
    ("post", "/api/v1/feeds/preview"): (200, (a.Preview,)),
    ("get", _FEED): (200, _SHOWN),
    ("delete", _FEED): (202, (a.Control,)),
    ("get", f"{_FEED}/tables"): (200, (a.Tables,)),
    ("get", f"{_FEED}/history"): (200, (a.History,)),
    ("get", f"{_FEED}/verify"): (200, (a.VerificationProgress,)),
    ("post", f"{_FEED}/verify"): (200, (a.Verification,)),
    ("delete", f"{_FEED}/verify"): (202, (a.CancelledVerification,)),
    ("get", f"{_FEED}/ranges"): (200, (a.Ranges,)),
    ("get", f"{_FEED}/dead-letters"): (200, (a.DeadLetters,)),
    ("post", f"{_FEED}/dead-letters/{{letter}}/show"): (200, (dict[str, Any],)),
    ("post", f"{_FEED}/dead-letters/{{letter}}/retry"): (200, (a.TakenLetter,)),
    ("get", "/api/v1/sql"): (200, (a.SqlOutcome,)),
    ("post", "/api/v1/sql"): (200, (a.SqlOutcome,)),
    ("get", "/api/v1/logs"): (200, (a.LogLines,)),
    ("get", "/api/v1/servers"): (200, (a.Servers,)),
    ("get", "/api/v1/server/drain"): (200, (a.Draining,)),
    ("post", "/api/v1/server/drain"): (202, (a.Draining,)),
    ("delete", "/api/v1/server/drain"): (202, (a.Draining,)),
    ("get", "/health/live"): (200, (a.Liveness,)),
    ("get", "/health/ready"): (200, (a.Health,)),
    ("get", "/api/v1/health"): (200, (a.Health,)),
    ("get", "/api/v1/tokens"): (200, (a.Tokens,)),
    ("post", "/api/v1/tokens"): (201, (a.Token,)),
    ("delete", "/api/v1/tokens/{token_id}"): (200, (a.Token,)),
}
_HEALTH = ("/health/live", "/health/ready", "/api/v1/health")
_ERRORS = {
    400: "The call cannot be read.",
    401: "No token, or one that is unknown, expired or revoked.",
    403: "The token's role, the place or the target does not allow it.",
    404: "There is no such thing.",
    408: "The body took too long.",
    409: "It is there already, belongs to another, or another owner lives.",
    413: "The body is too large.",
    415: "The body is no application/json.",
    422: "The request is wrong; the message lists every problem.",
    424: "An operator must act first: the source or the target refuses.",
    429: "Too many calls; try again after a second.",
    500: "Penstock broke its own rule, or data is damaged.",
    503: "Something does not answer; try again.",
}
_ALWAYS = (400, 401, 403, 408, 413, 415, 429, 500, 503)
"""A body may be sent to any route, and is looked at before it."""


def document_api(app: FastAPI) -> None:
    """Let an application answer with this document."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    types = {kind for _, kinds in TYPES.values() for kind in kinds if kind != dict[str, Any]} | {a.Error, a.Table, a.Control}
    _, schemas = msgspec.json.schema_components(sorted(types, key=lambda kind: kind.__name__), ref_template=_TEMPLATE)
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            operation["operationId"] = _id(method, path)
            operation["responses"] = _responses(method, path, operation)
    found["components"] = {
        "schemas": schemas,
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
    found["security"] = [{"token": []}]
    return found


def _responses(method: str, path: str, operation: dict[str, Any]) -> dict[str, Any]:
    if path == "/metrics":
        good = {"200": {"description": "Metrics for Prometheus.", "content": {"text/plain": {"schema": {"type": "string"}}}}}
    else:
        status, kinds = _answer(method, path)
        good = {str(status): _response(kinds)}
    errors = {status: _response((a.Error,), _ERRORS[status]) for status in _statuses(method, path, operation)}
    if path in _HEALTH:
        # What does not fare well says so with the same body.
        errors[503] = _response((*_answer(method, path)[1], a.Error), "It does not fare well.")
    return good | {str(status): errors[status] for status in sorted(errors)}


def _answer(method: str, path: str) -> tuple[int, tuple[Any, ...]]:
    if (method, path) in TYPES:
        return TYPES[method, path]
    if method == "post" and path.startswith(f"{_FEED}/tables/"):
        return 202, (a.Table,)
    if method == "post" and path.startswith(f"{_FEED}/") and path.count("/") == _FEED.count("/") + 1:
        return 202, (a.Control,)
    raise InvariantError(f"{method} {path} has no type of its answer")


def _statuses(method: str, path: str, operation: dict[str, Any]) -> set[int]:
    """Return the statuses of the errors that a route may give."""
    found = {*_ALWAYS}
    if "requestBody" in operation or any(one["in"] == "query" for one in operation.get("parameters", ())):
        found |= {422}
    if "{" in path:
        found |= {404}
    if method != "get" or path.endswith("/sql"):
        found |= {404, 409, 422, 424}
    if path.startswith(_FEED):
        # Targets and sources are asked.
        found |= {422, 424}
    return found


def _response(kinds: tuple[Any, ...], text: str = "") -> dict[str, Any]:
    schemas = [{"type": "object"} if kind == dict[str, Any] else {"$ref": _TEMPLATE.format(name=kind.__name__)} for kind in kinds]
    described = text or (kinds[0].__doc__ or "An answer.").splitlines()[0]
    return {"description": described, "content": {"application/json": {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}}


def _id(method: str, path: str) -> str:
    """Return a short name: the parts of the path that name things, behind the method."""
    parts = [part for part in path.removeprefix("/api/v1").split("/") if part and not part.startswith("{")]
    one = "_one" if path.endswith("}") else ""
    return "_".join([method, *(part.replace("-", "_") for part in parts)]) + one
