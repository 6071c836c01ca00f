"""What every call passes before any route sees it: the place that it was sent to, the token, the rate, the body.

The order is that of cost: nothing is read from a stranger but the head of the call, and nothing of a body beyond its bound from anybody.
A web page cannot get in: its origin is not ours, a name that it points at this machine is none of our hosts, and no browser sends a token
by itself. Roles go by method and path, so a route that somebody adds is closed to those who may only read unless it only reads. Runs in
the server, in the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.config.api_settings import ApiSettings, is_loopback
from penstock.meta.api_tokens import Role
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.server.http.answers import error_answer
from penstock.server.http.call_rates import CallRates
from penstock.server.http.callers import Caller, Callers
from penstock.server.page.page_routes import FRIENDLY_PATHS, PAGE_FILES

log = logging.getLogger(__name__)

TOKENS_PATH = "/api/v1/tokens"
STRANGER_CALLS_PER_SECOND, STRANGER_CALLS_BURST = 20.0, 100.0
_BODY_S_MAX = 30.0
_READING = frozenset({"GET", "HEAD"})
_SAFE_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
_UNSUPPORTED_MEDIA, _BAD_REQUEST = 415, 400
_CALLER = "penstock.caller"
_HOST = re.compile(r"(?:\[(?P<address>[^\[\]@]+)\]|(?P<name>[^\[\]@:]+))(?::\d{1,5})?", re.ASCII)
_REPEATED_CHARS_MAX = 200
"""How much of what a stranger sent an answer repeats."""


class ApiGuard:
    """Lets calls through to an application, or answers them itself."""

    def __init__(self, app: ASGIApp, settings: ApiSettings, callers: Callers, http_host: str, clock: Clock) -> None:
        self._app = app
        self._settings = settings
        self._callers = callers
        self._hosts = frozenset(host.lower() for host in (http_host, *settings.hosts))
        self._origins = frozenset(origin.lower() for origin in settings.origins)
        self._open = frozenset({*settings.open_paths, *PAGE_FILES, *FRIENDLY_PATHS})
        self._rates = CallRates(settings.requests_per_second, 2 * settings.requests_per_second, clock)
        self._stranger_rates = CallRates(STRANGER_CALLS_PER_SECOND, STRANGER_CALLS_BURST, clock)
        # Of its own: where the meta database does not answer, only calls wait that need it.
        self._reader = ThreadPoolExecutor(1, "api-tokens")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _with_safe_headers(send)
        try:
            receive = await self._pass(scope, receive)
        except _RefusedError as refused:
            await error_answer(refused.error, refused.status)(scope, receive, send)
            return
        # What looks whether a server is there often asks for the head alone; the listener leaves the body out.
        await self._app({**scope, "method": "GET"} if scope["method"] == "HEAD" else scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive) -> Receive:
        """Return from where the application receives the call; raise where it must not."""
        headers = _headers(scope)
        self._check_place(scope, headers)
        caller = await self._caller(headers)
        method, path = scope["method"], scope["path"]
        client = scope["client"][0] if scope.get("client") else ""
        if not (self._rates.take(caller.key) if caller else self._stranger_rates.take(client)):
            raise _RefusedError(PenstockError("API_BUSY", f"{caller.name if caller else client} calls too often"))
        if caller is None:
            if path not in self._open or method not in _READING:
                raise _RefusedError(PenstockError("API_TOKEN_REQUIRED", f"{_short(method)} {_short(path)}: {_what_is_missing(headers)}"))
        elif not caller.role.allows(needed := needed_role(method, path)):
            log.warning("api call refused", extra=_logged(method, path, caller, client) | {"needs": needed.value})
            raise _RefusedError(
                PenstockError(
                    "API_FORBIDDEN",
                    f"{_short(method)} {_short(path)} needs the role {needed.value}; {caller.name} has {caller.role.value}",
                )
            )
        scope[_CALLER] = caller.name if caller else ""
        if caller is not None and method not in _READING:
            log.info("api call", extra=_logged(method, path, caller, client))
        handed_on = await self._bounded(headers, receive)
        if handed_on is not receive and caller is not None and await self._caller(headers) is None:
            raise _RefusedError(PenstockError("API_TOKEN_REQUIRED", "the token ended while the body was sent"))
        return handed_on

    def _check_place(self, scope: Scope, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        name = _host_name(host)
        # An address that the call arrived at is ours as well: no name of somebody else's leads a browser to write it.
        if not (is_loopback(name) or name in self._hosts or (scope.get("server") and name == scope["server"][0])):
            raise _RefusedError(PenstockError("API_PLACE_REFUSED", f"this server does not go by the name {_short(name)!r}"))
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in self._origins and origin.lower() != f"{scope['scheme']}://{host.lower()}":
            raise _RefusedError(PenstockError("API_PLACE_REFUSED", f"the call comes from a web page of {_short(origin)!r}"))

    async def _caller(self, headers: dict[str, str]) -> Caller | None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return None
        caller, certain = self._callers.find(token.strip())
        if not certain:
            try:
                await asyncio.get_running_loop().run_in_executor(self._reader, self._callers.refresh)
            except PenstockError as error:
                raise _RefusedError(error) from None
            caller, _ = self._callers.find(token.strip())
        return caller

    async def _bounded(self, headers: dict[str, str], receive: Receive) -> Receive:
        """Read the body, up to its bound, and return what hands it to the application."""
        if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
            return receive
        nbytes_max = self._settings.body_bytes_max
        too_large = PenstockError("API_BODY_REFUSED", f"a body has at most {nbytes_max} bytes")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > nbytes_max:
            raise _RefusedError(too_large)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise _RefusedError(PenstockError("API_BODY_REFUSED", "the Content-Type must be application/json"), _UNSUPPORTED_MEDIA)
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_S_MAX):
                while (message := await receive())["type"] == "http.request":
                    body += message.get("body", b"")
                    if len(body) > nbytes_max:
                        raise _RefusedError(too_large)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise _RefusedError(PenstockError("API_BODY_REFUSED", f"the body took longer than {_BODY_S_MAX:.0f} s"), 408) from None
        return _handed_on(bytes(body), receive)


class _RefusedError(Exception):
    """A call that no route sees."""

    def __init__(self, error: PenstockError, status: int | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.status = status


def caller_name(scope: Mapping[str, Any]) -> str:
    """Return who made a call that the guard let through, for the record."""
    return str(scope.get(_CALLER, ""))


def needed_role(method: str, path: str) -> Role:
    """Return the role that a call needs: tokens are the admin's alone, and what does not only read needs an operator."""
    if path.startswith(TOKENS_PATH):
        return Role.ADMIN
    return Role.READ if method in _READING else Role.OPERATE


