"""The document is what the server really answers: every route is called, and each answer is compared with its schema, field by field."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from testing.servers.api_server import ApiServer
from testing.servers.waiting import wait_until

OPEN = {"Control", "ComponentHealth"}
"""Verbs and components have fields of their own."""


class Called:
    """Calls routes and compares what comes back with the document."""

    def __init__(self, server: ApiServer, client: httpx.Client) -> None:
        self._client = client
        self.document = client.get("/api/openapi.json").json()
        self._strict = _closed(self.document)
        self.seen: dict[tuple[str, str], set[int]] = {}

    def call(self, method: str, route: str, body: Any = None, query: str = "", headers: dict[str, str] | None = None, **names: str) -> Any:
        path = route.format(**names) + query
        answer = self._client.request(method, path, json=body, headers=headers)
        found = self.document["paths"][route][method.lower()]["responses"]
        assert str(answer.status_code) in found, f"{method} {path}: {answer.status_code} is not documented: {answer.text}"
        self.seen.setdefault((method.lower(), route), set()).add(answer.status_code)
        if answer.headers["content-type"] == "application/json":
            schema = found[str(answer.status_code)]["content"]["application/json"]["schema"]
            jsonschema.Draft202012Validator({**schema, "components": self._strict["components"]}).validate(answer.json())
        return answer.json() if answer.headers["content-type"] == "application/json" else answer.text


def _closed(document: dict[str, Any]) -> dict[str, Any]:
    """The document in which no answer may have a field that it does not name."""
    strict = copy.deepcopy(document)
    for name, schema in strict["components"]["schemas"].items():
        if "properties" in schema and name not in OPEN:
            schema["additionalProperties"] = False
    return strict


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Called]:
    with (
        ApiServer(tmp_path_factory.mktemp("document"), "shop.orders", "shop.items") as server,
        httpx.Client(base_url=server.url, headers=server.headers, trust_env=False, timeout=60) as client,
    ):
        yield Called(server, client)


F = "/api/v1/feeds/{name}"


def test_every_route_answers_what_the_document_says(called: Called) -> None:
    tree = {"name": "orders", "tables": ["shop.*"], "sink": "s3://document/orders"}
    assert called.call("GET", "/api/v1/feeds") == {"feeds": []}
    called.call("POST", "/api/v1/feeds/preview", tree)
    called.call("POST", "/api/v1/feeds", tree)
    called.call("POST", "/api/v1/feeds", {"name": "both", "tables": ["shop.*"], "sinks": ["s3://document/1", "s3://document/2"]})
    wait_until(lambda: called.call("GET", F, name="orders")["state"] == "running", "running", 60)
    for name in ("orders", "both", "none"):
        called.call("GET", F, name=name)
        called.call("GET", f"{F}/history", name=name)
    assert len(called.call("GET", "/api/v1/feeds")["feeds"]) == 3
    for name in ("orders", "none"):
        called.call("GET", f"{F}/tables", name=name)
        called.call("GET", f"{F}/verify", name=name)
        called.call("POST", f"{F}/verify", name=name)
        called.call("DELETE", f"{F}/verify", name=name)
        called.call("GET", f"{F}/ranges", name=name)
        called.call("GET", f"{F}/ranges", query="?table=shop.none", name=name)
        called.call("GET", f"{F}/dead-letters", name=name)
        for verb in ("show", "retry"):
            called.call("POST", f"{F}/dead-letters/{{letter}}/{verb}", name=name, letter="none")
        for verb in ("resnapshot", "retry", "include", "exclude"):
            called.call("POST", f"{F}/tables/{{table}}/{verb}", {}, name=name, table="shop.items")
    called.call("POST", "/api/v1/feeds", tree)
    called.call("POST", "/api/v1/feeds", {"name": "bad", "tables": ["none.*"], "sink": "s3://document/bad"})
    called.call("POST", "/api/v1/feeds/preview", {"flsh": 1})
    bodies: dict[str, dict[str, Any]] = {
        "pause": {},
        "resume": {},
        "reset": {"to": "now"},
        "alter": {"changes": {"flush-interval": "2s"}},
        "move": {},
        "clone": {"name": "other", "changes": {"sink": {"uri": "s3://document/other"}}},
        "cancel": {},
        "remove": {},
    }
    for verb, body in bodies.items():
        for name in ("orders", "none"):
            called.call("POST", f"{F}/{verb}", body, name=name)
        called.call("POST", f"{F}/{verb}", {"no-such": 1}, name="both")
    for name in ("both", "none"):
        called.call("DELETE", F, name=name)
    for text in ("SHOW CHANGEFEEDS", "NONSENSE"):
        called.call("GET", "/api/v1/sql", query=f"?text={text}")
        called.call("POST", "/api/v1/sql", {"text": text})
    called.call("GET", "/api/v1/logs", query="?lines=5")
    called.call("GET", "/api/v1/logs", query="?lines=many")
    called.call("GET", "/api/v1/servers")
    for method in ("POST", "GET", "DELETE"):
        called.call(method, "/api/v1/server/drain")
    for path in ("/health/live", "/health/ready", "/api/v1/health", "/metrics"):
        called.call("GET", path)
    made = called.call("POST", "/api/v1/tokens", {"name": "x"})
    called.call("POST", "/api/v1/tokens", {"name": ""})
    called.call("GET", "/api/v1/tokens")
    for token in (made["id"], "none"):
        called.call("DELETE", "/api/v1/tokens/{token_id}", token_id=token)
    routes = {(method, path) for path, found in called.document["paths"].items() for method in found}
    assert set(called.seen) == routes
    called.call("GET", "/api/v1/feeds", headers={"Authorization": "Bearer none"})
    assert called.seen["get", "/api/v1/feeds"] == {200, 401}


def test_operations_have_names_of_their_own_and_every_error_is_ours(called: Called) -> None:
    operations = [found for methods in called.document["paths"].values() for found in methods.values()]
    assert len({found["operationId"] for found in operations}) == len(operations)
    assert "HTTPValidationError" not in str(called.document)
    for found in operations:
        assert {"401", "403", "429", "500", "503"} <= set(found["responses"])
