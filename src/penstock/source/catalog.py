"""The catalog of upstreams: from a URI to a connected ``Upstream``.

A source adds its scheme here. An unknown scheme or a malformed URI is ``CONFIG_INVALID`` and names the field; an upstream that does not
answer is ``UPSTREAM_UNREACHABLE`` at once, not at its first use. Runs wherever an upstream is opened: log service, server, executors.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from penstock.model.errors import PenstockError
from penstock.source.contract import Upstream
from penstock.source.dataserver.client import ClientSettings, DataServerUpstream

CONNECT_TIMEOUT_S = 3.0


def open_upstream(uri: str) -> Upstream:
    """Return a connected upstream; its caller closes it."""
    scheme = urlsplit(uri).scheme
    opener = _OPENERS.get(scheme)
    if opener is None:
        supported = ", ".join(sorted(f"{name}://" for name in _OPENERS))
        raise PenstockError("CONFIG_INVALID", f"upstream: scheme {scheme or '(none)'!r} is not supported; supported: {supported}")
    return opener(uri)


def _open_dataserver(uri: str) -> Upstream:
    probe = DataServerUpstream(uri, ClientSettings(call_timeout_s=CONNECT_TIMEOUT_S))
    try:
        probe.current_ts()
    finally:
        probe.close()
    return DataServerUpstream(uri)


def _open_postgres(uri: str) -> Upstream:
    # Imported here: its kernels are nothing that another source should load.
    from penstock.source.postgres.upstream import PostgresUpstream

    upstream = PostgresUpstream(uri)
    try:
        upstream.current_ts()
    except BaseException:
        upstream.close()
        raise
    return upstream


def _open_mysql(uri: str) -> Upstream:
    # Imported here for the same reason; opening it asks the server for its version.
    try:
        from penstock.source.mysql.upstream import MySqlUpstream
    except ImportError as error:
        raise PenstockError("MISSING_DEPENDENCY", f"mysql:// needs {error.name}", "pip install 'penstock[mysql]'") from None
    return MySqlUpstream(uri)


_OPENERS: dict[str, Callable[[str], Upstream]] = {
    "dataserver": _open_dataserver,
    "mariadb": _open_mysql,
    "mysql": _open_mysql,
    "postgres": _open_postgres,
    "postgresql": _open_postgres,
}
