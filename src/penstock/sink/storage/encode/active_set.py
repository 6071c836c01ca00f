"""The active set: dispatchers that hold something not yet flushed, by when its oldest row came.

A dispatcher becomes active with its first row and inactive with the cut after which nothing is left. Idle dispatchers are not in the
set: whatever is done periodically costs what the active ones cost. Invariant: ``due`` looks only at those whose time has come. Runs on
executors.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, TypeVar

K = TypeVar("K")


class ActiveSet(Generic[K]):
    """Keys with the time since when they are active. Not thread safe."""

    def __init__(self) -> None:
        self._since: dict[K, tuple[float, int]] = {}
        # Entries whose key left the set or came back since are passed over when they surface.
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, key: K) -> bool:
        return key in self._since

    def add(self, key: K, since_s: float) -> None:
        """Make a key active, unless it is: then its earlier time stays."""
        if key not in self._since:
            entry = (since_s, next(self._order))
            self._since[key] = entry
            heapq.heappush(self._heap, (*entry, key))

    def discard(self, key: K) -> None:
        """Make a key inactive."""
        self._since.pop(key, None)
        if len(self._heap) > 2 * len(self._since) + 64:
            self._heap = [entry for entry in self._heap if self._since.get(entry[2]) == entry[:2]]
            heapq.heapify(self._heap)

    def earliest_s(self) -> float | None:
        """Return since when the oldest key is active; None where there is none."""
        while self._heap and self._since.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, before_s: float) -> list[K]:
        """Take out and return the keys that are active since this time or longer, oldest first."""
        found = []
        while (earliest := self.earliest_s()) is not None and earliest <= before_s:
            key = heapq.heappop(self._heap)[2]
            del self._since[key]
            found.append(key)
        return found
