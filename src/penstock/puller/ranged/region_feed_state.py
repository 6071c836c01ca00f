"""The state of one region's feed in one subscription.

Made when a region is requested, ended by an error, a lost stream or the end of the subscription; a region that is requested again gets
a new one, so whatever still refers to the old one is recognised as stale. Runs in the log service.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from penstock.puller.ranged.matching.matcher import RegionMatcher
from penstock.puller.ranged.range_lock import RangePiece
from penstock.puller.ranged.subscribed_span import SubscribedSpan
from penstock.source.ranged import RangeInfo


class FeedStatus(Enum):
    """Requested, sending live changes, or over."""

    REQUESTED = "requested"
    INITIALIZED = "initialized"
    STOPPED = "stopped"


class FeedOwner(Protocol):
    """The region worker, as a feed sees it."""

    def release_slot(self, state: RegionFeedState) -> None:
        """Let the next region be requested. Idempotent."""

    def cut_stream(self, state: RegionFeedState) -> None:
        """End the stream that feeds the region, with all its registrations; does nothing if it is over already. Never blocks."""


class RegionFeedState:
    """One registration. The shard of the region owns ``matcher``; ``status`` only moves forward."""

    __slots__ = (
        "holds_slot",
        "info",
        "matcher",
        "metered_bytes",
        "metered_pending",
        "owner",
        "piece",
        "region_id",
        "span",
        "status",
        "stream",
    )

    def __init__(self, span: SubscribedSpan, info: RangeInfo, piece: RangePiece, owner: FeedOwner) -> None:
        self.span = span
        self.info = info
        self.piece = piece
        self.owner = owner
        self.matcher = RegionMatcher(piece.start_key, piece.end_key)
        self.status = FeedStatus.REQUESTED
        self.holds_slot = False
        self.metered_pending = 0
        self.metered_bytes = 0
        self.region_id = info.range_id
        self.stream = 0
        """The number of the stream on which it was requested."""

    @property
    def live(self) -> bool:
        """Return whether events of this feed still matter."""
        return self.status is not FeedStatus.STOPPED and self.span.running

    def mark_initialized(self) -> None:
        """Note that the incremental scan is over: resolved ts count from here on."""
        if self.status is FeedStatus.REQUESTED:
            self.status = FeedStatus.INITIALIZED
            self.piece.failures = 0
            self.owner.release_slot(self)

    def stop(self) -> bool:
        """End the feed; return False if it was over already."""
        if self.status is FeedStatus.STOPPED:
            return False
        self.status = FeedStatus.STOPPED
        self.owner.release_slot(self)
        return True
