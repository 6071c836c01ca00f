"""A real browser on loopback, and a web site that means no good: its page, what it learned, and a name that it points elsewhere.

The browser resolves one made-up name, to a port of the site; all other names lead nowhere. Behind that port stands a relay: at first it
leads to the site, after ``rebind`` to whoever the site wants to reach, as a name does whose owner changes its address. Runs in tests.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REPORT_S_MAX = 180.0
SITE = "evil.example"
_PROGRAMS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Return where a Chromium is, or None."""
    return next((found for name in _PROGRAMS if (found := shutil.which(name)) is not None), None)


class EvilSite:
    """A site whose page runs a script in the browser and reports what the script learned."""

    def __init__(self) -> None:
        self._page = ""
        self.report: dict[str, Any] = {}
        self.reported = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._relay = socket.create_server(("127.0.0.1", 0))
        self.relay_port: int = self._relay.getsockname()[1]
        self._behind = self.port
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._server.serve_forever, self._relay_calls)]

    def __enter__(self) -> EvilSite:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        # A thread that waits for a call is woken by nothing but one.
        with suppress(OSError):
            self._relay.shutdown(socket.SHUT_RDWR)
        self._relay.close()
        for thread in self._threads:
            thread.join(120)
        for one in self._ends:
            one.close()

    def play(self, script: str, **values: Any) -> None:
        """Let the page run a script, which finds these values as constants."""
        constants = "".join(f"const {name} = {json.dumps(value)};" for name, value in values.items())
        self._page = f"<!doctype html><meta charset=utf-8><body><script>{constants}{script}</script>"

    def rebind(self, port: int) -> None:
        """Let the site's name lead to another port from the next connection on."""
        self._behind = port

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(site._page.encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path.startswith("/rebind/"):
                    site.rebind(int(self.path.rpartition("/")[2]))
                elif self.path == "/report":
                    site.report = json.loads(body)
                    site.reported.set()
                self._answer(b"{}")

            def _answer(self, content: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Access-Control-Allow-Origin", "*")
                # The next call of the page makes a new connection, which goes where the name leads by then.
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(content)
                self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Say nothing."""

        return Handler

    def _relay_calls(self) -> None:
        while True:
            try:
                near, _ = self._relay.accept()
                far = socket.create_connection(("127.0.0.1", self._behind))
            except OSError:
                return
            self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65_536):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)


@contextmanager
def browsing(program: str, site: EvilSite, directory: Path) -> Iterator[None]:
    """Open the site's page by its name in a headless browser; end the browser with the block."""
    command = [
        *(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server"),
        # What is tried is the server's own door, not the browser's fence around local addresses.
        "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable",
        f"--host-resolver-rules=MAP {SITE}:80 127.0.0.1:{site.relay_port}, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        *(f"--user-data-dir={directory}", "--remote-debugging-port=0", f"http://{SITE}/"),
    ]
    environment = os.environ | {"HOME": str(directory), "XDG_CONFIG_HOME": str(directory), "XDG_CACHE_HOME": str(directory)}
    with ExitStack() as stack:
        log = stack.enter_context((directory / "browser.log").open("wb"))
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment, cwd=directory)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
