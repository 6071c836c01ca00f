"""Who may call: every call of the security audit that got in, and those that must."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.cli.server_client import ServerClient
from penstock.config.api_settings import ApiSettings
from penstock.meta.api_tokens import ApiTokens
from penstock.meta.engine import sqlite_url
from penstock.model.errors import PenstockError
from penstock.server.http.callers import Callers
from penstock.server.http.guard import STRANGER_CALLS_BURST, ApiGuard, needed_role
from testing.servers.api_server import ApiServer
from testing.twins.clock import SimulatedClock

BODY_MAX = 4_096
HALF_OURS = ["127.0.0.1:1@evil.example", "[::1].evil.example", "localhost:evil.example", "[127.0.0.1", "localhost.", "127.0.0.1:999999"]
"""Hosts that begin like ours."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    api = ApiSettings(
        hosts=("penstock.example",),
        origins=("https://console.example",),
        open_paths=("/metrics",),
        body_bytes_max=BODY_MAX,
        requests_per_second=1_000_000,
    )
    with ApiServer(tmp_path_factory.mktemp("guarded"), "shop.orders", api=api) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=server.headers, trust_env=False, timeout=120) as opened:
        yield opened


@pytest.fixture(scope="module")
def stranger(server: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=120) as opened:
        yield opened


