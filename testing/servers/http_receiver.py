"""A receiver of an HTTP target for tests: takes batches as its page tells receivers to, with faults that a test scripts.

It checks signatures by itself, keeps everything that came, and applies each lane's messages once, in their order. Invariant: what it
answers 2xx to is applied or was before. Thread safe.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from testing.servers.loopback import http_server


class Fault(NamedTuple):
    """What happens to a message instead of being taken and answered."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    take: bool = False
    """Whether it is taken all the same: the answer says something else, or does not arrive."""
    cut: bool = False
    """The connection ends in the middle of the answer."""
    hold: threading.Event | None = None
    """Wait for this before anything else."""


class Received(NamedTuple):
    """One request as it came."""

    headers: dict[str, str]
    body: bytes
    status: int

    @property
    def told(self) -> dict[str, Any]:
        """Return the body."""
        told: dict[str, Any] = json.loads(self.body)
        return told


class Receiver:
    """What came, and the tables that it makes."""

    def __init__(self, secret: bytes = b"") -> None:
        self.secret = secret
        self.requests: list[Received] = []
        self.faults: Callable[[dict[str, Any]], Fault | None] = lambda _: None
        self.rows: dict[str, dict[Any, dict[str, Any]]] = {}
        self.changes: dict[str, list[dict[str, Any]]] = {}
        self.ddls: list[dict[str, Any]] = []
        self.checkpoint_ts = 0
        self.repeats = 0
        self._last: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()
        self.url = ""

    @property
    def uri(self) -> str:
        """Return it as a target."""
        return self.url.replace("://", "+json://") + "/changes"

    def state(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table by what they hold."""
        return sorted(self.rows.get(name, {}).values(), key=json.dumps)

    def bodies(self) -> list[dict[str, Any]]:
        """Return everything that came."""
        return [one.told for one in self.requests]

    def is_signed(self, headers: dict[str, str], body: bytes) -> bool:
        """Return whether a body has the signature that it should have."""
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        wanted = base64.b64encode(hmac.new(self.secret, signed, hashlib.sha256).digest()).decode()
        return headers["webhook-signature"] == f"v1,{wanted}"

    def take(self, message: dict[str, Any], *, redelivery: bool = False) -> None:
        """Apply a message unless its lane has it already."""
        place = message["feed"], message["lane"]
        if not redelivery and message["sequence"] <= self._last.get(place, ""):
            self.repeats += 1
            return
        self._last[place] = max(message["sequence"], self._last.get(place, ""))
        if message["type"] == "checkpoint":
            self.checkpoint_ts = max(self.checkpoint_ts, int(message["checkpoint_ts"]))
        elif message["type"] == "ddl":
            self.ddls.append(message)
            for table in message["tables"]:
                self._change(f"{table['schema']}.{table['table']}", table, message["kind"])
        else:
            name = f"{message['schema']}.{message['table']}"
            for event in message["events"]:
                self.changes.setdefault(name, []).append(event)
                self._apply(self.rows.setdefault(name, {}), event)

    def _change(self, name: str, table: dict[str, Any], kind: str) -> None:
        if kind == "truncate_table":
            self.rows.pop(name, None)
        for row in self.rows.get(name, {}).values():
            for column in table["columns"]:
                initial = column["initial"]
                row.setdefault(column["name"], int(initial) if initial is not None and column["type"] == "INT" else initial)

    def _apply(self, rows: dict[Any, dict[str, Any]], event: dict[str, Any]) -> None:
        row = event["after"] or event["before"]
        key = next(iter(row.values()))
        if event["op"] == "d":
            rows.pop(key)
        else:
            rows[key] = row


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_HEAD(self) -> None:
        self._answer(Fault(405))

    def do_POST(self) -> None:
        receiver: Receiver = vars(self.server)["receiver"]
        headers = {key.lower(): value for key, value in self.headers.items()}
        body = self.rfile.read(int(headers["content-length"]))
        message = json.loads(body)
        with receiver._lock:
            fault = receiver.faults(message) or Fault(take=True)
        if fault.hold is not None:
            fault.hold.wait(60)
        with receiver._lock:
            signed = not receiver.secret or receiver.is_signed(headers, body)
            fault = fault if signed else Fault(401)
            receiver.requests.append(Received(headers, body, fault.status))
            if fault.take:
                receiver.take(message, redelivery="penstock-redelivery" in headers)
        self._answer(fault)

    def _answer(self, fault: Fault) -> None:
        if fault.cut:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            self.close_connection = True
            return
        self.send_response(fault.status)
        for key, value in fault.headers:
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(fault.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(fault.body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def http_receiver(secret: bytes = b"", tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Yield a receiver that listens on loopback."""
    receiver = Receiver(secret)
    with http_server(_Handler, tls, receiver=receiver) as url:
        receiver.url = url
        yield receiver
