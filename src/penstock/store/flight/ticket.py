"""Flight tickets and call tokens: what a caller may read, signed by the service that hands it out.

A ticket is JSON plus an HMAC-SHA-256 under the service's secret, with an expiry, so a ticket of another service, a changed one or an
old one is ``TICKET_INVALID``. The token that a client presents with every call is derived from the same secret. Neither is ever
logged. Runs in the log service.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from penstock.model.batch import BatchKind
from penstock.model.clock import Clock
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError

TICKET_TTL_MS = 15 * 60 * 1000
_SIGNATURE_SIZE = hashlib.sha256().digest_size


class RowsTicket(msgspec.Struct, frozen=True, tag="rows"):
    """Rows of one side and one table version in ``(from_ts, to_ts]``, from wherever the service has them now."""

    span_id: int
    side: BatchKind
    schema_version: int
    from_ts: int
    to_ts: int
    expires_ms: int
    history_start_ts: int = 0
    """Where the span's history began when the ticket was given: what is merged since is no longer there row by row."""
    columns: tuple[str, ...] | None = None
    """The columns that are wanted, by field name; None for all."""


class ObjectTicket(msgspec.Struct, frozen=True, tag="object"):
    """The bytes of one object, for a reader that cannot reach the storage itself."""

    span_id: int
    path: str
    expires_ms: int


Ticket = RowsTicket | ObjectTicket


def call_token(secret: bytes) -> str:
    """Return the token with which clients call a service that has this secret."""
    return hmac.new(secret, b"penstock-flight-call-token", hashlib.sha256).hexdigest()


class TicketSigner:
    """Signs and checks the tickets of one service."""

    def __init__(self, secret: bytes, clock: Clock, ttl_ms: int = TICKET_TTL_MS) -> None:
        self._secret = secret
        self._clock = clock
        self._ttl_ms = ttl_ms

    def expires_ms(self) -> int:
        """Return when a ticket that is made now expires."""
        return self._clock.now_ms() + self._ttl_ms

    def sign(self, ticket: Ticket) -> bytes:
        """Return the ticket's bytes."""
        body = msgspec.json.encode(ticket)
        return self._signature(body) + body

    def check(self, data: bytes) -> Ticket:
        """Return the ticket, or raise ``TICKET_INVALID``."""
        signature, body = data[:_SIGNATURE_SIZE], data[_SIGNATURE_SIZE:]
        if not hmac.compare_digest(signature, self._signature(body)):
            raise PenstockError("TICKET_INVALID", "the ticket is not signed by this service")
        ticket: Ticket = decoded(body, Ticket)
        if ticket.expires_ms < self._clock.now_ms():
            raise PenstockError("TICKET_INVALID", "the ticket has expired")
        return ticket

    def _signature(self, body: bytes) -> bytes:
        return hmac.new(self._secret, b"penstock-flight-ticket:" + body, hashlib.sha256).digest()
