"""Ordered handles: one source of ordered batches, read a stretch of time at a time.

A handle wraps an iterator of change batches that are ordered by commit ts across batches; it knows the ts of its next row and gives
rows up to a bound. ``SideReader`` merges the handles of one side (memory, appendable objects, bulk objects) by advancing the one with
the smallest next ts to the second-smallest, so its cost depends on how often sources alternate, not on rows or transactions. Where
sources share a ts, as a large delete and its repetition do, they are merged by key a bounded stretch at a time, and a row that stands
in several of them comes once: within a span the key is the row's id. Runs in the log service and on executors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import KEY, ChangeBatch, commit_ts_array
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.timestamp import TS_MAX
from penstock.store.changes.ordering import concat_records, rebatch

Rows = npt.NDArray[np.int64]
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
        self.skip(rows)
        return rebatch(batch, batch.records.slice(0, rows))

    def peek(self, ts: int, rows_max: int) -> ChangeBatch:
        """Return the next rows at a ts, which must be the next one, from one batch and without taking them."""
        batch = self._current
        if batch is None or batch.header.min_ts != ts:
            raise InvariantError(f"ts {ts} is not the next one")
        rows = min(rows_below(batch, ts + 1), rows_max)
        return batch if rows == batch.header.rows else rebatch(batch, batch.records.slice(0, rows))

    def has_more_at(self, ts: int, rows: int) -> bool:
        """Return whether rows at the ts may follow the next ``rows`` of them."""
        return self._current is not None and (rows < rows_below(self._current, ts + 1) or self._current.header.max_ts == ts)

    def skip(self, rows: int) -> None:
        """Drop the next rows, at most as many as the current batch has."""
        batch = self._current
        if batch is None or rows == 0:
            return
        if rows == batch.header.rows:
            self._advance()
        else:
            self._current = rebatch(batch, batch.records.slice(rows))

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
            if lowest.next_ts == below_ts:
                self._take_shared(below_ts)
            else:
                batch = lowest.take(below_ts, self._rows_max - self._rows)
                if batch is not None:
                    self._append(batch)
            self._handles = [h for h in self._handles if h.next_ts != TS_END]

    def _append(self, batch: ChangeBatch) -> None:
        self._buffer.append(batch)
        self._rows += batch.header.rows

    def _lowest(self) -> tuple[OrderedHandle, int]:
        """Return the handle to read and the second-smallest next ts: its bound, or the same ts where several share it."""
        first, rest = self._handles[0], TS_END
        for handle in self._handles[1:]:
            if handle.next_ts < first.next_ts:
                first, rest = handle, min(rest, first.next_ts)
            else:
                rest = min(rest, handle.next_ts)
        return first, rest

    def _take_shared(self, ts: int) -> None:
        """Take rows at a ts that several handles share, in key order and each key once, as far as every handle is known to reach."""
        sharing = [h for h in self._handles if h.next_ts == ts]
        room = self._rows_max - self._rows
        parts = [h.peek(ts, room) for h in sharing]
        keys = pa.concat_arrays([p.records.column(KEY) for p in parts])
        order = pc.array_sort_indices(keys).to_numpy().astype(np.int64)
        ordered = keys.take(pa.array(order))
        ends = [p.records.column(KEY)[-1] for h, p in zip(sharing, parts, strict=True) if h.has_more_at(ts, p.header.rows)]
        reached = len(ordered)
        if ends:
            reached = int(pc.sum(pc.less_equal(ordered, min(ends, key=lambda key: key.as_py()))).as_py())
        first = np.ones(len(ordered), dtype=np.bool_)
        first[1:] = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
        beyond = np.flatnonzero(np.cumsum(first[:reached]) > room)
        reached = int(beyond[0]) if len(beyond) else reached
        taken = np.sort(order[:reached])
        kept = order[:reached][first[:reached]]
        edges = np.cumsum([0, *(p.header.rows for p in parts)])
        for at, handle in enumerate(sharing):
            handle.skip(int(np.searchsorted(taken, edges[at + 1]) - np.searchsorted(taken, edges[at])))
        for version in sorted({p.header.schema_version for p in parts}):
            self._append_kept(parts, kept, edges, version)

    def _append_kept(self, parts: Sequence[ChangeBatch], kept: Rows, edges: Rows, version: int) -> None:
        """Buffer the kept rows of one table version, in key order; ``kept`` counts rows through all parts."""
        mine = [at for at, p in enumerate(parts) if p.header.schema_version == version]
        owner = np.searchsorted(edges, kept, side="right") - 1
        wanted = kept[np.isin(owner, mine)]
        if len(wanted) == 0:
            return
        starts = np.zeros(len(parts), dtype=np.int64)
        starts[mine] = np.cumsum([0, *(parts[at].header.rows for at in mine[:-1])])
        owner = np.searchsorted(edges, wanted, side="right") - 1
        records = concat_records([parts[at].records for at in mine]).take(pa.array(wanted - edges[owner] + starts[owner]))
        self._append(rebatch(parts[mine[0]], records))

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
