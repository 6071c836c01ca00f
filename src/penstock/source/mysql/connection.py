"""Sessions of a MariaDB or MySQL server for queries, and what a server's errors mean.

Sessions read only. Runs in the log service, the server and on executors.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import pymysql
import pymysql.cursors

from penstock.access.guarded_mysql import NONSENSE
from penstock.access.mysql_server import ServerAddress, login
from penstock.model.errors import PenstockError

_REFUSED = frozenset({1044, 1045, 1095, 1142, 1143, 1227, 1698, 1820, 1862, 3118, 3159, 4151})
"""Access denied in its many forms, expired and locked accounts, no TLS where it is required."""
_CHANGED = frozenset({1051, 1054, 1146, 1412})
"""No such column or table, or another than at the beginning of the transaction: a DDL came in between."""
_NO_TLS = 2026
_TEXT_CHARS_MAX = 2_000


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
        return login(address, read_timeout_s, init_command="SET time_zone='+00:00', sql_mode=''")
    except pymysql.Error as error:
        raise translated(error, address) from error
    except NONSENSE as error:
        if isinstance(error, RuntimeError) and "required" in str(error):
            # The driver knows more ways to prove a password than it can go by itself.
            raise PenstockError("MISSING_DEPENDENCY", f"{address.shown}: {error}", "pip install 'penstock[mysql]'") from None
        raise nonsense(error, address) from error


def shown_text(text: str) -> str:
    """Return what an error repeats of a server's own words: the first line, which may be as long as the server likes or not there."""
    return "".join(text[:_TEXT_CHARS_MAX].splitlines()[:1])


def nonsense(error: Exception, address: ServerAddress) -> PenstockError:
    """Return what an error means that the driver raises where an answer is none; it finds no socket where another thread closed it."""
    code = "UPSTREAM_UNREACHABLE" if isinstance(error, AttributeError) else "DECODE_FAILED"
    return PenstockError(code, f"{address.shown}: an answer makes no sense ({type(error).__name__}); is this MySQL?")


def translated(error: pymysql.Error, address: ServerAddress) -> PenstockError:
    """Return what a driver's error means to us, by its number."""
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = shown_text(str(error.args[1] if len(error.args) > 1 else error)) if error.args else type(error).__name__
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
