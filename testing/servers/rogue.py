"""Servers that mean no good: a real socket on loopback that plays a script to whoever connects, and keeps what it was told.

A script speaks raw bytes; the helpers below frame them as MySQL, PostgreSQL and S3 do. What a script does not read is lost; when it returns
the connection is closed. Runs in tests.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from testing.servers.loopback import http_server

_PLUGIN_AUTH, _SECURE, _PROTOCOL_41, _LENENC, _SSL = 1 << 19, 1 << 15, 1 << 9, 1 << 21, 1 << 11
_ANSWER_S = 60.0


class Peer:
    """One who connected. Everything read from it is kept."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self.heard = b""

    def read(self, count: int) -> bytes:
        """Return so many bytes, fewer where the peer went away."""
        data = b""
        while len(data) < count:
            more = self._raw.recv(count - len(data))
            if not more:
                break
            data += more
        self.heard += data
        return data

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Go on under TLS; OSError where the peer does not like what it is shown."""
        self._raw = context.wrap_socket(self._raw, server_side=True)

    def wait_gone(self, wait_s: float) -> bool:
        """Return whether the peer went away, at most so long after."""
        waiter = select.poll()
        waiter.register(self._raw, select.POLLRDHUP)
        return bool(waiter.poll(wait_s * 1000))

    def close(self) -> None:
        """End the connection."""
        self._raw.close()

    def send(self, data: bytes) -> None:
        """Send bytes; a peer that went away hears nothing."""
        with contextlib.suppress(OSError):
            self._raw.sendall(data)

    def read_mysql(self) -> bytes:
        """Return the payload of one packet of MySQL."""
        return self.read(int.from_bytes(self.read(4)[:3], "little"))

    def read_postgres(self, typed: bool = True) -> bytes:
        """Return the body of one message of PostgreSQL; the first one has no type."""
        head = self.read(5 if typed else 4)
        return self.read(max(0, int.from_bytes(head[-4:], "big") - 4))


class RogueServer:
    """A server that plays one script to each connection."""

    def __init__(self, script: Callable[[Peer], None]) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.peers: list[Peer] = []
        self._thread = threading.Thread(target=self._serve, name="rogue", daemon=True)
        self._thread.start()

    @property
    def heard(self) -> bytes:
        """Return all that was read so far."""
        return b"".join(peer.heard for peer in self.peers)

    def close(self) -> None:
        """Stop listening, and wait until the script that runs has ended."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_ANSWER_S)

    def _serve(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            raw.settimeout(_ANSWER_S)
            peer = Peer(raw)
            self.peers.append(peer)
            with contextlib.closing(peer), contextlib.suppress(OSError):
                self._script(peer)


@contextmanager
def rogue(script: Callable[[Peer], None]) -> Iterator[RogueServer]:
    """Run a script for everybody who connects until the block ends."""
    server = RogueServer(script)
    try:
        yield server
    finally:
        server.close()


def mysql_packet(number: int, payload: bytes) -> bytes:
    """Return one packet."""
    return struct.pack("<I", len(payload))[:3] + bytes([number]) + payload


def mysql_greeting(plugin: str = "mysql_native_password", *, tls: bool = False) -> bytes:
    """Return the greeting of a server, which offers TLS or not."""
    flags = _PLUGIN_AUTH | _SECURE | _PROTOCOL_41 | _LENENC | (_SSL if tls else 0)
    head = b"\x0a8.0.40\0" + struct.pack("<I", 7) + b"saltsalt\0" + struct.pack("<HBHHB", flags & 0xFFFF, 45, 2, flags >> 16, 21)
    return mysql_packet(0, head + bytes(10) + b"saltsaltsalt\0" + plugin.encode() + b"\0")


def mysql_switch(number: int, plugin: str) -> bytes:
    """Return a request to prove the password in another way."""
    return mysql_packet(number, b"\xfe" + plugin.encode() + b"\0" + b"saltsaltsaltsaltsalt\0")


def postgres_message(kind: bytes, body: bytes) -> bytes:
    """Return one message."""
    return kind + struct.pack("!i", len(body) + 4) + body


def postgres_asks(method: int, rest: bytes = b"") -> bytes:
    """Return a request for authentication, 0 where the server is content."""
    return postgres_message(b"R", struct.pack("!i", method) + rest)


def mysql_answers(row: Sequence[bytes | None]) -> Callable[[Peer], None]:
    """Let everybody in, and answer every question with two rows that are alike."""
    done = bytes([0, 0, 0, 2, 0, 0, 0])
    end = b"\xfe\0\0\2\0"
    column = b"\x03def" + bytes(5) + b"\x0c" + struct.pack("<HIBHB", 45, 10, 253, 0, 0) + bytes(2)
    values = b"".join(b"\xfb" if value is None else bytes([len(value)]) + value for value in row)
    answer = [bytes([len(row)]), *[column] * len(row), end, values, values, end]

    def script(peer: Peer) -> None:
        peer.send(mysql_greeting())
        peer.read_mysql()
        peer.send(mysql_packet(2, done))
        while asked := peer.read_mysql():
            is_question = asked[:1] == b"\x03" and asked[1:4].upper() != b"SET"
            peer.send(b"".join(mysql_packet(at, part) for at, part in enumerate(answer if is_question else [done], 1)))

    return script


def postgres_answers(row: Sequence[bytes | None]) -> Callable[[Peer], None]:
    """Let everybody in, and answer every question with two rows that are alike."""
    values = b"".join(struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value for value in row)
    ready = postgres_message(b"Z", b"I")
    answer = postgres_message(b"T", bytes(2)) + 2 * postgres_message(b"D", struct.pack("!H", len(row)) + values) + ready

    def script(peer: Peer) -> None:
        peer.read(8)
        peer.send(b"N")
        peer.read_postgres(typed=False)
        peer.send(postgres_asks(0) + postgres_message(b"S", b"server_version\x0015.1\0") + ready)
        while peer.read_postgres():
            peer.send(answer)

    return script


def mysql_in_clear(peer: Peer) -> None:
    """Ask for the password in clear."""
    peer.send(mysql_greeting())
    peer.read_mysql()
    peer.send(mysql_switch(2, "mysql_clear_password"))
    peer.read_mysql()


def postgres_in_clear(peer: Peer) -> None:
    """Ask for the password in clear."""
    # Requests for encryption are eight bytes long, and the startup message is longer.
    while (length := int.from_bytes(peer.read(4), "big")) == 8:
        peer.read(4)
        peer.send(b"N")
    peer.read(max(0, length - 4))
    peer.send(postgres_asks(3))
    peer.read_postgres()


@contextmanager
def rogue_bucket(answers: Mapping[str, tuple[int, bytes]]) -> Iterator[str]:
    """Serve S3's API with fixed answers by what the path and query contain, 404 otherwise; yield the endpoint.

    The answer of a redirection is where it leads.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            status, body = next((given for part, given in answers.items() if part in self.path), (404, b""))
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", body.decode())
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Last-Modified", "Mon, 16 Nov 2026 00:00:00 GMT")
            self.send_header("ETag", '"rogue"')
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_DELETE = _answer  # noqa: N815 - the names that http.server looks for

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with http_server(Handler) as address:
        yield address
