"""A proxy in front of a TCP server that cuts connections where a client says something, or is not there for a while.

``cut(marker)`` closes the next connection on which a client sends the marker, before the server sees it; ``lose_answer(marker)`` lets the
server do it and closes the connection when the answer comes. Runs in tests.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator

_CHUNK = 1 << 16
_WAIT_S = 60.0


class CutProxy:
    """A running proxy on ``port``. ``counts`` says what happened."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self.counts: Counter[str] = Counter()
        self.pause_s = 0.0
        """How long each piece that a client sends is held."""
        self._lock = threading.Lock()
        self._plans: list[tuple[str, bytes]] = []
        self._open: set[socket.socket] = set()
        self._is_down = False
        self._held = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="cut-proxy", daemon=True)
        self._thread.start()

    def cut(self, marker: bytes) -> None:
        """Have the next connection on which a client says this closed before it is passed on."""
        with self._lock:
            self._plans.append(("cut", marker))

    def lose_answer(self, marker: bytes) -> None:
        """Have the next connection on which a client says this closed once the server has answered."""
        with self._lock:
            self._plans.append(("lost", marker))

    def forget(self) -> None:
        """Let everything through from now on."""
        with self._lock:
            self._plans.clear()

    def go_down(self) -> None:
        """Close every connection, and every one that comes."""
        with self._lock:
            self._is_down = True
            opened = list(self._open)
        for one in opened:
            _shut(one)

    def come_up(self) -> None:
        """Let connections through again."""
        with self._lock:
            self._is_down = False

    def close(self) -> None:
        """Stop."""
        self.go_down()
        self._held.set()
        _shut(self._listener)
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                is_down = self._is_down
                self.counts["refused" if is_down else "passed"] += 1
            try:
                server = None if is_down else socket.create_connection(self._upstream, timeout=_WAIT_S)
            except OSError:
                server = None
            if server is None:
                _shut(client)
                continue
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            loses = threading.Event()
            for source, to, is_client in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pass_on, args=(source, to, loses, is_client), name="cut-proxy", daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket, loses: threading.Event, is_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                if is_client:
                    if self.pause_s:
                        self._held.wait(self.pause_s)
                    fault = self._fault(data)
                    if fault == "cut":
                        break
                    if fault == "lost":
                        loses.set()
                elif loses.is_set():
                    break
                to.sendall(data)
        with self._lock:
            self._open -= {source, to}
        _shut(source)
        _shut(to)

    def _fault(self, data: bytes) -> str:
        with self._lock:
            for plan in self._plans:
                if plan[1] in data:
                    self._plans.remove(plan)
                    self.counts[plan[0]] += 1
                    return plan[0]
        return ""


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        one.close()


@contextlib.contextmanager
def cut_proxy(host: str, port: int) -> Iterator[CutProxy]:
    """Run a proxy in front of a server."""
    proxy = CutProxy(host, port)
    try:
        yield proxy
    finally:
        proxy.close()