def _logged(method: str, path: str, caller: Caller, client: str) -> dict[str, str]:
    return {"method": _short(method), "path": ascii(_short(path)), "caller": caller.name, "client": client}


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers; one that comes twice and decides who calls is refused."""
    found: dict[str, str] = {}
    for key, value in scope["headers"]:
        name = key.decode("latin-1")
        if name in found and name in {"host", "origin", "authorization", "content-length", "transfer-encoding"}:
            raise _RefusedError(PenstockError("API_PLACE_REFUSED", f"the header {name} comes twice"), _BAD_REQUEST)
        found[name] = value.decode("latin-1")
    if {"content-length", "transfer-encoding"} <= found.keys():
        # What stands before this server may believe the other one, and see two calls where this one sees one.
        raise _RefusedError(PenstockError("API_PLACE_REFUSED", "the body has two lengths"), _BAD_REQUEST)
    return found


def _host_name(host: str) -> str:
    """Return the name or address of a Host header, without its port; the whole of one that is neither."""
    found = _HOST.fullmatch(host)
    return (found["address"] or found["name"] if found else host).lower()


def _short(text: str) -> str:
    return text if len(text) <= _REPEATED_CHARS_MAX else f"{text[:_REPEATED_CHARS_MAX]}…"


def _what_is_missing(headers: dict[str, str]) -> str:
    given = "authorization" in headers
    return "the token is unknown, expired or revoked" if given else "the call carries no token (Authorization: Bearer ...)"


def _handed_on(body: bytes, receive: Receive) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message


def _with_safe_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_SAFE_HEADERS]
        await send(message)

    return sending
