"""A client of Confluent's schema registry: a schema gets its id under a subject, once in a process.

Whether a schema may follow those before it, the registry decides; one that it refuses is for an operator. No text that is raised holds a
password. Runs on executors.
"""

from __future__ import annotations

import ssl
import threading
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx
import msgspec

from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.settings.masking import mask_parts, mask_text, mask_uri

_CONTENT = {"Content-Type": "application/vnd.schemaregistry.v1+json", "Accept": "application/vnd.schemaregistry.v1+json"}
_SCHEMA_BYTES_MAX = 1 << 20
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
        self._auth = (unquote(parts.username or ""), unquote(parts.password or "")) if parts.username else None
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
        path = f"{self._base}/subjects/{quote(subject, safe='')}/versions"
        try:
            verify = ssl.create_default_context(cafile=self._ca_file) if self._ca_file else True
        except OSError as error:
            text = f"schema registry {self._shown}: the file of schema-registry-ca cannot be read ({type(error).__name__})"
            raise PenstockError("SINK_UNWRITABLE", text) from error
        try:
            with httpx.Client(auth=self._auth, verify=verify, timeout=self._timeout_s, trust_env=False) as client:
                answer = client.post(path, content=msgspec.json.encode({"schema": schema}), headers=_CONTENT)
        except (httpx.HTTPError, OSError) as error:
            raise PenstockError("SINK_UNAVAILABLE", f"schema registry {self._shown}: {type(error).__name__}") from error
        if answer.is_success and len(answer.content) <= _SCHEMA_BYTES_MAX:
            try:
                return decoded(answer.content, _Given).id
            except msgspec.MsgspecError as error:
                text = f"schema registry {self._shown}: its answer is not that of a registry"
                raise PenstockError("SINK_UNWRITABLE", text, "Check the registry's address: something else answers there.") from error
        said = mask_parts(mask_text(" ".join(answer.text[:_SHOWN_CHARS_MAX].split())), self._url)
        text = f"schema registry {self._shown}: subject {subject}: status {answer.status_code}: {said}"
        if answer.status_code == httpx.codes.CONFLICT:
            hint = "The new version of the table does not fit the subject's compatibility: set it to NONE, or use another topic."
            raise PenstockError("SINK_UNWRITABLE", text, hint)
        if answer.is_server_error or answer.status_code in {httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS}:
            raise PenstockError("SINK_UNAVAILABLE", text)
        raise PenstockError("SINK_UNWRITABLE", text, "Check the registry's address, user and password, and what it allows.")
