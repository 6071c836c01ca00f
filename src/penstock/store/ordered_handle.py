"""Ordered handles: one source of ordered batches, read a stretch of time at a time.

A handle wraps an iterator of change batches that are ordered by commit ts across batches; it knows the ts of its next row and gives
rows up to a bound. ``SideReader`` merges the handles of one side (memory, appendable objects, bulk objects) by advancing the one with
the smallest next ts to the second-smallest, so its cost depends on how often sources alternate, not on rows or transactions. Runs in
the log service and on executors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from penstock.model.batch import ChangeBatch, commit_ts_array
from penstock.model.errors import PenstockError
from penstock.model.timestamp import TS_MAX
from penstock.store.ordering import rebatch

TS_END = TS_MAX + 1
"""The next ts of a source without more rows: above every ts."""


class OrderedHandle:
    """Reads one ordered source. Not thread safe."""

    def __init__(self, batches: Iterator[ChangeBatch]) -> None:
        self._batches = batches
        self._current: ChangeBatch | None = None
        self._last_ts = 0
        self._advance()

    @property
    def next_ts(self) -> int:
        """Return the ts of the next row, ``TS_END`` at the end."""
        return self._current.header.min_ts if self._current else TS_END

    def take(self, below_ts: int, rows_max: int) -> ChangeBatch | None:
        """Take rows with a commit ts below the bound, at most ``rows_max`` of them, from one batch; None when the next row is not below."""
        batch = self._current
        if batch is None or batch.header.min_ts >= below_ts:
            return None
        rows = batch.header.rows
        if batch.header.max_ts >= below_ts:
            rows = rows_below(batch, below_ts)
        rows = min(rows, rows_max)
        if rows == batch.header.rows:
            self._advance()
            return batch
        self._current = rebatch(batch, batch.records.slice(rows))
        return rebatch(batch, batch.records.slice(0, rows))

    def _advance(self) -> None:
        self._current = next(self._batches, None)
        if self._current is None:
            return
        header = self._current.header
        if header.min_ts < self._last_ts:
            raise PenstockError(
                "OBJECT_CORRUPT", f"span {header.span_id}: a batch begins at ts {header.min_ts}, before {self._last_ts} that was read"
            )
        self._last_ts = header.max_ts


def rows_below(batch: ChangeBatch, below_ts: int) -> int:
    """Return how many rows of an ordered batch have a commit ts below the bound."""
    if below_ts > TS_MAX:
        return batch.header.rows
    return int(np.searchsorted(commit_ts_array(batch.records), np.uint64(below_ts), side="left"))


class SideReader:
    """Merges the ordered handles of one side into a buffer of batches in commit-ts order. Not thread safe.

    Every row below ``frontier_ts`` has been buffered; rows at ``frontier_ts`` may be partly buffered when one transaction is larger
    than the buffer.
    """

    def __init__(self, handles: Sequence[OrderedHandle], rows_min: int, rows_max: int) -> None:
        self._handles = [h for h in handles if h.next_ts != TS_END]
        self._rows_min = rows_min
        self._rows_max = rows_max
        self._buffer: deque[ChangeBatch] = deque()
        self._rows = 0

    @property
    def frontier_ts(self) -> int:
        """Return the smallest ts that is not wholly in the buffer, ``TS_END`` when all is."""
        return min((h.next_ts for h in self._handles), default=TS_END)

    @property
    def first_ts(self) -> int:
        """Return the smallest ts in the buffer, ``TS_END`` when it is empty."""
        return self._buffer[0].header.min_ts if self._buffer else TS_END

    def fill(self) -> None:
        """Read until the buffer holds enough rows or the sources end."""
        while self._rows < self._rows_min and self._handles:
            lowest, below_ts = self._lowest()
            batch = lowest.take(below_ts, self._rows_max - self._rows)
            if batch is not None:
                self._buffer.append(batch)
                self._rows += batch.header.rows
            if lowest.next_ts == TS_END:
                self._handles.remove(lowest)

    def _lowest(self) -> tuple[OrderedHandle, int]:
        """Return the handle to read and the bound: the second-smallest next ts, or just above the smallest when they are equal."""
        first, rest = self._handles[0], TS_END
        for handle in self._handles[1:]:
            if handle.next_ts < first.next_ts:
                first, rest = handle, min(rest, first.next_ts)
            else:
                rest = min(rest, handle.next_ts)
        return first, max(rest, first.next_ts + 1)

    def take_below(self, below_ts: int) -> tuple[ChangeBatch, ...]:
        """Take every buffered row with a commit ts below the bound; the batch that straddles it is cut without a copy."""
        taken: list[ChangeBatch] = []
        while self._buffer and self._buffer[0].header.min_ts < below_ts:
            batch = self._buffer.popleft()
            if batch.header.max_ts >= below_ts:
                rows = rows_below(batch, below_ts)
                self._buffer.appendleft(rebatch(batch, batch.records.slice(rows)))
                batch = rebatch(batch, batch.records.slice(0, rows))
            taken.append(batch)
            self._rows -= batch.header.rows
        return tuple(taken)
