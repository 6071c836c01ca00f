"""One connection to PostgreSQL, ordinary or for replication: startup, TLS, authentication, simple queries, COPY.

The protocol is spoken here because nothing else gives replication and COPY as the bytes that arrived: a kernel frames them. The session
prints values in one way whatever the server's settings are: ISO dates, UTC, hex bytea, shortest exact floats, UTF-8.
Invariant: every failure is a ``PostgresError``, whose code says what the caller does; no message shows a password. Not thread safe,
except that one thread may send while another receives. Runs in the log service and on executors.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct

from penstock.model.errors import PenstockError
from penstock.source.postgres.wire.address import PostgresAddress
from penstock.source.postgres.wire.bounds import Bounds
from penstock.source.postgres.wire.scram import MECHANISM, ScramClient, md5_response

PROTOCOL_VERSION = 196_608
SSL_REQUEST = 80_877_103
RECEIVE_BYTES = 1 << 20
BULK_BYTES = 1 << 18
_TEXT_CHARS_MAX = 2_000
"""How much of a server's own words an error repeats."""
_MALFORMED = (ValueError, LookupError, struct.error)
_SESSION = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "TimeZone": "UTC",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "application_name": "penstock",
    # A policy that would hide rows is an error then, not a table with fewer rows.
    "row_security": "off",
}
_AUTH_OK, _AUTH_CLEAR, _AUTH_MD5, _AUTH_SASL, _AUTH_SASL_CONTINUE, _AUTH_SASL_FINAL = 0, 3, 5, 10, 11, 12
_UNREACHABLE_STATES = ("57P", "08", "53", "55006", "40")
"""Shutdown, lost connections, no resources, an object in use, a transaction to be repeated: all pass by themselves."""
_PURGED_STATES = ("58P01",)

Row = tuple[str | None, ...]


class PostgresError(PenstockError):
    """An error that the server or the connection gave; ``sqlstate`` is empty where it is the connection's."""

    def __init__(self, code: str, detail: str, hint: str | None = None, sqlstate: str = "") -> None:
        super().__init__(code, detail, hint)
        self.sqlstate = sqlstate

    def __reduce__(self) -> tuple[type[PostgresError], tuple[str, str, str | None, str]]:
        return (PostgresError, (self.code, self.detail, self._hint, self.sqlstate))


