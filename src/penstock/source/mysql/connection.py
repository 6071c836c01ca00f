"""Connections to a MariaDB or MySQL server: the URI, sessions for queries, and what a server's errors mean.

Sessions read only. A password stands in no text that leaves this module. Runs in the log service, the server and on executors.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
import pymysql.cursors
from pymysql.constants import CLIENT

from penstock.model.errors import PenstockError
from penstock.source.mysql.wire.guarded_driver import NONSENSE, GuardedConnection

DEFAULT_PORT = 3306
SCHEMES = frozenset({"mysql", "mariadb"})
_OPTIONS = frozenset({"ssl", "ssl-ca", "ssl-cert", "ssl-key", "server-id", "connect-timeout-s", "clear-password"})
_SSL_MODES = frozenset({"off", "preferred", "required", "verify-ca", "verify-identity"})
_REFUSED = frozenset({1044, 1045, 1095, 1142, 1143, 1227, 1698, 1820, 1862, 3118, 3159, 4151})
"""Access denied in its many forms, expired and locked accounts, no TLS where it is required."""
_CHANGED = frozenset({1051, 1054, 1146, 1412})
"""No such column or table, or another than at the beginning of the transaction: a DDL came in between."""
_NO_TLS = 2026


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
    parts = urlsplit(uri)
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        raise PenstockError("CONFIG_INVALID", "upstream: the port of a mysql:// URI must be a number up to 65535") from None
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise PenstockError("CONFIG_INVALID", f"upstream: expected mysql://user@host:port, got {parts.scheme}://{parts.hostname or ''}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - _OPTIONS)
    mode = options.get("ssl", "preferred")
    if unknown or mode not in _SSL_MODES:
        raise PenstockError(
            "CONFIG_INVALID",
            f"upstream: option {unknown[0]!r} is not known" if unknown else f"upstream: ssl={mode!r} is not a mode",
            f"Options are {', '.join(sorted(_OPTIONS))}; ssl is one of {', '.join(sorted(_SSL_MODES))}.",
        )
    try:
        server_id, timeout_s = int(options.get("server-id", "0")), float(options.get("connect-timeout-s", "10"))
    except ValueError:
        raise PenstockError("CONFIG_INVALID", "upstream: server-id and connect-timeout-s must be numbers") from None
    if options.get("clear-password", "off") not in {"on", "off"}:
        raise PenstockError("CONFIG_INVALID", "upstream: clear-password must be on or off")
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


class Session:
    """One connection for queries. One thread at a time."""

    def __init__(self, address: ServerAddress, read_timeout_s: float | None = 60.0) -> None:
        self.address = address
        self.raw: Any = connect(address, read_timeout_s)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def rows(self, query: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        try:
            with self.raw.cursor() as cursor:
                cursor.execute(query, tuple(arguments) or None)
                return list(cursor.fetchall())
        except pymysql.Error as error:
            raise translated(error, self.address) from error
        except NONSENSE as error:
            raise nonsense(error, self.address) from error

    def records(self, query: str) -> list[dict[str, Any]]:
        """Run a statement and return its rows by column name, in lower case."""
        try:
            with self.raw.cursor(pymysql.cursors.DictCursor) as cursor:
                cursor.execute(query)
                return [{str(k).lower(): v for k, v in row.items()} for row in cursor.fetchall()]
        except pymysql.Error as error:
            raise translated(error, self.address) from error
        except NONSENSE as error:
            raise nonsense(error, self.address) from error

    def variable(self, name: str) -> str | None:
        """Return a global variable, None where the server has none of that name."""
        found = self.rows("SHOW GLOBAL VARIABLES LIKE %s", (name,))
        return str(found[0][1]) if found else None

    def close(self) -> None:
        """Close the connection; may be called twice."""
        if self.raw.open:
            self.raw.close()


def connect(address: ServerAddress, read_timeout_s: float | None) -> Any:
    """Return a logged-in connection of the driver, in UTC and utf8mb4."""
    try:
        connection = GuardedConnection(
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
            client_flag=CLIENT.MULTI_RESULTS,
            init_command="SET time_zone='+00:00', sql_mode=''",
            ssl_disabled=True,
            defer_connect=True,
        )
        if address.ssl_mode != "off":
            # The driver would load the system's certificates for every connection, which takes longer than all the rest.
            connection.ssl, connection.ctx = True, _tls_context(address)
            connection._ssl_required = address.ssl_mode != "preferred"
        connection.connect()
    except pymysql.Error as error:
        raise translated(error, address) from error
    except NONSENSE as error:
        if isinstance(error, RuntimeError) and "required" in str(error):
            # The driver knows more ways to prove a password than it can go by itself.
            raise PenstockError("MISSING_DEPENDENCY", f"{address.shown}: {error}", "pip install 'penstock[mysql]'") from None
        raise nonsense(error, address) from error
    connection._read_timeout = read_timeout_s
    return connection


def nonsense(error: Exception, address: ServerAddress) -> PenstockError:
    """Return what an error means that the driver raises where an answer is none; it finds no socket where another thread closed it."""
    code = "UPSTREAM_UNREACHABLE" if isinstance(error, AttributeError) else "DECODE_FAILED"
    return PenstockError(code, f"{address.shown}: an answer makes no sense ({type(error).__name__}); is this MySQL?")


def translated(error: pymysql.Error, address: ServerAddress) -> PenstockError:
    """Return what a driver's error means to us, by its number."""
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1] if len(error.args) > 1 else error).splitlines()[0] if error.args else type(error).__name__
    if number in _REFUSED:
        # MariaDB says no more than this where it, or the user, wants TLS.
        hint = (
            "Check user, password and privileges; where TLS is required, add ?ssl=required to the URI."
            if address.ssl_mode == "off"
            else None
        )
        return PenstockError("UPSTREAM_REFUSED", f"{address.shown} answered {number}: {text}", hint)
    if number in _CHANGED:
        return PenstockError("UPSTREAM_CHANGING", f"{address.shown} answered {number}: {text}")
    if number == _NO_TLS:
        return PenstockError("UPSTREAM_REFUSED", f"{address.shown} offers no TLS", "Configure its certificate, or add ?ssl=off to the URI.")
    reason = getattr(error, "original_exception", None)
    if isinstance(reason, ssl.SSLCertVerificationError):
        hint = "Give the authority that signed it with ?ssl-ca=…; verify-identity also compares the host's name."
        return PenstockError("UPSTREAM_REFUSED", f"{address.shown}: the certificate is not trusted: {reason.verify_message}", hint)
    if isinstance(error, pymysql.OperationalError | pymysql.InterfaceError):
        return PenstockError("UPSTREAM_UNREACHABLE", f"{address.shown}: {number} {text}")
    return PenstockError("UPSTREAM_REFUSED", f"{address.shown} answered {number}: {text}")


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
        raise PenstockError("CONFIG_INVALID", f"upstream: ssl-ca, ssl-cert or ssl-key cannot be used: {why}") from None
    return context