def token_of(client: httpx.Client, **wanted: Any) -> tuple[str, dict[str, str]]:
    made = client.post("/api/v1/tokens", json={"name": "somebody", **wanted}).json()
    return made["id"], {"Authorization": f"Bearer {made['token']}"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/feeds"),
        ("POST", "/api/v1/feeds"),
        ("GET", "/api/v1/health"),
        ("DELETE", "/api/v1/feeds/x"),
        ("POST", "/api/v1/feeds/x/verify"),
        ("GET", "/api/v1/tokens"),
        ("GET", "/api/openapi.json"),
        ("GET", "/api/v1/nothing"),
        ("POST", "/metrics"),
        ("OPTIONS", "/api/v1/feeds"),
    ],
)
@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer pst_wrong", "Basic cm9vdDo=", "Bearer \xff"])
def test_a_call_without_a_valid_token_is_refused(stranger: httpx.Client, method: str, path: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    answer = stranger.request(method, path, headers=headers)  # type: ignore[arg-type]
    # Strangers that call often are told to come back later, which is no way in either.
    assert answer.status_code in {401, 429}
    assert answer.json()["code"] in {"API_TOKEN_REQUIRED", "API_BUSY"}
    assert "penstock token create" in answer.json()["hint"] or answer.status_code == 429


@pytest.mark.parametrize("host", ["evil.example:18300", "evil.example", "127.0.0.1.evil.example", "169.254.169.254", "", *HALF_OURS])
def test_a_name_that_somebody_points_here_is_refused(client: httpx.Client, host: str) -> None:
    answer = client.get("/api/v1/feeds", headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (403, "API_PLACE_REFUSED")
    # What is open is open to whoever calls the server by its name.
    assert client.get("/metrics", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8300", "penstock.example:443", "PENSTOCK.example"])
def test_own_names_are_known(client: httpx.Client, host: str) -> None:
    assert client.get("/api/v1/feeds", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:3000", "https://127.0.0.1", "file://"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/api/v1/feeds"), ("POST", "/api/v1/feeds/x/verify")])
def test_a_foreign_web_page_is_refused(client: httpx.Client, origin: str, method: str, path: str) -> None:
    answer = client.request(method, path, headers={"Origin": origin})
    assert (answer.status_code, answer.json()["code"]) == (403, "API_PLACE_REFUSED")


def test_what_strangers_send_is_repeated_in_part(client: httpx.Client, stranger: httpx.Client) -> None:
    long = "a." * 5_000
    refused = [stranger.get("/", headers={name: long}) for name in ("Host", "Origin")]
    unknown = [stranger.get(path) for path in (f"/{long}", "/" + quote("x://?a=" * 800, safe=""))]
    assert {answer.status_code for answer in refused} == {403}
    assert {answer.status_code for answer in unknown} <= {401, 429}
    assert max(len(answer.content) for answer in [*refused, *unknown]) < 1_000
    assert client.get("/api/v1/feeds").status_code == 200


def test_own_and_configured_origins_may_call(server: ApiServer, client: httpx.Client) -> None:
    for origin in (server.url, "https://console.example"):
        assert client.get("/api/v1/feeds", headers={"Origin": origin}).status_code == 200


def test_what_the_configuration_opens_needs_no_token(stranger: httpx.Client) -> None:
    answer = stranger.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("role", ["read", None])
def test_whoever_may_only_read_changes_nothing_by_any_route(server: ApiServer, client: httpx.Client, role: str | None) -> None:
    mine = token_of(client, role=role)[1] if role else {"Authorization": ""}
    document = client.get("/api/openapi.json").json()
    changing = [(m, path) for path, methods in document["paths"].items() for m in ("post", "put", "patch", "delete") if m in methods]
    assert len(changing) >= 11
    for method, path in changing:
        for sent in (path.format(name="x", table="shop.orders", token_id="x", letter="x"), path.replace("/api/v1", "/%61pi/v1")):
            answer = client.request(method.upper(), sent, headers=mine, json={})
            assert answer.status_code in ({403} if role else {401, 429}), (method, sent)
    assert server.meta.list_feeds() == []


@pytest.mark.parametrize(
    ("role", "method", "path", "allowed"),
    [
        ("read", "GET", "/api/v1/feeds", True),
        ("read", "POST", "/api/v1/feeds", False),
        ("read", "DELETE", "/api/v1/feeds/x", False),
        ("read", "POST", "/api/v1/feeds/x/verify", False),
        ("read", "POST", "/api/v1/feeds/x/tables/a.b/retry", False),
        ("read", "GET", "/api/v1/tokens", False),
        ("operate", "DELETE", "/api/v1/feeds/x", True),
        ("operate", "GET", "/api/v1/tokens", False),
        ("operate", "POST", "/api/v1/tokens", False),
        ("operate", "DELETE", "/api/v1/tokens/x", False),
        ("admin", "GET", "/api/v1/tokens", True),
    ],
)
def test_roles(client: httpx.Client, caplog: pytest.LogCaptureFixture, role: str, method: str, path: str, allowed: bool) -> None:
    _, mine = token_of(client, role=role)
    answer = client.request(method, path, headers=mine)
    assert (answer.status_code != 403) is allowed
    if not allowed:
        assert answer.json()["code"] == "API_FORBIDDEN"
        assert needed_role(method, path).value in answer.json()["message"]
    # Who tried what they may not is on record.
    refused = [vars(record) for record in caplog.records if record.getMessage() == "api call refused"]
    assert [(one["method"], one["path"]) for one in refused] == ([] if allowed else [(method, repr(path))])


def test_a_revoked_token_opens_nothing_from_then_on(server: ApiServer, client: httpx.Client) -> None:
    made, mine = token_of(client, role="admin")
    assert client.get("/api/v1/feeds", headers=mine).status_code == 200
    assert client.delete(f"/api/v1/tokens/{made}").json()["valid"] is False
    assert client.get("/api/v1/feeds", headers=mine).status_code == 401
    assert client.delete("/api/v1/tokens/none").status_code == 404
    listed = {token["id"]: token for token in client.get("/api/v1/tokens").json()["tokens"]}
    assert listed[made]["revoked_ms"]
    # The database knows no token: only what it is recognised by.
    files = [file.read_bytes() for file in Path(server.directory).glob("meta.db*")]
    assert files
    assert not any(mine["Authorization"].removeprefix("Bearer ").encode() in content for content in files)
    assert not any(server.token.encode() in content for content in files)


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x" * 101},
        {"name": "a", "role": "root"},
        {"name": "a", "expires": "101000d"},
        {"what": 1},
    ],
)
def test_a_token_that_cannot_be(client: httpx.Client, wanted: dict[str, Any]) -> None:
    before = len(client.get("/api/v1/tokens").json()["tokens"])
    assert client.post("/api/v1/tokens", json=wanted).status_code == 422
    assert len(client.get("/api/v1/tokens").json()["tokens"]) == before


def raw_answer(server: ApiServer, head: list[str], chunks: Iterator[bytes]) -> tuple[bytes, int]:
    """Send a call byte by byte, until it is answered; return the answer's first line and how many bytes of a body went out."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    sent = 0
    with socket.create_connection((host, int(port)), 60) as wire:
        wire.sendall("\r\n".join([*head, "", ""]).encode())
        wire.settimeout(0.02)
        for chunk in chunks:
            try:
                wire.settimeout(60)
                wire.sendall(chunk)
                sent += len(chunk)
                wire.settimeout(0.02)
                return wire.recv(64), sent
            except TimeoutError:
                continue
            except OSError:
                break
        wire.settimeout(60)
        return wire.recv(64), sent


@pytest.mark.parametrize("known", [True, False])
def test_a_body_that_is_too_large_is_not_read(server: ApiServer, known: bool) -> None:
    mine = [f"Authorization: Bearer {server.token}"] if known else []
    head = ["POST /api/v1/feeds HTTP/1.1", "Host: localhost", "Content-Type: application/json", *mine]
    declared, sent = raw_answer(server, [*head, f"Content-Length: {250 << 20}"], iter([b"{"]))
    assert (declared[:12], sent) == ((b"HTTP/1.1 413" if known else b"HTTP/1.1 401"), 1)
    endless = iter([b"400\r\n" + b" " * 1024 + b"\r\n"] * 1000)
    undeclared, sent = raw_answer(server, [*head, "Transfer-Encoding: chunked"], endless)
    assert undeclared[:12] == (b"HTTP/1.1 413" if known else b"HTTP/1.1 401")
    assert sent < 1000 * 1024


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_only_json_is_a_body(client: httpx.Client, kind: str) -> None:
    answer = client.post("/api/v1/feeds", content=b'{"name": "x"}', headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["code"]) == (415, "API_BODY_REFUSED")


def test_a_header_that_decides_comes_once(server: ApiServer) -> None:
    head = ["GET /api/v1/feeds HTTP/1.1", "Host: localhost", f"Authorization: Bearer {server.token}", "Authorization: Bearer other"]
    assert raw_answer(server, head, iter([b""]))[0][:12] == b"HTTP/1.1 400"


@pytest.mark.parametrize(
    "lengths",
    [
        ["Content-Length: 2", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 2"],
        ["Content-Length: 2", "Content-Length: 3"],
        ["Content-Length: 2, 3"],
        ["Content-Length: +2"],
        ["Content-Length: 0x2"],
        ["Transfer-Encoding: xchunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding : chunked"],
        ["X: y\nTransfer-Encoding: chunked", "Content-Length: 2"],
    ],
)
def test_a_body_has_one_length(server: ApiServer, lengths: list[str]) -> None:
    head = ["POST /api/v1/feeds HTTP/1.1", "Host: localhost", f"Authorization: Bearer {server.token}", "Content-Type: application/json"]
    answer, _ = raw_answer(server, [*head, *lengths], iter([b"0\r\n\r\nGET /api/v1/tokens HTTP/1.1\r\nHost: localhost\r\n\r\n"]))
    assert answer[:11] == b"HTTP/1.1 40" or answer[:12] == b"HTTP/1.1 501"


def test_a_token_that_ends_while_the_body_is_sent_ends_the_call(server: ApiServer, client: httpx.Client) -> None:
    made, mine = token_of(client, role="operate")
    head = ["POST /api/v1/feeds HTTP/1.1", "Host: localhost", f"Authorization: {mine['Authorization']}", "Content-Type: application/json"]
    tree = b'{"name": "late", "tables": ["shop.*"], "sink": "memory:///late"}'

    def body() -> Iterator[bytes]:
        yield tree[:10]
        client.delete(f"/api/v1/tokens/{made}").raise_for_status()
        yield tree[10:]
        yield b""

    answer, _ = raw_answer(server, [*head, f"Content-Length: {len(tree)}"], body())
    assert answer[:12] == b"HTTP/1.1 401"
    assert server.meta.list_feeds() == []


def test_callers_that_call_too_often_wait_and_hold_up_no_other(tmp_path: Path) -> None:
    clock = SimulatedClock()
    tokens = ApiTokens(sqlite_url(tmp_path / "meta.db"), clock)
    guard = ApiGuard(_says_yes, ApiSettings(requests_per_second=2), Callers("own", tokens, clock), "127.0.0.1", clock)

    async def calls(count: int, headers: dict[str, str]) -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://localhost") as client:
            return [(await client.get("/api/v1/feeds", headers=headers)).status_code for _ in range(count)]

    burst = round(STRANGER_CALLS_BURST)
    assert asyncio.run(calls(burst + 2, {})) == [401] * burst + [429] * 2
    # Whoever has a token is counted apart, and gets on as time passes.
    mine = {"Authorization": "Bearer own"}
    assert asyncio.run(calls(6, mine)) == [204] * 4 + [429] * 2
    clock.advance(1.0)
    assert asyncio.run(calls(3, mine)) == [204] * 2 + [429]
    tokens.close()


async def _says_yes(scope: Any, receive: Any, send: Any) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_over_tls(tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    api = ApiSettings(tls_certificate=certificate[0], tls_key=certificate[1])
    with ApiServer(tmp_path, api=api) as server:
        assert server.url.startswith("https://")
        with ServerClient(server.url) as client:
            assert client.list_feeds() == []
        # Who does not know the certificate sends no token.
        monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "elsewhere"))
        monkeypatch.setenv("PENSTOCK_TOKEN", server.token)
        with ServerClient(server.url) as stranger, pytest.raises(PenstockError) as refused:
            stranger.list_feeds()
        assert refused.value.code == "SERVER_UNREACHABLE"
        monkeypatch.setenv("PENSTOCK_CA_FILE", str(certificate[0]))
        with ServerClient(server.url) as client:
            assert client.list_feeds() == []


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock")])
    begin = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = tmp_path / "server.pem", tmp_path / "server.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return files
