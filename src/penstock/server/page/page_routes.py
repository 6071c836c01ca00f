"""Serves the web page: its files, to anybody who reaches the server, because they hold nothing of it.

What the page shows, it asks of the API with a token that its user gives; the server keeps no session, and the page loads nothing from
elsewhere, which its policy makes the browser enforce. Runs in the server.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import FastAPI, Response
from fastapi.responses import RedirectResponse

PAGE_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page/feed.js": ("feed.js", "text/javascript; charset=utf-8"),
    "/page/views.js": ("views.js", "text/javascript; charset=utf-8"),
    "/page/parts.js": ("parts.js", "text/javascript; charset=utf-8"),
    "/favicon.ico": ("icon.svg", "image/svg+xml"),
}
"""What is served where; a stranger may read these paths, and no others."""
FRIENDLY_PATHS = {
    "/index.html": "/",
    "/health": "/health/ready",
    "/healthz": "/health/live",
    "/livez": "/health/live",
    "/readyz": "/health/ready",
    "/openapi.json": "/api/openapi.json",
    "/docs": "/api/openapi.json",
    "/api/docs": "/api/openapi.json",
}
"""What people and programs try first, and where it is; whether they may read that is asked there."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"}


def add_page_routes(app: FastAPI) -> None:
    """Add a route for each file, and for what leads to where something else is."""
    for path, (name, media_type) in PAGE_FILES.items():
        _add(app, path, name, media_type)
    for path, place in FRIENDLY_PATHS.items():
        _lead(app, path, place)


def _add(app: FastAPI, path: str, name: str, media_type: str) -> None:
    @app.get(path, include_in_schema=False, name=name)
    async def page() -> Response:
        return Response(_content(name), media_type=media_type, headers=_HEADERS)


def _lead(app: FastAPI, path: str, place: str) -> None:
    @app.get(path, include_in_schema=False, name=f"lead {path}")
    async def lead() -> Response:
        return RedirectResponse(place)


@cache
def _content(name: str) -> bytes:
    return files("penstock.server.page").joinpath(name).read_bytes()
