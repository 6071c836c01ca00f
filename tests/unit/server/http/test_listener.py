from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fastapi import FastAPI

from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.server.http.listener import HttpListener

WAIT_S = 120.0
SOON_S = 0.5
TRIES = 20
"""On a busy machine the time may be over before the call is sent."""


def refused(code: str) -> pytest.RaisesExc[PenstockError]:
    return pytest.RaisesExc(PenstockError, check=lambda error: error.code == code)


def test_taken_port_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listener = HttpListener(FastAPI(), "127.0.0.1", taken.getsockname()[1])
        with refused("CONFIG_INVALID"):
            listener.start()
        listener.stop()


def test_a_caller_is_who_connected_whatever_it_says() -> None:
    seen: list[tuple[str, str]] = []

    async def notes(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["client"][0], scope["scheme"]))
        await says_a_lot(scope, receive, send)

    listener = HttpListener(notes, "127.0.0.1", 0)
    listener.start()
    said = "X-Forwarded-For: 10.1.2.3\r\nX-Forwarded-Proto: https\r\nForwarded: for=10.1.2.3;proto=https\r\nConnection: close"
    with socket.create_connection(("127.0.0.1", int(listener.url.rpartition(":")[2]))) as wire:
        wire.sendall(f"GET /1 HTTP/1.1\r\nHost: localhost\r\n{said}\r\n\r\n".encode())
        assert read_to_end(wire).startswith(b"HTTP/1.1 200")
    listener.stop()
    assert seen == [("127.0.0.1", "http")]


async def says_a_lot(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once, without looking at the body: a path of a number with so many bytes."""
    del receive
    nbytes = int(scope["path"].strip("/"))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % nbytes)]})
    await send({"type": "http.response.body", "body": bytes(nbytes)})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    listener = HttpListener(says_a_lot, "127.0.0.1", 0, wait_s_max=SOON_S)
    listener.start()
    yield int(listener.url.rpartition(":")[2])
    listener.stop()


def read_to_end(wire: socket.socket) -> bytes:
    """Return all that comes until the server ends the connection, which it must."""
    wire.settimeout(WAIT_S)
    content = b""
    try:
        while more := wire.recv(1 << 16):
            content += more
    except ConnectionResetError:
        pass
    return content


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"", b""),
        (b"GET /1 HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b""),
        # The next head on a connection that is kept, and a body that nobody reads.
        (b"GET /1 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /1 HT", b"HTTP/1.1 200"),
        (b"POST /1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1", b"HTTP/1.1 200"),
    ],
    ids=["nothing", "half a head", "half of the next head", "half a body"],
)
def test_who_sends_slowly_is_not_waited_for(port: int, sent: bytes, answered: bytes) -> None:
    for _ in range(TRIES):
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as wire:
            wire.sendall(sent)
            if read_to_end(wire)[:12] == answered:
                return
    pytest.fail("never answered as it should be")


def test_no_byte_moves_the_deadline(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as wire:
        wire.sendall(b"POST /1 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        wire.settimeout(SOON_S / 10)
        for _ in range(round(WAIT_S / SOON_S * 10)):
            try:
                wire.sendall(b"1\r\nx\r\n")
                if wire.recv(1 << 16) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
        pytest.fail("it went on for ever")


def test_who_does_not_take_the_answer_is_not_waited_for(port: int) -> None:
    for _ in range(TRIES):
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as wire, contextlib.suppress(ConnectionError):
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.sendall(b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % (64 << 20))
            if wire.recv(12) != b"HTTP/1.1 200":
                continue
            # What is sent to a connection that the other side has ended is an error, though what came before is not read.
            with pytest.raises(ConnectionError):
                send_on(wire)
            return
    pytest.fail("never answered")


def send_on(wire: socket.socket) -> None:
    clock, never = SystemClock(), threading.Event()
    for _ in range(round(WAIT_S / SOON_S)):
        wire.sendall(b"x")
        clock.wait(never, SOON_S)


def test_no_number_of_connections_takes_the_files_of_the_process() -> None:
    listener = HttpListener(says_a_lot, "127.0.0.1", 0, wait_s_max=WAIT_S, connections_max=8)
    listener.start()
    with contextlib.ExitStack() as stack:
        stack.callback(listener.stop)
        address = ("127.0.0.1", int(listener.url.rpartition(":")[2]))
        wires = [stack.enter_context(socket.create_connection(address, WAIT_S)) for _ in range(10)]
        # Nine are held, one more than are answered; the tenth is ended.
        assert ended(wires) == 1
        wires[0].sendall(b"GET /1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wires[0].recv(12) == b"HTTP/1.1 503"


def ended(wires: Sequence[socket.socket]) -> int:
    """Wait, without reading, until the other side has ended a connection; return how many it has."""
    poll = select.poll()
    for wire in wires:
        poll.register(wire, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return len(poll.poll(WAIT_S * 1000))


def test_a_process_that_may_have_more_files_takes_them() -> None:
    program = """
import resource
from penstock.server.http.listener import HttpListener
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048))
listener = HttpListener(None, "127.0.0.1", 0)
listener.start()
listener.stop()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.strip() == "(2048, 2048)"
