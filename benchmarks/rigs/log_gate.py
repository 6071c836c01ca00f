"""A gate before the log of a MySQL server: what a reader of it is sent can be held and let through again.

So two readers that are connected and warm begin at the same place of a log that is complete, one after the other. Other connections
through the gate are passed on as they are. Runs in benchmarks.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

_CHUNK = 1 << 18
_DUMPS = frozenset({0x12, 0x1E})
"""The commands by which a client asks for the log."""


class LogGate:
    """A proxy on ``port`` of loopback before a server on another port."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._is_open = threading.Event()
        self._is_open.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="log-gate", daemon=True).start()

    def hold(self) -> None:
        """Let nothing more of the log through."""
        self._is_open.clear()

    def release(self) -> None:
        """Let it through again."""
        self._is_open.set()

    def close(self) -> None:
        """Close all connections."""
        self.release()
        for one in (self._listener, *self._sockets):
            _shut(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [client, server]
                reads_log = threading.Event()
                for source, to in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, to, source is client, reads_log), daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket, is_client: bool, reads_log: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                if is_client and len(data) > 4 and data[3] == 0 and data[4] in _DUMPS:
                    reads_log.set()
                elif not is_client and reads_log.is_set():
                    self._is_open.wait()
                to.sendall(data)
        _shut(source)
        _shut(to)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        one.close()


@contextlib.contextmanager
def log_gate(port: int) -> Iterator[LogGate]:
    """Run a gate before the server on a port."""
    gate = LogGate(port)
    try:
        yield gate
    finally:
        gate.close()
