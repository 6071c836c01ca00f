"""The API fuzzed from its own OpenAPI document: every route, every role, whatever path, query and body.

No answer is a 500, each is JSON, an error has code, message and hint, and nobody gets further than the role allows. One test draws what
this API might trip over, the other has schemathesis draw what the document allows and what it forbids. ``PENSTOCK_FUZZ_CASES`` asks for
more cases than the suite has time for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.config.tree import FeedConfig
from penstock.meta.api_tokens import Role
from penstock.model.errors import CODES, ErrorKind
from penstock.server.http.guard import needed_role
from penstock.settings.loader import known_keys
from penstock.target.settings import OPTION_KEYS
from testing.servers.api_server import ApiServer

CASES = int(os.environ.get("PENSTOCK_FUZZ_CASES", "150"))
METHODS = ("get", "post", "put", "patch", "delete")
TEXTS = st.text(max_size=20) | st.sampled_from(
    ["orders", "shop.orders", "shop.*", "..", "\x00", "\ud800", "%2e%2e", "a" * 3000, "\r\nX: y"]
)
URIS = st.sampled_from(
    [
        "memory://fuzz/a",
        "memory://fuzz/b?file-size=1",
        "s3://fuzz?endpoint=http://x",
        "az://c?federated-token-file=/x",
        "connection://x",
        "ftp://",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.integers(-(10**400), 10**400) | st.floats() | TEXTS | URIS
KEYS = st.sampled_from([*known_keys(FeedConfig), *sorted(OPTION_KEYS), "uri", "name", "role", "expires"]) | TEXTS
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)
FEEDS = st.fixed_dictionaries(
    {"name": TEXTS | st.sampled_from(["a", "b"]), "tables": st.just(["shop.*"]) | TREES, "sink": URIS | TREES},
    optional={key: TREES for key in known_keys(FeedConfig) if key not in {"name", "tables", "sink"}},
)
TOKENS = st.fixed_dictionaries({"name": TEXTS}, optional={"role": TEXTS | st.sampled_from(list(Role)), "expires": SCALARS | st.just("1d")})


class Fuzzed:
    """A server, what its document says it answers, and a token of each role."""

    def __init__(self, server: ApiServer, client: httpx.Client) -> None:
        self.client = client
        self.session = requests.Session()
        self.session.trust_env = False
        own = server.headers
        document = client.get("/api/openapi.json", headers=own).json()
        self.operations = [found.ok() for found in schemathesis.openapi.from_dict(document).get_all_operations()]
        self.routes = [
            (method, path, found[method]) for path, found in sorted(document["paths"].items()) for method in METHODS if method in found
        ]
        self.headers: dict[Role | None, dict[str, str]] = {None: {}}
        for role in Role:
            made = client.post("/api/v1/tokens", headers=own, json={"name": f"fuzz {role}", "role": role.value}).json()
            self.headers[role] = {"Authorization": f"Bearer {made['token']}"}


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    with (
        ApiServer(tmp_path_factory.mktemp("fuzzed"), "shop.orders", "shop.items") as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client,
    ):
        yield Fuzzed(server, client)


def encoded(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


@settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_call_breaks_the_server_or_passes_its_role(fuzzed: Fuzzed, data: st.DataObject) -> None:
    method, path, route = data.draw(st.sampled_from(fuzzed.routes))
    role = data.draw(st.sampled_from([*Role, Role.ADMIN, Role.OPERATE, None]))
    query = []
    for parameter in route.get("parameters", ()):
        value = data.draw(TEXTS)
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", encoded(value))
        else:
            query.append(f"{parameter['name']}={encoded(data.draw(TEXTS | st.integers().map(str)))}")
    content = None
    if "requestBody" in route:
        body = data.draw(TREES | (TOKENS if "tokens" in path else FEEDS))
        content = json.dumps(body).encode() if data.draw(st.integers(0, 9)) else data.draw(st.binary(max_size=50))
    headers = {**fuzzed.headers[role], **({"Content-Type": "application/json"} if content is not None else {})}
    answer = fuzzed.client.request(method.upper(), path + ("?" + "&".join(query) if query else ""), headers=headers, content=content)
    check(answer.status_code, answer.headers.get("content-type", ""), answer.text, method, path, role)


@settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_case_of_schemathesis_breaks_the_server_or_passes_its_role(fuzzed: Fuzzed, data: st.DataObject) -> None:
    operation = data.draw(st.sampled_from(fuzzed.operations))
    role = data.draw(st.sampled_from([*Role, None]))
    mode = data.draw(st.sampled_from([schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]))
    case = data.draw(operation.as_strategy(generation_mode=mode))
    case.headers.update(fuzzed.headers[role])
    answer = case.call(base_url=str(fuzzed.client.base_url), timeout=60, session=fuzzed.session)
    kind = answer.headers.get("content-type", [""])[0]
    check(answer.status_code, kind, answer.text, operation.method, operation.path, role)


def check(status: int, kind: str, text: str, method: str, path: str, role: Role | None) -> None:
    """Whatever was asked: no 500, an answer in JSON, an error that is one of ours, nothing beyond the role."""
    assert status != 500, text
    if "application/json" not in kind:
        assert (status, path) == (200, "/metrics")
        return
    told = json.loads(text)
    if "/health" in path and "status" in told:
        # How the server is, well or not.
        assert role is not None
    elif status >= 400:
        assert set(told) == {"code", "message", "hint"}
        assert status < 500 or CODES[told["code"]].kind is ErrorKind.TRANSIENT, told
    else:
        assert role is not None
        assert role.allows(needed_role(method.upper(), path))


def test_the_document_names_every_route(fuzzed: Fuzzed) -> None:
    named = {(method, path) for method, path, _ in fuzzed.routes}
    assert named >= {("post", "/api/v1/feeds"), ("delete", "/api/v1/feeds/{name}"), ("post", "/api/v1/tokens"), ("get", "/metrics")}
