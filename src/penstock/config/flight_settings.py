"""How executors reach the event store of a server: the address that they are told, and TLS.

Invariant: a port speaks TLS and asks for certificates unless the settings say ``flight-plain-text``, which the server takes on loopback
alone. Runs in the server.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_ADVERTISED = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9_.-]+))(?::(?P<port>\d{1,5}))?")
_ALL_ADDRESSES = frozenset({"", "0.0.0.0", "::", "*"})
_DRIVER_HOST = "spark.driver.host"


@dataclass(frozen=True)
class FlightSettings:
    """The event store as executors see it.

    Attributes:
        flight_advertise: ``host`` or ``host:port`` that executors are told, where that is not where the server listens.
        flight_tls_certificate: the service's certificate chain, a PEM file, in place of one that the server makes at its start.
        flight_tls_key: its key, unless the certificate's file has both.
        flight_tls_ca: by what executors know it, a PEM file; without it, by the certificate itself.
        flight_plain_text: a port of loopback is served without TLS.
    """

    flight_advertise: str = ""
    flight_tls_certificate: Path | None = None
    flight_tls_key: Path | None = None
    flight_tls_ca: Path | None = None
    flight_plain_text: bool = False

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        found = []
        if self.flight_advertise and _parsed(self.flight_advertise) is None:
            found.append(("flight-advertise", "must look like host, host:port or [address]:port"))
        needing = {"flight-tls-key": self.flight_tls_key, "flight-tls-ca": self.flight_tls_ca}
        if self.flight_tls_certificate is None:
            found += [(key, "needs flight-tls-certificate") for key, file in needing.items() if file is not None]
        elif self.flight_plain_text:
            found.append(("flight-plain-text", "is the opposite of flight-tls-certificate"))
        return found

    def advertised(self, listens_on: str, spark_conf: Mapping[str, str]) -> tuple[str, int | None]:
        """Return which host executors are told, and which port if it is not the one that is listened on.

        What listens on all addresses is reached as Spark's driver is, which runs in the same process, or by the machine's name.
        """
        given = _parsed(self.flight_advertise)
        if given is not None:
            return given
        if listens_on in _ALL_ADDRESSES:
            return spark_conf.get(_DRIVER_HOST) or socket.gethostname(), None
        return listens_on, None


def _parsed(text: str) -> tuple[str, int | None] | None:
    found = _ADVERTISED.fullmatch(text)
    if found is None or not 0 < int(found["port"] or 1) < 1 << 16:
        return None
    return found["six"] or found["host"], int(found["port"]) if found["port"] else None
