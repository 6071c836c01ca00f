"""The frontier of a span: the smallest resolved ts over all its pieces.

A heap with lazy repair: a piece's resolved ts is raised in place, and the heap learns of it when the piece stands at the top. So
raising is O(1) for each of many regions, and only what holds the span back is ever moved. Pieces that are not being pulled count too,
with the ts up to which they were: the frontier never passes a hole. Runs in the log service, under its span's lock.
"""

from __future__ import annotations

import heapq
from typing import Protocol


class FrontierPiece(Protocol):
    """A part of a span with a resolved ts of its own."""

    resolved_ts: int

    @property
    def gone(self) -> bool:
        """Return whether other pieces took its place."""


class Frontier:
    """The minimum over living pieces. Not thread safe."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, FrontierPiece]] = []
        self._order = 0

    def add(self, piece: FrontierPiece) -> None:
        """Count a piece from now on, until it is gone."""
        self._order += 1
        heapq.heappush(self._heap, (piece.resolved_ts, self._order, piece))

    def slowest(self) -> FrontierPiece | None:
        """Return the piece with the smallest resolved ts."""
        heap = self._heap
        while heap:
            ts, order, piece = heap[0]
            if piece.gone:
                heapq.heappop(heap)
            elif piece.resolved_ts != ts:
                heapq.heapreplace(heap, (piece.resolved_ts, order, piece))
            else:
                return piece
        return None

    def resolved_ts(self) -> int:
        """Return the smallest resolved ts, 0 if there is no piece."""
        piece = self.slowest()
        return piece.resolved_ts if piece is not None else 0
