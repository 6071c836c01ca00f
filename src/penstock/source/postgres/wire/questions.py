"""The connection on which questions are asked, one after the other, whoever asks.

A connection that was lost meanwhile is opened again once; one whose answer was left half way is given up. Thread safe. Runs wherever an
upstream is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from penstock.model.errors import PenstockError
from penstock.source.postgres.wire.address import PostgresAddress
from penstock.source.postgres.wire.connection import Connection, PostgresError

T = TypeVar("T")


class Questions:
    """Questions to one server, and connections of one's own."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._closed = False

    def open(self, replication: bool = False) -> Connection:
        """Return a connection of the caller's own."""
        if self._closed:
            raise PenstockError("UPSTREAM_UNREACHABLE", f"{self._address.shown}: the upstream is closed")
        return Connection(self._address, replication)

    def ask(self, question: Callable[[Connection], T]) -> T:
        """Ask on the shared connection; one that was lost meanwhile is opened again once."""
        with self._lock:
            for attempt in (1, 2):
                fresh = self._connection is None
                connection = self._connection or self.open()
                self._connection = connection
                try:
                    return question(connection)
                except PostgresError as error:
                    if error.code == "UPSTREAM_UNREACHABLE":
                        connection.close()
                        self._connection = None
                        if attempt == 1 and not fresh:
                            continue
                    raise
                except BaseException:
                    # A question that was left half way leaves an answer on the wire.
                    connection.close()
                    self._connection = None
                    raise
        raise PenstockError("UPSTREAM_UNREACHABLE", f"{self._address.shown}: no answer")

    def close(self) -> None:
        """Ask nothing more, and give out no connection. May be called twice."""
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
