"""Calls that nobody means, on every route: whatever is sent, the status is one that the document names for it, the body is of its type, and
nothing breaks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import jsonschema
import pytest

from testing.servers.api_server import ApiServer

SEED, CALLS = 7, 4
NAMES = [
    *(
        "f",
        "group",
        "group/1",
        "none",
        " ",
        "a/b",
        "%",
        "%00",
        "é",
        "\U0001f600",
        "x" * 300,
        "feeds",
        "shop.orders",
        "'",
        "[b]",
        "\\",
        "a\nb",
    ),
]
VALUES: list[Any] = [
    *(None, True, 0, -1, 2**63, 2**70, 1.5, -0.0, "", "x", "s3://fuzz/x", "now", "snapshot", "2s", "é\u202e", "{env:HOME}", "x" * 5_000),
    *([], {}, [None], [[]], {"": None}, {"uri": "s3://fuzz/y"}, {"uri": 3}, ["shop.*"], ["!shop.*"], ["["], {"rules": [{"tables": []}]}),
]
KEYS = [
    *(
        "name",
        "tables",
        "sink",
        "sinks",
        "source",
        "reason",
        "changes",
        "to",
        "owner",
        "role",
        "text",
        "start",
        "abandon",
        "filter",
        "server",
    ),
    *("flush-interval", "until-ts", "start-ts", "expires", "expires_ms", "group", "", "__proto__", "é"),
]
TEXTS = [
    "SHOW CHANGEFEEDS",
    "SHOW CHANGEFEED f",
    "DROP CHANGEFEED none",
    "EXPLAIN",
    "'",
    ";",
    "--",
    "SELECT 1",
    "PAUSE CHANGEFEED 'f'",
    "\0",
]
RAW = [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"a": NaN}', b'{"a": "\\ud800"}', b"[" * 300, b'{"name": "x", "name": "y"}', b"1e999"]
KINDS = ["application/json", "application/json; charset=latin-1", "text/plain", "", "application/x-www-form-urlencoded"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("fuzz"), "shop.orders", "shop.items") as running:
        yield running


def test_no_call_breaks_the_server_or_its_document(server: ApiServer) -> None:
    rng = random.Random(SEED)
    with httpx.Client(base_url=server.url, headers=server.headers, trust_env=False, timeout=120) as client:
        document = client.get("/api/openapi.json").json()
        client.post("/api/v1/feeds", json={"name": "f", "tables": ["shop.*"], "sink": "s3://fuzz/f"})
        client.post("/api/v1/feeds", json={"name": "group", "tables": ["shop.*"], "sinks": ["s3://fuzz/1", "s3://fuzz/2"]})
        wrong = []
        operations = [(method, route, told) for route, found in document["paths"].items() for method, told in found.items()]
        for method, route, told in operations:
            if route.endswith("/drain") and method == "post":
                # It would leave the other calls nothing to ask for.
                continue
            for _ in range(CALLS):
                call = _call(rng, client, method, route, told)
                answer = client.send(call)
                problem = _problem(answer, told, document)
                if problem:
                    wrong.append(
                        f"{method} {call.url.raw_path!r} {call.content[:200]!r}: {answer.status_code} {problem}: {answer.text[:200]}"
                    )
        assert not wrong, "\n".join(wrong)
        assert client.get("/health/live").status_code == 200
        assert {feed["name"] for feed in client.get("/api/v1/feeds").json()["feeds"]} <= {*NAMES, "group.1", "group.2", "x", "now", "2s"}


def _call(rng: random.Random, client: httpx.Client, method: str, route: str, told: dict[str, Any]) -> httpx.Request:
    path, query, body = route, {}, None
    for one in told.get("parameters", ()):
        value = rng.choice(NAMES)
        if one["in"] == "path":
            path = path.replace(f"{{{one['name']}}}", quote(value, safe=""))
        elif rng.random() < 0.8:
            query[one["name"]] = str(rng.choice(TEXTS if one["name"] == "text" else [*VALUES[:12], 5, "warning", "f"]))
    headers = {}
    if "requestBody" in told or rng.random() < 0.2:
        tree = {rng.choice(KEYS): rng.choice(VALUES) for _ in range(rng.randrange(5))}
        body = (
            rng.choice(RAW) if rng.random() < 0.3 else json.dumps({"text": rng.choice(TEXTS)} if route.endswith("sql") else tree).encode()
        )
        headers["content-type"] = rng.choice(KINDS) if rng.random() < 0.2 else KINDS[0]
    return client.build_request(method.upper(), path, params=query, content=body, headers=headers)


def _problem(answer: httpx.Response, told: dict[str, Any], document: dict[str, Any]) -> str:
    """Return what is not as the document has it; another route may have been meant where a name is none."""
    if answer.status_code >= 500 and answer.status_code != 503:
        return "broken"
    kind = answer.headers.get("content-type", "")
    if kind != "application/json":
        return "" if kind.startswith("text/plain; version=") else f"not JSON but {kind}"
    found = told["responses"].get(str(answer.status_code))
    if found is None:
        return "not documented"
    schema = found["content"]["application/json"]["schema"] | {"components": document["components"]}
    error = next(iter(jsonschema.Draft202012Validator(schema).iter_errors(answer.json())), None)
    return "" if error is None else f"not of its type: {error.message[:200]}"
