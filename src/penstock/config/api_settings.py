"""Who may call a server's HTTP API and how much: addresses, TLS, bounds.

Invariant: settings that exist never serve a token in clear text to another machine unless they say so. Runs in the server.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

OPENABLE = ("/metrics", "/health/live", "/health/ready")
"""What may be answered without a token, where the operator says so: names of feeds and how they fare, no rows and no secrets."""
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class ApiSettings:
    """What the API answers, to whom, and how much of it.

    Attributes:
        hosts: further names under which callers reach the server, beside loopback names and ``http-host``.
        origins: web origins that may call, as ``https://host:port``; the server's own may always.
        open_paths: paths that need no token.
        tls_certificate: certificate chain and, in ``tls_key`` unless it holds both, its key, as PEM files.
        plain_text: an address that other machines reach is served without TLS.
        body_bytes_max: the largest request body.
        requests_per_second: how many calls one token makes, over a while.
        target_timeout_s: how long a target may take for one answer while a feed is created.
    """

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    open_paths: tuple[str, ...] = field(default=(), metadata={"key": "open"})
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    plain_text: bool = False
    body_bytes_max: int = field(default=1 << 20, metadata={"range": (1 << 10, 64 << 20)})
    requests_per_second: int = field(default=500, metadata={"range": (1, 1_000_000)})
    target_timeout_s: float = field(default=20.0, metadata={"range": (1, 600)})

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        found = [("hosts", f"{host!r} must be a name or an address, without port") for host in self.hosts if "/" in host or not host]
        found += [
            ("origins", f"{origin!r} must look like https://host:port")
            for origin in self.origins
            if urlsplit(origin).scheme not in {"http", "https"} or urlsplit(origin).path
        ]
        found += [("open", f"{path!r} must be one of {', '.join(OPENABLE)}") for path in self.open_paths if path not in OPENABLE]
        if self.tls_key is not None and self.tls_certificate is None:
            found.append(("tls-key", "needs tls-certificate"))
        return found


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches what listens on a host."""
    if host.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
