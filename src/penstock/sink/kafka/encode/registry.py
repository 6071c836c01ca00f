"""A client of Confluent's schema registry: a schema gets its id under a subject, once in a process.

Whether a schema may follow those before it, the registry decides; one that it refuses is for an operator. Redirects are not followed.
Invariants: no text that is raised holds a password; an exchange ends in time and is bounded, whatever answers. Runs on executors.
"""

from __future__ import annotations

import base64
import ssl
import threading
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpcore
import msgspec

from penstock.model.clock import SystemClock
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.settings.masking import mask_parts, mask_text, mask_uri
from penstock.target.network import CheckedNetwork

_CONTENT = {"Content-Type": "application/vnd.schemaregistry.v1+json", "Accept": "application/vnd.schemaregistry.v1+json"}
_ANSWER_BYTES_MAX = 1 << 20
_CONFLICT = 409
_AGAIN = frozenset({408, 425, 429})
_SHOWN_CHARS_MAX = 300


class _Given(msgspec.Struct):
    id: int


class SchemaRegistry:
    """One registry, by its URL; a user and password in it are sent as basic authentication. Thread safe."""

    def __init__(self, url: str, ca_file: str, timeout_s: float) -> None:
        parts = urlsplit(url)
        self._url = url
        self._shown = mask_uri(url)
        self._base = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        self._headers = dict(_CONTENT)
        if parts.username:
            said = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(said).decode()}"
        self._ca_file = ca_file
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._ids: dict[tuple[str, str], int] = {}

    def schema_id(self, subject: str, schema: str) -> int:
        """Return the id of a schema, which the registry gives it if it is new."""
        with self._lock:
            if (subject, schema) not in self._ids:
                self._ids[subject, schema] = self._register(subject, schema)
            return self._ids[subject, schema]

    def _register(self, subject: str, schema: str) -> int:
        status, content = self._exchange(
            f"{self._base}/subjects/{quote(subject, safe='')}/versions", msgspec.json.encode({"schema": schema})
        )
        if 200 <= status < 300:
            try:
                return decoded(content, _Given).id
            except msgspec.MsgspecError as error:
                text = f"schema registry {self._shown}: its answer is not that of a registry"
                raise PenstockError("SINK_UNWRITABLE", text, "Check the registry's address: something else answers there.") from error
        answer = content.decode("utf-8", "replace")[:_SHOWN_CHARS_MAX]
        said = mask_parts(mask_text(" ".join(answer.split())), self._url)
        text = f"schema registry {self._shown}: subject {subject}: status {status}: {said}"
        if status == _CONFLICT:
            hint = "The new version of the table does not fit the subject's compatibility: set it to NONE, or use another topic."
            raise PenstockError("SINK_UNWRITABLE", text, hint)
        if status >= 500 or status in _AGAIN:
            raise PenstockError("SINK_UNAVAILABLE", text)
        raise PenstockError("SINK_UNWRITABLE", text, "Check the registry's address, user and password, and what it allows.")

    def _exchange(self, url: str, body: bytes) -> tuple[int, bytes]:
        """Post, and return the status and as much of the answer as is worth its time."""
        clock = SystemClock()
        network = CheckedNetwork(f"schema registry {self._shown}", clock)
        network.until_s = clock.monotonic_s() + self._timeout_s
        times = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout_s)
        headers = list({**self._headers, "Host": urlsplit(url).netloc, "Content-Length": f"{len(body)}"}.items())
        content = bytearray()
        try:
            context = ssl.create_default_context(cafile=self._ca_file or None)
        except OSError as error:
            text = f"schema registry {self._shown}: the file of schema-registry-ca cannot be read ({type(error).__name__})"
            raise PenstockError("SINK_UNWRITABLE", text) from error
        try:
            with (
                httpcore.ConnectionPool(context, network_backend=network) as pool,
                pool.stream("POST", url, headers=headers, content=body, extensions={"timeout": times}) as response,
            ):
                for piece in response.iter_stream():
                    content += piece
                    if len(content) > _ANSWER_BYTES_MAX:
                        break
                return response.status, bytes(content)
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError) as error:
            raise PenstockError("SINK_UNAVAILABLE", f"schema registry {self._shown}: {type(error).__name__}") from None
