"""Opens the Flight service of a server as its configuration says: on a socket, or on a port with TLS. Runs in the server."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from penstock.config.api_settings import is_loopback
from penstock.config.server_tree import ServerConfig
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.credentials import ServiceTls, make_tls
from penstock.store.flight.places import Places
from penstock.store.flight.server import FlightService

log = logging.getLogger(__name__)

_SOCKET_PATH = re.compile(r"[A-Za-z0-9_./-]{1,100}")
"""What both the operating system and a URI take for the path of a socket."""


def open_flight(
    config: ServerConfig,
    store: ColumnarEventStore,
    store_dir: Path,
    clock: Clock,
    further: int | None = None,
    places: Places | None = None,
) -> FlightService:
    """Serve a store to executors; ``further`` is the port of a source with a name, which is told as it is; ``places`` as the service's."""
    host, port = config.flight.advertised(config.flight_host, config.spark.conf)
    listens_on, advertised_port = (config.flight_port, port) if further is None else (further, None)
    socket = flight_socket(config, store_dir, listens_on)
    tls = _tls(config, host, clock) if socket is None and not config.flight.flight_plain_text else None
    if reached_here_only(config) and not config.spark.on_this_machine:
        log.warning("executors on other machines do not reach the event store: give flight-host", extra={"flight_host": host})
    return FlightService(
        store,
        config.flight_host,
        listens_on,
        clock=clock,
        advertised_host=host,
        socket=socket,
        tls=tls,
        advertised_port=advertised_port,
        places=places,
    )


def reached_here_only(config: ServerConfig) -> bool:
    """Return whether executors of other machines would be told an address that means their own machine."""
    return is_loopback(config.flight.advertised(config.flight_host, config.spark.conf)[0])


def flight_socket(config: ServerConfig, store_dir: Path, port: int) -> Path | None:
    """Return the socket on which executors read changes, where all of them are processes of this user on this machine; None: a port."""
    file = store_dir / "flight.sock"
    local = config.spark.master.startswith("local") and port == 0 and config.flight_host == ServerConfig.flight_host
    return file if local and _SOCKET_PATH.fullmatch(str(file)) else None


def _tls(config: ServerConfig, host: str, clock: Clock) -> ServiceTls:
    settings = config.flight
    file = settings.flight_tls_certificate
    if file is None:
        return make_tls([host], clock)
    content = _content("flight-tls-certificate", file)
    chain = _blocks(content, rb"CERTIFICATE")
    key = _content("flight-tls-key", settings.flight_tls_key) if settings.flight_tls_key else _blocks(content, rb"[A-Z ]*PRIVATE KEY")
    if not chain or not key:
        raise PenstockError("CONFIG_INVALID", f"flight-tls-certificate: {file} has no {'key' if chain else 'certificate'} in it")
    ca = _content("flight-tls-ca", settings.flight_tls_ca) if settings.flight_tls_ca else chain
    return make_tls([host], clock, (chain, key, ca))


def _content(name: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise PenstockError("CONFIG_INVALID", f"{name}: {file}: {error.strerror or 'cannot be read'}") from None


def _blocks(content: bytes, kind: bytes) -> bytes:
    """Return the parts of one kind of a file that may hold certificates and key: the key does not travel."""
    return b"".join(re.findall(rb"-----BEGIN " + kind + rb"-----.+?-----END " + kind + rb"-----\n?", content, re.DOTALL))
