"""Where a MariaDB or MySQL server is and how it is entered: the URI, TLS, and the login itself.

A password stands in no text that leaves this module. Runs wherever a server is entered.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from pymysql.constants import CLIENT

from penstock.access.guarded_mysql import GuardedConnection
from penstock.model.errors import PenstockError

C = TypeVar("C", bound=GuardedConnection)
DEFAULT_PORT = 3306
SCHEMES = frozenset({"mysql", "mariadb"})
_OPTIONS = frozenset({"ssl", "ssl-ca", "ssl-cert", "ssl-key", "server-id", "connect-timeout-s", "clear-password"})
_ENCODE_HINT = "In a password / ? # and @ are written %2F %3F %23 %40; or name it, as in mysql://user:{env:PASSWORD}@db:3306."
_SSL_MODES = frozenset({"off", "preferred", "required", "verify-ca", "verify-identity"})


@dataclass(frozen=True)
class ServerAddress:
    """Where a server is and how to log in."""

    host: str
    port: int
    user: str
    password: str = field(repr=False, default="")
    ssl_mode: str = "preferred"
    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    server_id: int = 0
    """Under which id the binlog is read; 0 chooses one."""
    connect_timeout_s: float = 10.0
    clear_password: bool = False
    """Whether the password may be shown to a server that no certificate names."""

    @property
    def is_verified(self) -> bool:
        """Return whether a certificate says who the server is: by its name, or by an authority of the user's own."""
        return self.ssl_mode == "verify-identity" or (self.ssl_mode == "verify-ca" and bool(self.ssl_ca))

    @property
    def shown(self) -> str:
        """Return the address without the password."""
        return f"mysql://{self.user}@{self.host}:{self.port}"


def parse_uri(uri: str) -> ServerAddress:
    """Read ``mysql://user:password@host:port/?ssl=required``; every problem names what is wrong, none the password."""
    try:
        parts = urlsplit(uri)
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise PenstockError("CONFIG_INVALID", "host and port must look like db:3306, the port up to 65535", _ENCODE_HINT) from None
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise PenstockError("CONFIG_INVALID", f"mysql URI: expected mysql://user@host:port, got {parts.scheme}://{parts.hostname or ''}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - _OPTIONS)
    mode = options.get("ssl", "preferred")
    if unknown or mode not in _SSL_MODES:
        raise PenstockError(
            "CONFIG_INVALID",
            f"mysql URI: option {unknown[0]!r} is not known" if unknown else f"mysql URI: ssl={mode!r} is not a mode",
            f"Options are {', '.join(sorted(_OPTIONS))}; ssl is one of {', '.join(sorted(_SSL_MODES))}.",
        )
    try:
        server_id, timeout_s = int(options.get("server-id", "0")), float(options.get("connect-timeout-s", "10"))
    except ValueError:
        raise PenstockError("CONFIG_INVALID", "mysql URI: server-id and connect-timeout-s must be numbers") from None
    if options.get("clear-password", "off") not in {"on", "off"}:
        raise PenstockError("CONFIG_INVALID", "mysql URI: clear-password must be on or off")
    return ServerAddress(
        parts.hostname,
        port,
        unquote(parts.username or "root"),
        unquote(parts.password or ""),
        mode,
        options.get("ssl-ca", ""),
        options.get("ssl-cert", ""),
        options.get("ssl-key", ""),
        server_id,
        timeout_s,
        options.get("clear-password") == "on",
    )


def login(
    address: ServerAddress,
    read_timeout_s: float | None,
    kind: type[C] = GuardedConnection,
    client_flag: int = 0,
    **settings: Any,
) -> C:
    """Return a logged-in connection of the driver, in utf8mb4, each statement committed by itself. What the driver raises passes."""
    connection = kind(
        address.is_verified or address.clear_password,
        host=address.host,
        port=address.port,
        user=address.user,
        password=address.password,
        charset="utf8mb4",
        autocommit=True,
        connect_timeout=max(1, int(address.connect_timeout_s)),
        # A server that accepts and says nothing must not hold anybody up, however long queries may take.
        read_timeout=max(1.0, address.connect_timeout_s),
        client_flag=CLIENT.MULTI_RESULTS | client_flag,
        ssl_disabled=True,
        defer_connect=True,
        **settings,
    )
    if address.ssl_mode != "off":
        # The driver would load the system's certificates for every connection, which takes longer than all the rest.
        connection.ssl, connection.ctx = True, _tls_context(address)
        connection._ssl_required = address.ssl_mode != "preferred"
    connection.connect()
    connection._read_timeout = read_timeout_s
    return connection


@lru_cache(maxsize=16)
def _tls_context(address: ServerAddress) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = address.ssl_mode == "verify-identity"
    try:
        if address.ssl_mode in {"verify-ca", "verify-identity"}:
            context.verify_mode = ssl.CERT_REQUIRED
            if address.ssl_ca:
                context.load_verify_locations(address.ssl_ca)
            else:
                context.load_default_certs()
        else:
            context.verify_mode = ssl.CERT_NONE
        if address.ssl_cert:
            context.load_cert_chain(address.ssl_cert, address.ssl_key or None)
    except (OSError, ValueError) as error:
        # Which file it was is not in every error; its content never is.
        why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise PenstockError("CONFIG_INVALID", f"mysql URI: ssl-ca, ssl-cert or ssl-key cannot be used: {why}") from None
    return context
