"""The verb ``subscribe``: one table to one target over gRPC, as the cdc-server seed has it. Runs anywhere."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import grpc

from penstock.cli.given import URI
from penstock.cli.options import output_option, reason_option, server_option
from penstock.cli.server_client import found_token
from penstock.cli.shown.line import say
from penstock.cli.shown.output import show_result
from penstock.config.api_settings import is_loopback
from penstock.config.known_servers import KnownServer, find_server
from penstock.model.errors import PenstockError
from penstock.source.proto import subscribe_pb2 as pb
from penstock.source.proto import subscribe_pb2_grpc

_ERROR_KEY = "penstock-error-bin"
_CALL_S_MAX = 60.0


@click.command()
@click.argument("name")
@click.option("--table", required=True, metavar="DB.TABLE", help="The table.")
@click.option("--sink", required=True, metavar="URI", type=URI, help="The target; its scheme is the sink's type.")
@click.option("--set", "options", multiple=True, metavar="KEY=VALUE", help="One option of the target, as csv.delimiter=';'. Repeat.")
@click.option("--source", default="", metavar="NAME", help="A source of the server with this name.  [default: the server's own]")
@click.option("--grpc", "address", required=True, metavar="HOST:PORT", help="The server's grpc-port; https://HOST:PORT where it has TLS.")
@reason_option
@server_option
@output_option
def subscribe(
    name: str, table: str, sink: str, options: tuple[str, ...], source: str, address: str, reason: str, server_url: str, output: str
) -> None:
    """Subscribe a table under a name, over gRPC. The feed is the same as one of `penstock feed create`.

    \b
    Example:
      penstock subscribe orders --table shop.orders --sink file:///tmp/orders --grpc 127.0.0.1:8301
    """  # noqa: D301
    db_name, _, table_name = table.partition(".")
    pairs = [option.partition("=") for option in options]
    if not table_name or not all(sign for _, sign, _ in pairs):
        raise click.UsageError("--table must look like DB.TABLE, and --set like KEY=VALUE")
    config = {"uri": sink} | {key: value for key, _, value in pairs}
    request = pb.SubscribeCDCRequest(
        header=pb.RequestHeader(source=source, reason=reason),
        db_name=db_name,
        table_name=table_name,
        subscriber_name=name,
        sink=pb.CDCSink(type=urlsplit(sink).scheme, config=config),
    )
    known = find_server(server_url.rstrip("/"))
    made = _call(address, request, found_token(known), known)
    if output != "table":
        show_result({field.name: getattr(made, field.name) for field in made.DESCRIPTOR.fields}, output)
    else:
        say(f"{made.db_name}.{made.table_name} is subscribed as {made.subscriber_name}; see penstock feed show {made.subscriber_name}")


def _call(address: str, request: pb.SubscribeCDCRequest, token: str, known: KnownServer | None) -> pb.CDCSubscriber:
    with _channel(address, known) as channel:
        stub: Any = subscribe_pb2_grpc.CdcServerStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = stub.SubscribeCDC(request, timeout=_CALL_S_MAX, metadata=(("authorization", f"Bearer {token}"),) if token else ())
        except grpc.RpcError as error:
            raise _told(address, error) from None
    subscriber: pb.CDCSubscriber = answer.subscriber
    return subscriber


def _channel(address: str, known: KnownServer | None) -> grpc.Channel:
    """Return a channel; none in clear text to another machine, which anybody between could take the token from."""
    scheme, _, place = address.rpartition("://")
    if scheme == "https":
        return grpc.secure_channel(place, grpc.ssl_channel_credentials(_trusted(known)))
    host = place.rpartition(":")[0].strip("[]")
    if scheme not in {"", "http"} or not is_loopback(host):
        raise PenstockError(
            "CONFIG_INVALID", f"--grpc: {place} is another machine's, and the token would be sent in clear", "Use https://."
        )
    return grpc.insecure_channel(place, options=[("grpc.enable_http_proxy", 0)])


def _trusted(known: KnownServer | None) -> bytes | None:
    """Return certificates of the user's own; without any, the system's count."""
    files = [file for file in (os.environ.get("PENSTOCK_CA_FILE"), known.certificate if known else None) if file]
    try:
        return b"\n".join(Path(file).read_bytes() for file in files) or None
    except OSError as error:
        raise PenstockError("CONFIG_INVALID", f"{error.filename}: {error.strerror}") from None


def _told(address: str, error: grpc.RpcError) -> PenstockError:
    """Return the server's own error, or that nobody answers."""
    trailing: Any = error.trailing_metadata() or ()
    for key, value in trailing:
        if key == _ERROR_KEY:
            body = json.loads(value)
            return PenstockError(str(body["code"]), str(body["message"]), str(body["hint"]))
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return PenstockError("API_BUSY", f"{address}: {error.details()}")
    return PenstockError("SERVER_UNREACHABLE", f"{address}: {error.code().name}", "Check grpc-port of the server, and --grpc.")
