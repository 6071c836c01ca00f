"""Subscribing over gRPC: the same feed as over HTTP and the command line, the same rules for who may and where to."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from penstock.cli.main import run
from penstock.config.api_settings import ApiSettings
from penstock.config.server_tree import ServerConfig
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError
from penstock.server.http.guard import STRANGER_CALLS_BURST
from penstock.server.rpc.listener import listen
from penstock.server.rpc.subscriptions import ERROR_KEY, feed_tree
from penstock.source.proto import subscribe_pb2 as pb
from penstock.source.proto import subscribe_pb2_grpc
from penstock.store.flight.credentials import make_tls
from testing.servers.api_server import UNHURRIED, ApiServer
from testing.twins.clock import SimulatedClock

TABLES = ("shop.orders", "shop.items")


@contextlib.contextmanager
def serving(server: ApiServer, api: ApiSettings = UNHURRIED, clock: Clock | None = None) -> Iterator[str]:
    with contextlib.ExitStack() as parts:
        config = ServerConfig(grpc_port=0, api=api)
        yield listen(config, server.creator, server.meta, server.supervisor, server.callers, clock or SystemClock(), parts)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("api"), *TABLES, sink_allow=("file:///tmp/*", "s3://lake/*")) as running:
        yield running


@pytest.fixture(scope="module")
def address(server: ApiServer) -> Iterator[str]:
    with serving(server, ApiSettings(body_bytes_max=4_096, requests_per_second=1_000_000)) as listens:
        yield listens


def request(name: str, table: str = "orders", uri: str = "", **config: str) -> pb.SubscribeCDCRequest:
    uri = uri or f"s3://lake/{name}"
    sink = pb.CDCSink(type=uri.partition(":")[0], config={"uri": uri, **config})
    return pb.SubscribeCDCRequest(
        db_name="shop", table_name=table, subscriber_name=name, sink=sink, header=pb.RequestHeader(reason="audit")
    )


def call(address: str, message: pb.SubscribeCDCRequest, token: str) -> pb.CDCSubscriber:
    with grpc.insecure_channel(address) as channel:
        stub: Any = subscribe_pb2_grpc.CdcServerStub(channel)
        return stub.SubscribeCDC(message, timeout=120, metadata=(("authorization", f"Bearer {token}"),) if token else ()).subscriber


def refused(address: str, message: pb.SubscribeCDCRequest, token: str) -> tuple[grpc.StatusCode, dict[str, str]]:
    with pytest.raises(grpc.RpcError) as caught:
        call(address, message, token)
    told: Any = caught.value
    body = next((json.loads(value) for key, value in told.trailing_metadata() if key == ERROR_KEY), {})
    return told.code(), body


def test_it_is_the_same_feed_over_http_and_in_the_command_line(server: ApiServer, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = call(address, request("mirror", **{"csv.delimiter": ";", "protocol": "csv"}), server.token)
    assert (made.subscriber_name, made.db_name, made.table_name, made.table_id) == ("mirror", "shop", "orders", 100)
    assert (made.sink, made.master_addrs, made.cancel) == ("s3://lake/mirror", "127.0.0.1:1", False)
    over_http = httpx.get(f"{server.url}/api/v1/feeds/mirror", headers=server.headers, trust_env=False).json()
    assert over_http["uuid"] == made.uuid
    assert [table["name"] for table in over_http["tables"]] == ["shop.orders"]
    assert over_http["config"]["sink"]["csv"]["delimiter"] == ";"
    assert run(["feed", "show", "mirror", "--output", "json", "--server", server.url]) == 0
    assert json.loads(capsys.readouterr().out)["uuid"] == made.uuid
    # And one over HTTP with the same words is the same configuration.
    tree = {"name": "twin", "tables": ["shop.orders"], "sink": {"uri": "s3://lake/twin", "csv": {"delimiter": ";"}, "protocol": "csv"}}
    twin = httpx.post(f"{server.url}/api/v1/feeds", json=tree, headers=server.headers, trust_env=False).json()["config"]
    assert json.loads(json.dumps(twin).replace("twin", "mirror")) == over_http["config"]
    [entry] = [e for e in server.meta.lives.history("mirror") if e.what == "create"]
    assert (entry.by, entry.why) == ("server", "audit")


def test_a_name_is_subscribed_once(server: ApiServer, address: str) -> None:
    made = call(address, request("once"), server.token)
    for again in (request("once"), request("once", "items", "s3://lake/elsewhere")):
        code, body = refused(address, again, server.token)
        assert (code, body["code"]) == (grpc.StatusCode.ALREADY_EXISTS, "FEED_EXISTS")
        assert body["hint"]
    assert server.meta.get_feed("once").uuid == made.uuid
    assert [t.table_name for t in server.meta.feed_tables("once")] == ["orders"]


@pytest.mark.parametrize(
    ("wanted", "code", "status"),
    [
        (request("x", uri="s3://other/x"), "SINK_FORBIDDEN", grpc.StatusCode.PERMISSION_DENIED),
        (request("x", uri="s3://lake/x?endpoint=http://169.254.169.254"), "SINK_FORBIDDEN", grpc.StatusCode.PERMISSION_DENIED),
        (request("x", **{"spool-dir": "/tmp/x"}), "SINK_FORBIDDEN", grpc.StatusCode.PERMISSION_DENIED),
        (request("x", **{"no-such-option": "1"}), "CONFIG_INVALID", grpc.StatusCode.INVALID_ARGUMENT),
        (request("x", uri="ftp://lake/x"), "SINK_URI_INVALID", grpc.StatusCode.INVALID_ARGUMENT),
        (request("x", "*"), "CONFIG_INVALID", grpc.StatusCode.INVALID_ARGUMENT),
        (request("x", "nothing"), "TABLE_UNKNOWN", grpc.StatusCode.INVALID_ARGUMENT),
        (request(""), "CONFIG_INVALID", grpc.StatusCode.INVALID_ARGUMENT),
        (
            pb.SubscribeCDCRequest(db_name="shop", table_name="orders", subscriber_name="x"),
            "CONFIG_INVALID",
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
def test_what_http_refuses_is_refused(
    server: ApiServer, address: str, wanted: pb.SubscribeCDCRequest, code: str, status: grpc.StatusCode
) -> None:
    before = server.meta.list_feeds()
    told, body = refused(address, wanted, server.token)
    assert (body["code"], told) == (code, status)
    assert [f.name for f in server.meta.list_feeds()] == [f.name for f in before]


def test_options_that_contradict_each_other_are_refused() -> None:
    for config in ({"csv": "x", "csv.delimiter": ";"}, {"csv.delimiter": ";", "csv": "x"}):
        with pytest.raises(PenstockError, match="both an option"):
            feed_tree(request("x", **config))
    with pytest.raises(PenstockError, match="kind of its uri"):
        feed_tree(pb.SubscribeCDCRequest(db_name="d", table_name="t", sink=pb.CDCSink(type="mysql", config={"uri": "s3://b/x"})))


def test_tokens_and_roles_are_those_of_http(server: ApiServer, address: str) -> None:
    reader = httpx.post(f"{server.url}/api/v1/tokens", json={"name": "r"}, headers=server.headers, trust_env=False).json()
    for token in ("", "wrong"):
        code, body = refused(address, request("t"), token)
        assert (code, body["code"]) == (grpc.StatusCode.UNAUTHENTICATED, "API_TOKEN_REQUIRED")
    code, body = refused(address, request("t"), reader["token"])
    assert (code, body["code"]) == (grpc.StatusCode.PERMISSION_DENIED, "API_FORBIDDEN")
    made = {"name": "o", "role": "operate"}
    operator = httpx.post(f"{server.url}/api/v1/tokens", json=made, headers=server.headers, trust_env=False).json()
    assert call(address, request("by-operator"), operator["token"]).subscriber_name == "by-operator"
    httpx.delete(f"{server.url}/api/v1/tokens/{operator['id']}", headers=server.headers, trust_env=False)
    assert refused(address, request("t"), operator["token"])[0] is grpc.StatusCode.UNAUTHENTICATED


def test_bytes_that_are_no_message_are_the_callers_fault(server: ApiServer, address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        call_raw: Any = channel.unary_unary("/penstock.cdc.CdcServer/SubscribeCDC")
        with pytest.raises(grpc.RpcError) as caught:
            call_raw(b"\xff\xff\xff\xff", timeout=120, metadata=(("authorization", f"Bearer {server.token}"),))
    told: Any = caught.value
    assert (told.code(), "CONFIG_INVALID" in told.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_nothing_of_a_message_is_looked_at_before_the_token(server: ApiServer, address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        raw = channel.unary_unary("/penstock.cdc.CdcServer/SubscribeCDC")
        for token, code in (("", grpc.StatusCode.UNAUTHENTICATED), (server.token, grpc.StatusCode.RESOURCE_EXHAUSTED)):
            with pytest.raises(grpc.RpcError) as caught:
                raw(b"x" * 100_000, timeout=120, metadata=(("authorization", f"Bearer {token}"),) if token else ())
            assert caught.value.code() is code


def test_a_stranger_that_calls_too_often_is_told_so(server: ApiServer) -> None:
    # By a clock that stands still, so that it does not matter how long the calls take.
    with serving(server, clock=SimulatedClock()) as fresh:
        codes = [refused(fresh, request("t"), "")[1]["code"] for _ in range(int(STRANGER_CALLS_BURST) + 2)]
    assert codes == ["API_TOKEN_REQUIRED"] * int(STRANGER_CALLS_BURST) + ["API_BUSY"] * 2


def test_from_the_command_line(server: ApiServer, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["subscribe", "line", "--table", "shop.items", "--sink", "s3://lake/line", "--server", server.url]
    assert run([*command, "--grpc", address, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["uuid"] == server.meta.get_feed("line").uuid
    assert run([*command, "--grpc", address]) == 2
    assert "[FEED_EXISTS]" in capsys.readouterr().err
    assert run([*command, "--grpc", "192.0.2.1:8301"]) == 2
    assert "in clear" in capsys.readouterr().err
    assert run([*command, "--grpc", "127.0.0.1:1"]) == 75
    assert "[SERVER_UNREACHABLE]" in capsys.readouterr().err


def test_over_tls(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_tls(["127.0.0.1"], SystemClock())
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_bytes(made.certificate)
    key.write_bytes(made.key)
    command = ["subscribe", "tls", "--table", "shop.items", "--sink", "s3://lake/tls", "--server", server.url]
    with serving(server, ApiSettings(tls_certificate=chain, tls_key=key)) as secure:
        assert run([*command, "--grpc", f"https://{secure}"]) == 75, "nobody knows the certificate"
        assert run([*command, "--grpc", secure]) == 75, "it speaks no clear text"
        capsys.readouterr()
        (tmp_path / "ca.pem").write_bytes(made.readers_ca)
        monkeypatch.setenv("PENSTOCK_CA_FILE", str(tmp_path / "ca.pem"))
        assert run([*command, "--grpc", f"https://{secure}"]) == 0
    assert server.meta.get_feed("tls")


def test_it_is_off_unless_a_port_is_given(server: ApiServer) -> None:
    with contextlib.ExitStack() as parts:
        clock = SystemClock()
        assert listen(ServerConfig(), server.creator, server.meta, server.supervisor, server.callers, clock, parts) == ""
        with contextlib.closing(_bound()) as taken:
            config = ServerConfig(grpc_port=taken.getsockname()[1])
            with pytest.raises(PenstockError, match="grpc-port"):
                listen(config, server.creator, server.meta, server.supervisor, server.callers, clock, parts)


def _bound() -> Any:
    import socket

    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    one.listen()
    return one
