"""What a server and its receivers tell each other.

A receiver is told once, with its task, what is the same for all of them; then it reports every moment, and each answer holds its orders:
all of them, so an answer that is lost costs nothing. Both travel as JSON over the server's Flight service. A part is a share of the spans
with an event store of its own; whoever holds a part captures its spans. Runs in the server and on executors.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from penstock.model.span import Span
from penstock.puller.log_service import LogServiceSettings
from penstock.store.flight.address import FlightAddress
from penstock.store.flight.credentials import ServiceTls
from penstock.store.settings import StoreSettings
from penstock.store.stats import SpanStats


class ReceiverTask(msgspec.Struct, frozen=True):
    """What the task of a receiver is told. Holds secrets: never print it.

    Attributes:
        slot: which of the receivers it is.
        run: the how-manieth job of this slot it is; the server listens to the newest only.
        source: the URI of what is captured.
        parts_uri: below it each part has its objects.
        server: where reports go.
        secret: by it the Flight services of parts know their callers.
    """

    slot: int
    run: int
    source: str
    parts_uri: str
    storage_options: dict[str, str]
    server: FlightAddress
    secret: bytes
    tls: ServiceTls
    store: StoreSettings
    log_service: LogServiceSettings

    def __repr__(self) -> str:
        return f"ReceiverTask(slot={self.slot}, run={self.run})"


class SpanOrder(msgspec.Struct, frozen=True):
    """A span to capture; its history above ``pinned_ts`` stays, because a feed has got no further."""

    span: Span
    pinned_ts: int


class PartOrder(msgspec.Struct, frozen=True):
    """A part to hold, with all of its spans."""

    part: int
    spans: tuple[SpanOrder, ...]


class Orders(msgspec.Struct, frozen=True):
    """Everything that a receiver has to do; a part that is not here is let go of, and with ``stop`` it ends."""

    parts: tuple[PartOrder, ...] = ()
    stop: bool = False


class SpanReport(msgspec.Struct, frozen=True):
    """How a span fares that is captured: what its store holds, and what its capture says."""

    stats: SpanStats
    regions: int = 0
    regions_waiting: int = 0
    failures: int = 0
    retrying: bool = False
    error: str = ""
    """The text of the error that it met last."""


class PartReport(msgspec.Struct, frozen=True):
    """A part that a receiver holds, is opening or is closing; only one that is open has a location."""

    part: int
    location: str = ""
    spans: tuple[SpanReport, ...] = ()
    error: str = ""
    """Why it, or one of its spans, could not be opened the last time."""
    is_taken_away: bool = False
    """Whether somebody else has become the owner of its objects."""
    entries: int = 0
    """How many entries of the source's streams it was given since it was opened, and in how many bytes."""
    nbytes: int = 0


class Report(msgspec.Struct, frozen=True):
    """What a receiver says of itself. ``receiver`` is another one for each attempt of its task; ``proof`` that it was told the secret."""

    proof: str
    receiver: str
    slot: int
    run: int
    host: str
    pid: int
    parts: tuple[PartReport, ...] = ()


def proof_of(secret: bytes) -> str:
    """Return what shows that somebody is a receiver: readers of the store have a token too, and must not say where spans are served."""
    return hmac.new(secret, b"penstock-receiver-report", hashlib.sha256).hexdigest()


def part_uri(parts_uri: str, number: int) -> str:
    """Return where the objects of a part lie."""
    return f"{parts_uri.rstrip('/')}/part-{number:04d}"
