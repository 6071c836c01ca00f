"""Where gRPC callers reach a server: its own port beside the HTTP API, with the same host, certificate and bounds.

Off unless ``grpc-port`` is given. Invariants: TLS by the API's certificate, where it has one, and without one only where the configuration
lets HTTP be plain too; a message beyond ``api.body-bytes-max`` is refused by its length; no more calls than threads and places to
wait. Runs in the server.
"""

from __future__ import annotations

import contextlib
import logging
from concurrent import futures

import grpc

from penstock.config.server_tree import ServerConfig
from penstock.meta.database import MetaDatabase
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.server.feeds.creation import FeedCreator
from penstock.server.feeds.ports import Liveness
from penstock.server.http.callers import Callers
from penstock.server.rpc.subscriptions import Subscriptions

CALLS_AT_ONCE, CALLS_WAITING_MAX = 4, 16
_HEAD_BYTES_MAX = 16 << 10
_IDLE_MS = 60_000
_STOP_S = 5.0

log = logging.getLogger(__name__)


def listen(
    config: ServerConfig,
    creator: FeedCreator,
    meta: MetaDatabase,
    supervisor: Liveness,
    callers: Callers,
    clock: Clock,
    parts: contextlib.ExitStack,
) -> str:
    """Serve ``SubscribeCDC`` until the parts are closed; return the address, empty where no port is given."""
    if config.grpc_port is None:
        return ""
    server = grpc.server(
        futures.ThreadPoolExecutor(CALLS_AT_ONCE, "grpc-calls"),
        options=[
            # Two servers at one port would share its calls.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", config.api.body_bytes_max),
            ("grpc.max_metadata_size", _HEAD_BYTES_MAX),
            ("grpc.max_concurrent_streams", CALLS_AT_ONCE + CALLS_WAITING_MAX),
            ("grpc.max_connection_idle_ms", _IDLE_MS),
        ],
        maximum_concurrent_rpcs=CALLS_AT_ONCE + CALLS_WAITING_MAX,
    )
    server.add_generic_rpc_handlers((Subscriptions(creator, meta, supervisor, callers, config.api, clock).handlers(),))
    host = f"[{config.http_host}]" if ":" in config.http_host else config.http_host
    port = _bind(server, f"{host}:{config.grpc_port}", config)
    server.start()
    parts.callback(lambda: server.stop(_STOP_S).wait())
    address = f"{host}:{port}"
    log.info("grpc listens", extra={"address": address})
    return address


def _bind(server: grpc.Server, address: str, config: ServerConfig) -> int:
    certificate = config.api.tls_certificate
    try:
        if certificate is None:
            port = server.add_insecure_port(address)
        else:
            key = (config.api.tls_key or certificate).read_bytes()
            port = server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate.read_bytes())]))
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else "the address cannot be had"
        raise PenstockError("CONFIG_INVALID", f"grpc-port: cannot listen on {address}: {why}", "Choose a free port.") from None
    return int(port)
