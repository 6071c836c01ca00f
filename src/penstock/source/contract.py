"""What an upstream gives, whatever it is.

Ranges with epochs, a snapshot per range, an ordered log per range (through the change stream), resolved ts per range, and schema
versions keyed by ts. ``open_upstream`` in ``penstock.source.catalog`` builds one from a URI. Runs in the log service, in the
server, and (reading snapshots) on executors, so an upstream is described by its URI and opened where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from penstock.model.batch import ChangeBatch
from penstock.model.ddl import DdlEvent
from penstock.model.raw import RawBatch
from penstock.model.span import Span
from penstock.model.table import TableSchema


class RangeEpoch(msgspec.Struct, frozen=True):
    """``conf_ver`` grows when replicas move, ``version`` when the range splits or merges."""

    conf_ver: int
    version: int


class RangeInfo(msgspec.Struct, frozen=True):
    """Where a range of the key space is served. Keys are full keys, table prefix included; ``b""`` ends are open."""

    range_id: int
    table_id: int
    start_key: bytes
    end_key: bytes
    epoch: RangeEpoch
    store_id: int
    store_addr: str


class Decoded(msgspec.Struct, frozen=True):
    """What a raw batch turned into."""

    changes: tuple[ChangeBatch, ...] = ()
    ddls: tuple[DdlEvent, ...] = ()


class RowDecoder(Protocol):
    """Turns raw batches into change batches, in columns."""

    def decode(self, span_id: int, raw: RawBatch) -> Decoded:
        """Decode one raw batch of a span.

        Called by span pipeline workers, many threads at once for different spans, one at a time for one span. Each change batch is of one
        table version and one kind, ordered by (commit ts, key). Raises ``DECODE_FAILED`` for bytes that do not decode.
        """


class Upstream(Protocol):
    """A connected upstream. Methods may be called from any thread; each raises ``UPSTREAM_UNREACHABLE`` when nobody answers."""

    def current_ts(self) -> int:
        """Return a ts that is larger than every commit that was acknowledged before the call."""

    def list_tables(self) -> Sequence[TableSchema]:
        """Return the newest version of every table."""

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        """Return every version of a table, oldest first."""

    def key_span(self, span: Span) -> tuple[bytes, bytes]:
        """Return the full start and end key of a span, as ``RangeInfo`` and the change stream use them."""

    def ranges(self, span: Span) -> Sequence[RangeInfo]:
        """Return the ranges that cover a span now, in key order, without holes."""

    def decoder(self) -> RowDecoder:
        """Return a decoder that knows this upstream's row format and schema history."""

    def read_table(self, span: Span, ts: int) -> Iterator[ChangeBatch]:
        """Yield the state of a span as of a ts as INSERT rows in key order: what verification compares with."""

    def close(self) -> None:
        """Release connections. Called once, by the owner."""
