"""Where a PostgreSQL upstream is and how it is entered: ``postgresql://user:password@host:port/database?option=value``.

Options: ``slot`` and ``publication`` name what is used (both ``penstock`` unless given; made by Penstock where they are missing),
``sslmode`` (``disable``, ``prefer``, ``require``, ``verify-ca``, ``verify-full``), ``sslrootcert``, ``sslcert``, ``sslkey``,
``connect_timeout`` in seconds, ``streaming`` (``on`` lets the server send large transactions before they commit) and ``clear_password``
(``on`` lets a server have the password in clear that no certificate names). Anything else is ``CONFIG_INVALID``.
Runs wherever an upstream is opened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.model.errors import PenstockError

SCHEMES = ("postgresql", "postgres")
SSL_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")
DEFAULT_PORT = 5432
DEFAULT_NAME = "penstock"
_OPTIONS = frozenset(
    {"slot", "publication", "sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout", "streaming", "clear_password"},
)
_ENCODE_HINT = "In a password / ? # and @ are written %2F %3F %23 %40; or name it, as in postgresql://user:{env:PASSWORD}@db/shop."
_SLOT = re.compile(r"[a-z0-9_]{1,63}")


@dataclass(frozen=True)
class PostgresAddress:
    """A parsed URI. Holds a secret: its text never shows the password."""

    host: str
    port: int
    user: str
    password: str
    database: str
    slot: str = DEFAULT_NAME
    publication: str = DEFAULT_NAME
    sslmode: str = "prefer"
    sslrootcert: str = ""
    sslcert: str = ""
    sslkey: str = ""
    connect_timeout_s: float = 10.0
    streaming: bool = False
    clear_password: bool = False

    @property
    def is_verified(self) -> bool:
        """Return whether a certificate says who the server is: by its name, or by an authority of the user's own."""
        return self.sslmode == "verify-full" or (self.sslmode == "verify-ca" and bool(self.sslrootcert))

    def __repr__(self) -> str:
        return f"PostgresAddress({self.user}@{self.host}:{self.port}/{self.database}, slot={self.slot!r})"

    @property
    def shown(self) -> str:
        """Return ``host:port/database``, for messages."""
        return f"{self.host}:{self.port}/{self.database}"


def parse_address(uri: str) -> PostgresAddress:
    """Read a URI; every problem of it is named in one ``CONFIG_INVALID``."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise PenstockError("CONFIG_INVALID", "source: host and port must look like db:5432", _ENCODE_HINT) from None
    problems = []
    if parts.scheme not in SCHEMES:
        problems.append("must begin with postgresql://")
    port = DEFAULT_PORT
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        problems.append("has no valid port")
    user = unquote(parts.username or "")
    if not parts.hostname or not user:
        problems.append("must name a user and a host, as postgresql://user@host:port/database")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        problems.append(f"unknown option {', '.join(unknown)}; known: {', '.join(sorted(_OPTIONS))}")
    if options.get("sslmode", "prefer") not in SSL_MODES:
        problems.append(f"sslmode must be one of {', '.join(SSL_MODES)}")
    if not _SLOT.fullmatch(options.get("slot", DEFAULT_NAME)):
        problems.append("slot must be of lower case letters, digits and _, at most 63")
    problems += [f"{name} must be on or off" for name in ("streaming", "clear_password") if options.get(name, "off") not in {"on", "off"}]
    timeout_s = options.get("connect_timeout", "10")
    if not re.fullmatch(r"\d{1,4}(\.\d+)?", timeout_s) or float(timeout_s) <= 0:
        problems.append("connect_timeout must be a number of seconds above 0")
    if problems:
        raise PenstockError("CONFIG_INVALID", "\n".join(f"source: {p}" for p in problems), _ENCODE_HINT if parts.username is None else None)
    database = unquote(parts.path.lstrip("/")) or user
    return PostgresAddress(
        host=parts.hostname or "",
        port=port,
        user=user,
        password=unquote(parts.password or ""),
        database=database,
        slot=options.get("slot", DEFAULT_NAME),
        publication=options.get("publication") or DEFAULT_NAME,
        sslmode=options.get("sslmode", "prefer"),
        sslrootcert=options.get("sslrootcert", ""),
        sslcert=options.get("sslcert", ""),
        sslkey=options.get("sslkey", ""),
        connect_timeout_s=float(timeout_s),
        streaming=options.get("streaming") == "on",
        clear_password=options.get("clear_password") == "on",
    )
