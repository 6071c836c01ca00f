"""A proxy in front of an HTTP server that lets requests fail: 503, an answer that comes too late, an answer that is lost.

Which requests fail is decided by a seeded generator. A lost answer means that the request was done and its caller never hears of it; a
slow one is held until the caller has given up or the proxy goes on. Headers pass as they are, so signatures stay right. Runs in tests.
"""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "proxy-connection"})
_CALL_S = 60.0


@dataclass(frozen=True)
class FaultShares:
    """Which part of the writing requests fails, and how; reading ones are only refused."""

    refused: float = 0.05
    lost: float = 0.05
    slow: float = 0.01
    slow_s: float = 5.0


class FaultProxy:
    """A running proxy. ``shares`` may be replaced while it runs; ``counts`` says what happened."""

    def __init__(self, endpoint: str, shares: FaultShares, seed: int = 1) -> None:
        parts = urlsplit(endpoint)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.shares = shares
        self.counts: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._released = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                proxy.handle(self)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _answer  # noqa: N815 - the names that http.server looks for

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="fault-proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Pass one request on, or let it fail."""
        body = _body(request)
        fault = self._choose(request.command)
        with self._lock:
            self.counts[fault] += 1
        if fault == "refused":
            request.send_response(503)
            request.send_header("content-length", "0")
            request.end_headers()
            return
        status, headers, content = self._call(request, body)
        if fault == "slow":
            self._released.wait(self.shares.slow_s)
        if fault == "lost":
            request.close_connection = True
            return
        try:
            request.send_response(status)
            for name, value in headers:
                if name.lower() not in _HOP | {"content-length", "date", "server"}:
                    request.send_header(name, value)
            length = {n.lower(): v for n, v in headers}.get("content-length", "0") if request.command == "HEAD" else len(content)
            request.send_header("content-length", str(length))
            request.end_headers()
            if request.command != "HEAD":
                request.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            request.close_connection = True

    def _choose(self, command: str) -> str:
        shares = self.shares
        with self._lock:
            drawn = self._random.random()
        if drawn < shares.refused:
            return "refused"
        if command not in {"PUT", "POST"} or drawn >= shares.refused + shares.lost + shares.slow:
            return "passed"
        return "lost" if drawn < shares.refused + shares.lost else "slow"

    def _call(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self._upstream, timeout=_CALL_S)
        try:
            connection.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in _HOP | {"content-length"}:
                    connection.putheader(name, value)
            if body or "content-length" in request.headers:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


def _body(request: BaseHTTPRequestHandler) -> bytes:
    """Read what a request sends, also where it does not say how much that is."""
    if request.headers.get("transfer-encoding", "").lower() != "chunked":
        return request.rfile.read(int(request.headers.get("content-length", 0)))
    parts = []
    while size := int(request.rfile.readline().partition(b";")[0], 16):
        parts.append(request.rfile.read(size))
        request.rfile.readline()
    while request.rfile.readline().strip():
        continue
    return b"".join(parts)


@contextmanager
def fault_proxy(endpoint: str, shares: FaultShares | None = None, seed: int = 1) -> Iterator[FaultProxy]:
    """Run a proxy in front of an endpoint."""
    proxy = FaultProxy(endpoint, shares or FaultShares(), seed)
    try:
        yield proxy
    finally:
        proxy.close()
