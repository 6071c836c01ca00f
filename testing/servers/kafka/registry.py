"""A schema registry on loopback, of Confluent's protocol: subjects with versions, ids of schemas, and backward compatibility.

A schema may follow another if its readers can read what that one wrote, as Avro has it for records: what is new has a default, and what
stays keeps its type or widens it. Runs in tests.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote

from testing.servers.loopback import http_server

_WIDER = {"int": {"long", "float", "double"}, "long": {"float", "double"}, "float": {"double"}, "string": {"bytes"}, "bytes": {"string"}}


@dataclass
class Registry:
    """What a registry keeps."""

    url: str = ""
    subjects: dict[str, list[int]] = field(default_factory=dict)
    """The ids of a subject's versions, oldest first."""
    schemas: list[str] = field(default_factory=list)
    user: str = ""
    """Name and password with a colon between them, where some are asked for."""
    fails: int = 0
    """So many requests are answered with 503."""
    page: bytes = b""
    """What is answered instead, where another server is at the address."""

    def schema(self, schema_id: int) -> Any:
        """Return a schema by its id."""
        return json.loads(self.schemas[schema_id - 1])

    def register(self, subject: str, schema: str) -> int | None:
        """Return the id of a schema under a subject, or None where it does not fit the newest one."""
        versions = self.subjects.setdefault(subject, [])
        known = self.schemas.index(schema) + 1 if schema in self.schemas else 0
        if known in versions:
            return known
        if versions and not _reads(json.loads(schema), self.schema(versions[-1])):
            return None
        if not known:
            self.schemas.append(schema)
            known = len(self.schemas)
        versions.append(known)
        return known


def _reads(new: dict[str, Any], old: dict[str, Any]) -> bool:
    """Return whether what was written under one schema can be read under another."""
    before = {one["name"]: one["type"] for one in old["fields"]}
    for one in new["fields"]:
        if one["name"] not in before:
            if "default" not in one:
                return False
        elif not _widens(before[one["name"]], one["type"]):
            return False
    return True


def _widens(old: Any, new: Any) -> bool:
    olds, news = (one if isinstance(one, list) else [one] for one in (old, new))
    return all(any(one == other or other in _WIDER.get(one, ()) for other in news) for one in olds)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Register a schema."""
        registry: Registry = self.server.registry  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wanted = "Basic " + base64.b64encode(registry.user.encode()).decode()
        if registry.page:
            return self._answer(200, registry.page)
        if registry.fails:
            registry.fails -= 1
            return self._answer(503, {"error_code": 50301, "message": "away"})
        if registry.user and self.headers.get("Authorization") != wanted:
            return self._answer(401, {"error_code": 40101, "message": "who are you"})
        _, first, subject, last = self.path.split("/")
        if (first, last) != ("subjects", "versions"):
            return self._answer(404, {"error_code": 404, "message": "no such path"})
        found = registry.register(unquote(subject), body["schema"])
        if found is None:
            return self._answer(409, {"error_code": 409, "message": "Schema being registered is incompatible"})
        return self._answer(200, {"id": found})

    def _answer(self, status: int, body: object) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def schema_registry() -> Iterator[Registry]:
    """Run a registry until the block ends."""
    registry = Registry()
    with http_server(_Handler, registry=registry) as url:
        registry.url = url
        yield registry
