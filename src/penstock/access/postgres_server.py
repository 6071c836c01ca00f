"""How a PostgreSQL server is entered to be written to: the URI of libpq, and the login itself.

A password is not shown in clear to a server that no certificate names. Runs wherever a server is entered.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

_NO_CLEAR = {"require_auth": "!password"}


def login(uri: str, **settings: Any) -> Any:
    """Return a connection of psycopg, each statement committed by itself. What the driver raises passes."""
    import psycopg

    try:
        options = dict(parse_qsl(urlsplit(uri).query))
    except ValueError:
        options = {}
    verified = options.get("sslmode") == "verify-full" or (options.get("sslmode") == "verify-ca" and "sslrootcert" in options)
    kept = {} if verified or "require_auth" in options else _NO_CLEAR
    # What a role or a database asks for otherwise would be the encoding of what is sent, which is UTF-8.
    return psycopg.connect(uri, autocommit=True, client_encoding="UTF8", **kept, **settings)
