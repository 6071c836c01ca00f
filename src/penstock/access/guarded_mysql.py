"""The driver's connection with what it leaves to the caller: to whom a password is shown, and how long an answer may be.

A server chooses how a password is proven. Some of the ways show it to the server, in clear or under a key that the server itself gives;
they are gone only where a certificate says who the server is, or where the URI allows them. Invariants: a server that proved nothing
learns no password that somebody could use elsewhere; what a server sends is refused by its length before it is held in memory; an
answer that makes no sense is an error of the driver's kind. Runs wherever a server is entered.
"""

from __future__ import annotations

import struct
from typing import Any

from pymysql.connections import Connection

from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError

NONSENSE = (struct.error, ValueError, LookupError, AssertionError, TypeError, AttributeError, RuntimeError)
"""What the driver raises where an answer is not what the protocol knows."""
ANSWER_BYTES_MAX = 1 << 30
"""The largest that ``max_allowed_packet`` can be."""
_LOGIN_BYTES_MAX = 1 << 16
_LOGIN_ANSWERS, _ANSWER_S = 6, 10.0
"""A login is given the time of so many answers."""
_NEVER = frozenset({b"mysql_old_password"})
"""What it proves can be undone by who listens."""
_SHOWN = frozenset({b"mysql_clear_password", b"dialog"})
_ASKS_AT_ONCE = "sha256_password"
_NATIVE = "mysql_native_password"


class GuardedConnection(Connection):  # type: ignore[misc]
    """A connection of the driver. ``may_show_password`` says whether the server is known, or the URI trusts it unknown."""

    def __init__(self, may_show_password: bool, **settings: Any) -> None:
        self._may_show = may_show_password
        self._is_tls = False
        self._auth_plugin_name = ""
        self._answer_bytes = 0
        self._answer_bytes_max = _LOGIN_BYTES_MAX
        self._clock: Clock = SystemClock()
        self._login_until_s: float | None = None
        super().__init__(**settings)

    def connect(self, sock: Any = None) -> None:
        """Log in, in bounded time and memory, whatever trickles or floods meanwhile."""
        self._answer_bytes, self._answer_bytes_max = 0, _LOGIN_BYTES_MAX
        self._login_until_s = self._clock.monotonic_s() + _LOGIN_ANSWERS * float(self.connect_timeout or _ANSWER_S)
        super().connect(sock)
        self._answer_bytes_max, self._login_until_s = ANSWER_BYTES_MAX, None

    @property
    def _secure(self) -> bool:
        """Return whether the connection is encrypted; the driver asks where it is about to show the password, and nowhere else."""
        self._check_showing("the password itself, or under a key of its own")
        return self._is_tls

    @_secure.setter
    def _secure(self, value: bool) -> None:
        self._is_tls = value

    def _get_server_information(self) -> None:
        super()._get_server_information()
        if self._auth_plugin_name == _ASKS_AT_ONCE and self.password and not self._may_show:
            # The driver would send the password with its first packet; a server whose user needs it asks again.
            self._auth_plugin_name = _NATIVE

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: Any = None) -> Any:
        if plugin_name in _NEVER and self.password:
            raise _refused(self, f"{plugin_name.decode()}, which can be undone")
        if plugin_name in _SHOWN:
            self._check_showing(f"the password in clear ({plugin_name.decode()})")
        return super()._process_auth(plugin_name, auth_packet, handler)

    def _check_showing(self, what: str) -> None:
        if self.password and not self._may_show:
            raise _refused(self, what)

    def _execute_command(self, command: int, sql: Any) -> None:
        if self._login_until_s is None:
            # All packets of one answer count: a server may send rows, or columns, without end.
            self._answer_bytes = 0
        super()._execute_command(command, sql)

    def _read_bytes(self, num_bytes: int) -> bytes:
        self._answer_bytes += num_bytes
        if self._answer_bytes > self._answer_bytes_max:
            self._force_close()
            raise PenstockError("DECODE_FAILED", f"{self.host}:{self.port}: an answer of {self._answer_bytes} bytes; is this MySQL?")
        if self._login_until_s is None:
            data: bytes = super()._read_bytes(num_bytes)
            return data
        # Byte by byte, which is a look into a buffer: the driver's own limit of time begins anew with each that arrives.
        return b"".join(self._read_in_time() for _ in range(num_bytes))

    def _read_in_time(self) -> bytes:
        if self._login_until_s is not None and self._clock.monotonic_s() > self._login_until_s:
            self._force_close()
            raise PenstockError("UPSTREAM_UNREACHABLE", f"{self.host}:{self.port}: the login took too long")
        data: bytes = super()._read_bytes(1)
        return data


def _refused(connection: GuardedConnection, what: str) -> PenstockError:
    return PenstockError(
        "UPSTREAM_REFUSED",
        f"{connection.host}:{connection.port} asks for {what}, and nothing says who it is",
        "Add ?ssl=verify-identity (and ssl-ca=… for an authority of your own); or use mysql_native_password or ed25519 for this user; "
        "or, where nobody else is in the network, ?clear-password=on.",
    )