class Connection:
    """An open connection."""

    def __init__(self, address: PostgresAddress, replication: bool = False, bounds: Bounds | None = None) -> None:
        self.address = address
        self.parameters: dict[str, str] = {}
        self._buffer = bytearray()
        self._at = 0
        self._closed = False
        self._bounds = bounds or Bounds(address.connect_timeout_s)
        try:
            self._socket = _open_socket(address)
        except ssl.SSLCertVerificationError as error:
            hint = "Give the authority that signed it with ?sslrootcert=…; verify-full also compares the host's name."
            text = f"{address.shown}: the certificate is not trusted: {error.verify_message}"
            raise PostgresError("UPSTREAM_REFUSED", text, hint) from None
        except OSError as error:
            raise PostgresError("UPSTREAM_UNREACHABLE", f"{address.shown}: {error.strerror or error}") from None
        try:
            self._start(replication)
        except _MALFORMED as error:
            self.close()
            raise self._malformed(error) from None
        except BaseException:
            self.close()
            raise

    @property
    def server_version(self) -> int:
        """Return the major version of the server."""
        digits = self.parameters.get("server_version", "0").split(".")[0].split(" ")[0]
        return int("".join(c for c in digits if c.isdigit()) or "0")

    def query(self, sql: str) -> list[Row]:
        """Run one statement or several; return the rows of the last one that gave rows, as text."""
        self.send(b"Q", sql.encode() + b"\0")
        rows: list[Row] = []
        failure: PostgresError | None = None
        while True:
            kind, body = self._message()
            if kind == b"T":
                rows = []
            elif kind == b"D":
                try:
                    rows.append(_row(body))
                except _MALFORMED as error:
                    raise self._malformed(error) from None
            elif kind == b"E":
                failure = failure or self._error(body)
            elif kind == b"Z":
                if failure is not None:
                    raise failure
                return rows
            elif kind not in {b"C", b"I", b"N", b"S", b"A"}:
                raise PostgresError("DECODE_FAILED", f"{self.address.shown}: unexpected message {kind!r} in an answer")

    def start_copy_out(self, sql: str) -> None:
        """Send a COPY … TO STDOUT; afterwards ``receive_raw`` gives framed messages, and ``finish_copy`` takes back what is no row."""
        self._expect_copy(sql, b"H")

    def finish_copy(self, rest: bytes | bytearray) -> None:
        """End a COPY, given the bytes from the first message on that is no row; raises what the server reports there."""
        self._buffer, self._at = bytearray(rest) + self._buffer[self._at :], 0
        failure: PostgresError | None = None
        while True:
            kind, body = self._message()
            if kind == b"E":
                failure = self._error(body)
            elif kind == b"Z":
                if failure is not None:
                    raise failure
                return
            elif kind == b"d":
                raise PostgresError("DECODE_FAILED", f"{self.address.shown}: a row after the end of COPY")

    def start_copy_both(self, sql: str) -> None:
        """Send START_REPLICATION; afterwards raw bytes go both ways."""
        self._expect_copy(sql, b"W")

    def receive_raw(self, timeout_s: float | None = None) -> bytes | bytearray | None:
        """Return bytes as they arrive, or None when nothing came in time; raises ``UPSTREAM_UNREACHABLE`` at the end of the stream."""
        if self._at < len(self._buffer):
            rest = self._buffer[self._at :]
            self._buffer, self._at = bytearray(), 0
            return rest
        try:
            self._socket.settimeout(timeout_s)
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            return None
        except OSError as error:
            raise self._lost(error) from None
        if not data:
            raise PostgresError("UPSTREAM_UNREACHABLE", f"{self.address.shown}: the server closed the connection")
        return data

    def receive_bulk(self, wait_s: float, linger_s: float) -> bytes | bytearray | None:
        """Return bytes as ``receive_raw`` does, but let more arrive first: a server that sends row by row would cost a call for each."""
        if self._at < len(self._buffer) or isinstance(self._socket, ssl.SSLSocket):
            return self.receive_raw(wait_s)
        try:
            if not self._readable(wait_s):
                return None
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, BULK_BYTES)
            self._readable(linger_s)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        except OSError as error:
            raise self._lost(error) from None
        return self.receive_raw(wait_s)

    def send(self, kind: bytes, body: bytes) -> None:
        """Send one message."""
        self._bounds.begin_answer()
        try:
            self._socket.settimeout(self.address.connect_timeout_s)
            self._socket.sendall(kind + struct.pack("!i", len(body) + 4) + body)
        except OSError as error:
            raise self._lost(error) from None

    def close(self) -> None:
        """End the session. May be called twice."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError, PenstockError):
            self._socket.settimeout(1.0)
            self._socket.sendall(b"X\0\0\0\4")
        with contextlib.suppress(OSError):
            self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, replication: bool) -> None:
        given = {"user": self.address.user, "database": self.address.database, **_SESSION}
        if replication:
            given["replication"] = "database"
        body = struct.pack("!i", PROTOCOL_VERSION) + b"".join(f"{k}\0{v}\0".encode() for k, v in given.items()) + b"\0"
        try:
            self._socket.sendall(struct.pack("!i", len(body) + 4) + body)
        except OSError as error:
            raise self._lost(error) from None
        scram: ScramClient | None = None
        while True:
            kind, body = self._message()
            if kind == b"R":
                scram = self._authenticate(struct.unpack_from("!i", body)[0], body[4:], scram)
            elif kind == b"S":
                name, value = body.split(b"\0")[:2]
                self.parameters[name.decode()] = value.decode()
            elif kind == b"E":
                raise self._error(body)
            elif kind == b"Z":
                if scram is not None and not scram.is_verified:
                    raise self._unproven()
                self._bounds.enter()
                return

    def _authenticate(self, method: int, body: bytes, scram: ScramClient | None) -> ScramClient | None:
        if scram is not None and not scram.is_verified and method not in {_AUTH_SASL_CONTINUE, _AUTH_SASL_FINAL}:
            raise self._unproven()
        if method == _AUTH_CLEAR:
            if not (self.address.is_verified or self.address.clear_password):
                raise PostgresError(
                    "UPSTREAM_REFUSED",
                    f"{self.address.shown} asks for the password in clear, and nothing says who it is",
                    "Add ?sslmode=verify-full (and sslrootcert=… for an authority of your own); or use scram-sha-256 for this user in "
                    "pg_hba.conf; or, where nobody else is in the network, ?clear_password=on.",
                )
            self.send(b"p", self.address.password.encode() + b"\0")
        elif method == _AUTH_MD5:
            self.send(b"p", md5_response(self.address.user, self.address.password, body[:4]).encode() + b"\0")
        elif method == _AUTH_SASL:
            if MECHANISM.encode() not in body.split(b"\0"):
                raise PostgresError("UPSTREAM_REFUSED", f"{self.address.shown}: the server does not offer {MECHANISM}")
            scram = ScramClient(self.address.password)
            first = scram.first()
            self.send(b"p", MECHANISM.encode() + b"\0" + struct.pack("!i", len(first)) + first)
        elif method == _AUTH_SASL_CONTINUE and scram is not None:
            self.send(b"p", scram.final(body))
        elif method == _AUTH_SASL_FINAL and scram is not None:
            scram.verify(body)
        elif method != _AUTH_OK:
            raise PostgresError(
                "UPSTREAM_REFUSED",
                f"{self.address.shown}: the server asks for authentication method {method}",
                "Use scram-sha-256, md5 or password for this user in pg_hba.conf.",
            )
        return scram

    def _expect_copy(self, sql: str, wanted: bytes) -> None:
        self.send(b"Q", sql.encode() + b"\0")
        while True:
            kind, body = self._message()
            if kind == wanted:
                return
            if kind == b"E":
                failure = self._error(body)
                self._until_ready()
                raise failure
            if kind not in {b"N", b"S", b"A"}:
                raise PostgresError("DECODE_FAILED", f"{self.address.shown}: unexpected message {kind!r} before COPY")

    def _until_ready(self) -> None:
        while self._message()[0] != b"Z":
            pass

    def _message(self) -> tuple[bytes, bytes]:
        while len(self._buffer) - self._at < 5:
            self._fill()
        kind = bytes(self._buffer[self._at : self._at + 1])
        length = int.from_bytes(self._buffer[self._at + 1 : self._at + 5], "big")
        try:
            self._bounds.take(length)
        except PenstockError as error:
            raise PostgresError(error.code, f"{self.address.shown}: {error.detail}") from None
        while len(self._buffer) - self._at < 1 + length:
            self._fill()
        body = bytes(self._buffer[self._at + 5 : self._at + 1 + length])
        self._at += 1 + length
        return kind, body

    def _fill(self) -> None:
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        try:
            self._socket.settimeout(self._bounds.wait_s())
            data = self._socket.recv(RECEIVE_BYTES)
        except OSError as error:
            raise self._lost(error) from None
        if not data:
            raise PostgresError("UPSTREAM_UNREACHABLE", f"{self.address.shown}: the server closed the connection")
        self._buffer += data

    def _readable(self, timeout_s: float) -> bool:
        waiter = select.poll()
        waiter.register(self._socket, select.POLLIN)
        return bool(waiter.poll(timeout_s * 1000))

    def _error(self, body: bytes) -> PostgresError:
        return server_error(self.address.shown, body)

    def _malformed(self, error: Exception) -> PostgresError:
        what = type(error).__name__
        return PostgresError("DECODE_FAILED", f"{self.address.shown}: a message makes no sense ({what}); is this a PostgreSQL server?")

    def _unproven(self) -> PostgresError:
        text = f"{self.address.shown} did not prove that it knows the password"
        return PostgresError("UPSTREAM_REFUSED", text, "Something answers in the server's place: check the address and the network.")

    def _lost(self, error: OSError) -> PostgresError:
        return PostgresError("UPSTREAM_UNREACHABLE", f"{self.address.shown}: {error.strerror or error}")


def server_error(shown: str, body: bytes) -> PostgresError:
    """Return the error of an ErrorResponse."""
    parts = (part[: 4 * _TEXT_CHARS_MAX].decode("utf-8", "replace")[: _TEXT_CHARS_MAX + 1] for part in body.split(b"\0", 32)[:32] if part)
    fields = {part[:1]: part[1:] for part in parts}
    state, message = fields.get("C", ""), fields.get("M", "no message")
    code = "UPSTREAM_REFUSED"
    if state.startswith(_UNREACHABLE_STATES):
        code = "UPSTREAM_UNREACHABLE"
    elif state in _PURGED_STATES:
        code = "LOG_PURGED"
    return PostgresError(code, f"{shown}: {message} (SQLSTATE {state})", fields.get("H"), state)


def quote_ident(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Return a text as SQL writes it, whatever ``standard_conforming_strings`` is."""
    escaped = text.replace("'", "''")
    return f" E'{escaped.replace(chr(92), chr(92) * 2)}'" if chr(92) in text else f"'{escaped}'"


