"""How errors are answered: status and JSON body, for routes and for what refuses a call before any route. Runs in the server."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi.responses import JSONResponse

from penstock.model.errors import ErrorKind, PenstockError
from penstock.settings.masking import mask_text

_STATUS_BY_CODE = {
    "API_TOKEN_REQUIRED": 401,
    "API_FORBIDDEN": 403,
    "API_PLACE_REFUSED": 403,
    "API_BODY_REFUSED": 413,
    "API_BUSY": 429,
    "FEED_UNKNOWN": 404,
    "FEED_EXISTS": 409,
    "SINK_FORBIDDEN": 403,
    "SINK_OCCUPIED": 409,
    "TOKEN_UNKNOWN": 404,
}
_STATUS_BY_KIND = {
    ErrorKind.INVALID: 422,
    ErrorKind.BLOCKED: 424,
    ErrorKind.TRANSIENT: 503,
    ErrorKind.FENCED: 409,
    ErrorKind.CORRUPT: 500,
    ErrorKind.BUG: 500,
}
_HEADERS: dict[str, dict[str, str]] = {"API_TOKEN_REQUIRED": {"WWW-Authenticate": "Bearer"}, "API_BUSY": {"Retry-After": "1"}}


def status_of(error: PenstockError) -> int:
    """Return the HTTP status of an error."""
    return _STATUS_BY_CODE.get(error.code) or _STATUS_BY_KIND[error.kind]


def error_body(error: PenstockError) -> dict[str, str]:
    """Return an error as the API answers it."""
    return {"code": error.code, "message": _printable(mask_text(error.detail)), "hint": error.hint}


def error_answer(error: PenstockError, status: int | None = None, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the answer to a call that failed."""
    return JSONResponse(error_body(error), status or status_of(error), {**_HEADERS.get(error.code, {}), **(headers or {})})


def _printable(text: str) -> str:
    """Return a text that can be sent: half a surrogate pair, which JSON can name and UTF-8 cannot hold, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
