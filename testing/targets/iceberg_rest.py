"""A small Iceberg REST catalog for tests: the protocol's questions about namespaces and tables, answered from a SQLite file.

Commits are made by the requirements and updates that the protocol has, against the metadata of that moment. ``faults`` scripts what goes
wrong, once each, and ``asked`` tells what came. Invariant: what it answers 2xx to is done. Thread safe.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from testing.servers.loopback import http_server

_STATUS = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}
Answer = tuple[int, Any]


class Fault(NamedTuple):
    """What happens to a question instead of being done and answered."""

    status: int = 0
    """The answer; 0 ends the connection without one."""
    done: bool = False
    """Whether it is done all the same."""
    hold: threading.Event | None = None
    """Wait for this before anything else."""


class RestService:
    """The catalog behind the protocol."""

    def __init__(self, folder: Path) -> None:
        self._place = f"sqlite:///{folder}/rest.db"
        SqlCatalog("rest", uri=self._place, warehouse="").engine.dispose()
        self.address = ""
        self.token = ""
        """What every question must be entered with, where it is set; ``id:secret`` gives it out."""
        self.faults: Callable[[str, str], Fault | None] = lambda _method, _path: None
        self.asked: list[tuple[str, str]] = []
        self.warehouses: list[str] = []

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> Answer:
        """Return the status and what is said to one question."""
        parts = [unquote(part) for part in path.strip("/").split("/")][1:]
        try:
            return self._answer(method, parts, query, body)
        except tuple(_STATUS) as error:
            kind = next(kind for kind in _STATUS if isinstance(error, kind))
            return _STATUS[kind], {"error": {"message": str(error), "type": kind.__name__, "code": _STATUS[kind]}}

    def _answer(self, method: str, parts: list[str], query: dict[str, list[str]], body: bytes) -> Answer:
        catalog = SqlCatalog("rest", uri=self._place, warehouse="", init_catalog_tables="false")
        catalog.engine.dispose()
        catalog.engine = create_engine(self._place, poolclass=NullPool)
        told = json.loads(body) if body.startswith(b"{") else {}
        answer: Answer = 501, {"error": {"message": "not here", "type": "UnsupportedOperationException", "code": 501}}
        match method, parts:
            case "GET", ["config"]:
                self.warehouses += query.get("warehouse", [])
                answer = 200, {"defaults": {}, "overrides": {}}
            case "POST", ["oauth", "tokens"]:
                answer = 200, {"access_token": self.token, "token_type": "bearer", "expires_in": 3600}
            case "GET", ["namespaces"]:
                answer = 200, {"namespaces": [list(name) for name in catalog.list_namespaces()]}
            case "POST", ["namespaces"]:
                catalog.create_namespace(tuple(told["namespace"]), told.get("properties") or {})
                answer = 200, told
            case "GET" | "HEAD", ["namespaces", name]:
                found = catalog.load_namespace_properties((name,))
                answer = (200, {"namespace": [name], "properties": found}) if method == "GET" else (204, None)
            case "GET", ["namespaces", name, "tables"]:
                answer = 200, {"identifiers": [{"namespace": list(t[:-1]), "name": t[-1]} for t in catalog.list_tables((name,))]}
            case "POST", ["namespaces", name, "tables"]:
                answer = 200, self._created(catalog, name, CreateTableRequest.model_validate_json(body))
            case "GET", ["namespaces", name, "tables", table]:
                answer = 200, _loaded(catalog.load_table((name, table)))
            case "POST", ["namespaces", name, "tables", table]:
                asked = CommitTableRequest.model_validate_json(body)
                done = catalog.commit_table(catalog.load_table((name, table)), asked.requirements, asked.updates)
                answer = 200, json.loads(done.model_dump_json())
            case "DELETE", ["namespaces", name, "tables", table]:
                catalog.drop_table((name, table))
                answer = 204, None
            case "POST", ["tables", "rename"]:
                names = [(*told[side]["namespace"], told[side]["name"]) for side in ("source", "destination")]
                catalog.rename_table(*names)
                answer = 204, None
        return answer

    @staticmethod
    def _created(catalog: SqlCatalog, name: str, asked: CreateTableRequest) -> Any:
        return _loaded(catalog.create_table((name, asked.name), asked.table_schema, asked.location, properties=asked.properties))


def _loaded(table: Any) -> Any:
    metadata = json.loads(table.metadata.model_dump_json())
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


@contextmanager
def iceberg_rest(folder: Path) -> Iterator[RestService]:
    """Run a catalog whose tables are known by a file in a folder."""
    service = RestService(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            service.asked.append((self.command, parts.path))
            fault = service.faults(self.command, parts.path)
            if fault is not None and fault.hold is not None:
                fault.hold.wait()
            answer: Answer = (fault.status, None) if fault is not None else (0, None)
            if fault is None or fault.done:
                free = parts.path.endswith("/oauth/tokens")
                entered = free or not service.token or self.headers.get("Authorization") == f"Bearer {service.token}"
                done = service.answer(self.command, parts.path, parse_qs(parts.query), body) if entered else (401, None)
                answer = answer if fault is not None else done
            if not answer[0]:
                self.close_connection = True
                return
            content = b"" if answer[1] is None else json.dumps(answer[1]).encode()
            with contextlib.suppress(OSError):
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_DELETE = _do  # noqa: N815 - names of the library

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with http_server(Handler) as address:
        service.address = address
        yield service