def _row(body: bytes) -> Row:
    count = int.from_bytes(body[:2], "big")
    at = 2
    values: list[str | None] = []
    for _ in range(count):
        length = int.from_bytes(body[at : at + 4], "big", signed=True)
        at += 4
        if length < 0:
            values.append(None)
            continue
        values.append(body[at : at + length].decode())
        at += length
    if at != len(body):
        raise ValueError("fields that do not fill their row")
    return tuple(values)


def _open_socket(address: PostgresAddress) -> socket.socket:
    plain = socket.create_connection((address.host, address.port), address.connect_timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if address.sslmode == "disable":
        return plain
    try:
        plain.sendall(struct.pack("!ii", 8, SSL_REQUEST))
        answer = plain.recv(1)
        if answer == b"S":
            return _tls_context(address).wrap_socket(plain, server_hostname=address.host)
        if address.sslmode != "prefer":
            raise PostgresError(
                "UPSTREAM_REFUSED",
                f"{address.shown}: sslmode={address.sslmode}, but the server offers no TLS",
                "Turn on ssl at the server.",
            )
    except BaseException:
        plain.close()
        raise
    return plain


def _tls_context(address: PostgresAddress) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = address.sslmode == "verify-full"
    try:
        if address.sslmode in {"verify-ca", "verify-full"}:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(address.sslrootcert) if address.sslrootcert else context.load_default_certs()
        else:
            context.verify_mode = ssl.CERT_NONE
        if address.sslcert:
            context.load_cert_chain(address.sslcert, address.sslkey or None)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise PostgresError("CONFIG_INVALID", f"source: sslrootcert, sslcert or sslkey cannot be used: {why}") from None
    return context
