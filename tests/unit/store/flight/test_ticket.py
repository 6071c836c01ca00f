"""Signed tickets."""

import pytest

from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.store.flight.ticket import ObjectTicket, TicketSigner
from testing.checks.change_batches import TABLE
from testing.twins.clock import SimulatedClock

SPAN = Span(TABLE.table_id)
SPAN_ID = SPAN.span_id


def test_tickets_expire() -> None:
    clock = SimulatedClock()
    signer = TicketSigner(b"secret", clock, ttl_ms=1_000)
    ticket = ObjectTicket(SPAN_ID, "spans/1/objects/x", signer.expires_ms())
    data = signer.sign(ticket)
    assert signer.check(data) == ticket
    changed = bytearray(data)
    changed[-3] ^= 1
    with pytest.raises(PenstockError, match=r"\[TICKET_INVALID\]"):
        signer.check(bytes(changed))
    clock.advance(1.1)
    with pytest.raises(PenstockError, match="expired"):
        signer.check(data)
