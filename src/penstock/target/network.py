"""Connections over HTTP to addresses that were looked at, and exchanges that end in time.

Every address that a host's name resolves to is looked at when it is connected to, so a name that leads to where a machine's credentials are
given out is refused however it was written, and whatever it resolved to before. Invariant: an exchange ends within its time, however slowly
the other side sends. Not thread safe. Runs on executors and in the server.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore

from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.target.hosts import is_address


class CheckedNetwork(httpcore.NetworkBackend):
    """Connects to addresses that were looked at, and ends an exchange in time."""

    def __init__(self, shown: str, clock: Clock) -> None:
        """``shown`` names the other side in errors."""
        self._shown = shown
        self._clock = clock
        self._inner = httpcore.SyncBackend()
        self.until_s = 0.0
        """When the exchange ends, by the clock that only goes on."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to the first address of a host that takes it."""
        try:
            found = dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"the name {host} cannot be resolved") from error
        if not all(map(is_address, found)):
            detail = f"{self._shown}: {host} resolves to an address that gives out the credentials of machines"
            raise PenstockError("SINK_UNWRITABLE", detail, "Changes are never posted there; correct the name or its DNS record.")
        failure: Exception = httpcore.ConnectError(f"the name {host} has no address")
        for one in found:
            try:
                return _Timed(self._inner.connect_tcp(one, port, self.left_s(timeout), local_address, socket_options), self)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        """Refuse."""
        raise httpcore.ConnectError("no target is a socket of this machine")

    def sleep(self, seconds: float) -> None:
        """Refuse: who asks waits by its own clock."""
        raise httpcore.ConnectError("attempts are made again elsewhere")

    def left_s(self, timeout: float | None) -> float:
        """Return the time that an exchange has left, at most a timeout; raise where there is none."""
        left_s = self.until_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise httpcore.ReadTimeout("the exchange has no time left")
        return left_s if timeout is None else min(left_s, timeout)


class _Timed(httpcore.NetworkStream):
    """A stream whose exchange ends in time, byte by byte or not."""

    def __init__(self, inner: httpcore.NetworkStream, network: CheckedNetwork) -> None:
        self._inner = inner
        self._network = network

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._network.left_s(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._network.left_s(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Timed(self._inner.start_tls(ssl_context, server_hostname, self._network.left_s(timeout)), self._network)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
