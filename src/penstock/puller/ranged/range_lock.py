"""The range lock: which parts of a span are being pulled, by which region.

Invariant: the pieces always partition the span, so there is no hole and no overlap whatever the upstream does; locking a range cuts and
joins unlocked pieces, unlocking keeps a piece with the resolved ts that it had reached. A range is locked only as a whole and only
while no part of it is locked: a region that was split or merged gives its piece back first. Keys are full keys; ``b""`` as end is open.
Runs in the log service, under its span's lock.
"""

from __future__ import annotations

import bisect
from enum import Enum

from penstock.model.errors import InvariantError
from penstock.puller.ranged.frontier import Frontier
from penstock.puller.ranged.repeats import DeliveredLog, Prior, relevant


class PieceState(Enum):
    """Where a piece stands: nobody pulls it, a region does, or other pieces took its place."""

    UNLOCKED = "unlocked"
    LOCKED = "locked"
    GONE = "gone"


class RangePiece:
    """A part of a span. ``resolved_ts`` grows only while it is locked, by the shard of its region."""

    __slots__ = ("delivered", "end_key", "failures", "not_before_s", "priors", "region_id", "resolved_ts", "start_key", "state")

    def __init__(self, start_key: bytes, end_key: bytes, resolved_ts: int) -> None:
        self.start_key = start_key
        self.end_key = end_key
        self.resolved_ts = resolved_ts
        self.state = PieceState.UNLOCKED
        self.region_id = 0
        self.failures = 0
        self.not_before_s = 0.0
        self.priors: tuple[Prior, ...] = ()
        self.delivered = DeliveredLog()

    @property
    def gone(self) -> bool:
        """Return whether other pieces took its place."""
        return self.state is PieceState.GONE

    def raise_resolved(self, ts: int) -> bool:
        """Raise the resolved ts; return False if it says nothing new."""
        if ts <= self.resolved_ts:
            return False
        self.resolved_ts = ts
        self.delivered.prune(ts)
        if self.priors:
            self.priors = relevant(self.priors, ts)
        return True


class RangeLock:
    """The pieces of one span, and their frontier. Not thread safe."""

    def __init__(self, start_key: bytes, end_key: bytes, start_ts: int) -> None:
        self.start_key = start_key
        self.end_key = end_key
        self.frontier = Frontier()
        whole = RangePiece(start_key, end_key, start_ts)
        self._pieces = [whole]
        self._starts = [start_key]
        self.frontier.add(whole)

    def pieces(self) -> tuple[RangePiece, ...]:
        """Return the pieces in key order; together they are the span."""
        return tuple(self._pieces)

    def unlocked(self) -> list[RangePiece]:
        """Return the pieces that nobody pulls."""
        return [p for p in self._pieces if p.state is PieceState.UNLOCKED]

    def lock(self, start_key: bytes, end_key: bytes, region_id: int, now_s: float = 0.0) -> RangePiece | None:
        """Lock ``[start_key, end_key)`` for a region, cut to the span.

        None if it lies outside, a part of it is locked, or a part failed so recently that it must wait.

        The piece starts at the smallest resolved ts of what it covers, and knows what earlier feeds delivered there.
        """
        start_key = max(start_key, self.start_key)
        end_key = min_end(end_key, self.end_key)
        if end_key and start_key >= end_key:
            return None
        first = bisect.bisect_right(self._starts, start_key) - 1
        last = bisect.bisect_left(self._starts, end_key) if end_key else len(self._starts)
        covered = self._pieces[first:last]
        if any(p.state is not PieceState.UNLOCKED or p.not_before_s > now_s for p in covered):
            return None
        piece = RangePiece(start_key, end_key, min(p.resolved_ts for p in covered))
        piece.state = PieceState.LOCKED
        piece.region_id = region_id
        piece.failures = max(p.failures for p in covered)
        piece.priors = relevant(tuple({id(q): q for p in covered for q in p.priors}.values()), piece.resolved_ts)
        replacement = [piece]
        if covered[0].start_key < start_key:
            replacement.insert(0, _rest(covered[0], covered[0].start_key, start_key))
        if end_key and covered[-1].end_key != end_key:
            replacement.append(_rest(covered[-1], end_key, covered[-1].end_key))
        self._replace(first, last, replacement)
        return piece

    def unlock(self, piece: RangePiece) -> int:
        """Give a piece back; return the resolved ts from which the next region goes on."""
        if piece.state is not PieceState.LOCKED:
            raise InvariantError(f"unlock of a piece that is {piece.state.value}")
        own = Prior(piece.start_key, piece.end_key, piece.resolved_ts, piece.delivered.batches(piece.resolved_ts))
        # A prior without batches still matters if these keys are later joined with others whose resolved ts is smaller.
        piece.priors = (*relevant(piece.priors, piece.resolved_ts), own)
        piece.delivered = DeliveredLog()
        piece.state = PieceState.UNLOCKED
        return piece.resolved_ts

    def resolved_ts(self) -> int:
        """Return the span's resolved ts: the smallest of all pieces."""
        return self.frontier.resolved_ts()

    def check(self) -> None:
        """Raise unless the pieces partition the span."""
        expected = self.start_key
        for i, piece in enumerate(self._pieces):
            last = i == len(self._pieces) - 1
            if piece.start_key != expected or self._starts[i] != piece.start_key or piece.gone or (not piece.end_key and not last):
                raise InvariantError(f"range lock: hole or overlap at piece {i} of {len(self._pieces)}")
            expected = piece.end_key
        if expected != self.end_key:
            raise InvariantError("range lock: the pieces end elsewhere than the span")

    def _replace(self, first: int, last: int, replacement: list[RangePiece]) -> None:
        for piece in self._pieces[first:last]:
            piece.state = PieceState.GONE
        self._pieces[first:last] = replacement
        self._starts[first:last] = [p.start_key for p in replacement]
        for piece in replacement:
            self.frontier.add(piece)


def min_end(a: bytes, b: bytes) -> bytes:
    """Return the smaller of two ends, where an empty one is open."""
    if not a or not b:
        return a or b
    return min(a, b)


def _rest(piece: RangePiece, start_key: bytes, end_key: bytes) -> RangePiece:
    rest = RangePiece(start_key, end_key, piece.resolved_ts)
    rest.priors = piece.priors
    rest.failures = piece.failures
    rest.not_before_s = piece.not_before_s
    return rest
