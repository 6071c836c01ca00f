"""Opens the database of a URI for a replay.

A server is entered as a source is: no password is shown to one that no certificate names. Invariant: no error shows a part of the URI's
credentials, whatever characters they have. Runs wherever ``penstock replay`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.model.errors import PenstockError
from penstock.readback.replay_database import ReplayDatabase
from penstock.readback.replay_dialect import DIALECTS
from penstock.settings.masking import mask_parts


def open_database(uri: str) -> ReplayDatabase:
    """Open the database of a URI: ``sqlite:///file``, ``duckdb:///file``, ``mysql://user:password@host/``, ``postgresql://.../name``."""
    given = uri.partition("://")[0]
    scheme = {"mariadb": "mysql", "postgres": "postgresql"}.get(given, given)
    openers = {"sqlite": _open_sqlite, "duckdb": _open_duckdb, "mysql": _open_mysql, "postgresql": _open_postgresql}
    if scheme not in openers or "://" not in uri:
        raise PenstockError("SINK_URI_INVALID", f"the scheme of a database is one of {', '.join(openers)}")
    try:
        return openers[scheme](uri)
    except PenstockError:
        raise
    except ImportError as error:
        extra = {"postgresql": "postgres"}.get(scheme, scheme)
        raise PenstockError("MISSING_DEPENDENCY", f"{error.name} is not installed; install penstock[{extra}]") from None
    except Exception as error:  # noqa: BLE001 - every driver has its own root
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise PenstockError("SINK_UNWRITABLE", f"{scheme}: cannot open: {mask_parts(cause, uri)}") from None


def _path(uri: str) -> str:
    path = unquote(urlsplit(uri).path)
    if not path.startswith("/") or len(path) < 2:
        raise PenstockError("SINK_URI_INVALID", "a database file must have an absolute path, as in sqlite:////dir/file.db")
    return "/" + path.lstrip("/")


def _open_sqlite(uri: str) -> ReplayDatabase:
    import sqlite3

    connection = sqlite3.connect(_path(uri), isolation_level=None)

    def fetch(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return connection.execute(sql, tuple(values)).fetchall()

    return ReplayDatabase(DIALECTS["sqlite"], connection, fetch)


def _open_duckdb(uri: str) -> ReplayDatabase:
    import duckdb

    connection = duckdb.connect(_path(uri))

    def fetch(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = connection.execute(sql, list(values)).fetchall()
        return rows

    return ReplayDatabase(DIALECTS["duckdb"], connection, fetch)


def _open_mysql(uri: str) -> ReplayDatabase:
    from penstock.access.mysql_server import login, parse_uri

    address = parse_uri(uri)
    name = unquote(urlsplit(uri).path.strip("/"))
    if not name:
        raise PenstockError("SINK_URI_INVALID", "name the database that keeps the notes of the replay, as in mysql://user@host:3306/replay")
    # Texts are escaped by backslashes in what follows, and no mode of the server's own may change that.
    modes = "SET time_zone = '+00:00', sql_mode = 'NO_AUTO_VALUE_ON_ZERO'"
    connection: Any = login(address, None, database=name, init_command=modes)

    def fetch(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(sql, tuple(values) or None)
            return list(cursor.fetchall())

    return ReplayDatabase(DIALECTS["mysql"], connection, fetch)


def _open_postgresql(uri: str) -> ReplayDatabase:
    from penstock.access.postgres_server import login

    connection: Any = login(uri)

    def fetch(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        cursor = connection.execute(sql, tuple(values) or None)
        return cursor.fetchall() if cursor.description is not None else []

    return ReplayDatabase(DIALECTS["postgresql"], connection, fetch)
