"""What an upstream adds whose key space is served in ranges: a data server, and whatever else speaks the change stream.

Each range has an epoch, a leader, and a log of its own with a resolved ts. Whoever registers a range at ts 0 on the change stream is given
its state first, so a span of such an upstream needs no snapshot. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard

import msgspec

from penstock.model.batch import ChangeBatch
from penstock.model.ddl import DdlEvent
from penstock.model.span import Span
from penstock.source.contract import Capability, Upstream
from penstock.source.raw import RawBatch


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
    """Where the change stream of the range is asked for: ``cdcpb.ChangeData`` over gRPC."""


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


class RangedUpstream(Upstream, Protocol):
    """An upstream with ranges. Declares ``Capability.RANGES``."""

    def key_span(self, span: Span) -> tuple[bytes, bytes]:
        """Return the full start and end key of a span, as ``RangeInfo`` and the change stream use them."""

    def ranges(self, span: Span) -> Sequence[RangeInfo]:
        """Return the ranges that cover a span now, in key order, without holes."""

    def decoder(self) -> RowDecoder:
        """Return a decoder that knows this upstream's row format and schema history."""


def has_ranges(upstream: Upstream) -> TypeGuard[RangedUpstream]:
    """Return whether an upstream is declared to have ranges."""
    return Capability.RANGES in upstream.capabilities
