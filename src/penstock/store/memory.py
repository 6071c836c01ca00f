"""The rows of a span that are in no object yet.

Batches are kept as they came; small ones are put together as they pile up, so that a stream of one-row transactions costs no batch
each when it is read. Ordering happens when a window is read. The memory is a cache of the write-ahead log: every batch in it is
durable. Runs in the log service; ``MemoryRows`` is an immutable picture that readers hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from penstock.model.batch import BATCH_ROWS_MAX, BATCH_ROWS_MIN, KEY, BatchKind, ChangeBatch, commit_ts_array
from penstock.store.changes.ordering import batch_like, concat_records, order_records, rebatch, window_rows

SMALL_ROWS = 1_024
SMALL_BATCHES_MAX = 64


class MemorySource(Protocol):
    """Rows that are not in objects, wherever the reader is."""

    def sources(self, side: BatchKind, from_ts: int, to_ts: int) -> Sequence[Iterator[ChangeBatch]]:
        """Return one ordered iterator of batches per table version, cut to ``(from_ts, to_ts]``."""


class MemoryRows(msgspec.Struct, frozen=True):
    """An immutable picture of a span's memory."""

    data: tuple[ChangeBatch, ...] = ()
    tombstones: tuple[ChangeBatch, ...] = ()

    def side(self, side: BatchKind) -> tuple[ChangeBatch, ...]:
        """Return the batches of one side."""
        return self.data if side is BatchKind.DATA else self.tombstones

    def sources(self, side: BatchKind, from_ts: int, to_ts: int) -> Sequence[Iterator[ChangeBatch]]:
        """Return one ordered iterator per table version."""
        by_version: dict[int, list[ChangeBatch]] = {}
        for batch in self.side(side):
            if batch.header.max_ts > from_ts and batch.header.min_ts <= to_ts:
                by_version.setdefault(batch.header.schema_version, []).append(batch)
        return [ordered_batches(batches, from_ts, to_ts) for _, batches in sorted(by_version.items())]


def ordered_batches(batches: Sequence[ChangeBatch], from_ts: int, to_ts: int) -> Iterator[ChangeBatch]:
    """Yield the rows of batches of one version in (commit ts, key) order, each once, in pieces of at most 16,384 rows.

    Where the batches follow each other in time, each is ordered by itself, so memory stays flat and ordered batches are not copied.
    """
    ordered = (
        order_records(concat_records([window_rows(b.records, from_ts, to_ts) for b in group])) for group in _overlapping_groups(batches)
    )
    for records in _in_pieces(ordered):
        yield rebatch(batches[0], records)


def _in_pieces(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put small parts together and cut large ones: pieces of 8,192 to 16,384 rows, the last one smaller."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for part in parts:
        if part.num_rows == 0:
            continue
        waiting.append(part)
        rows += part.num_rows
        if rows < BATCH_ROWS_MIN:
            continue
        records = concat_records(waiting)
        whole = rows if rows <= BATCH_ROWS_MAX else rows - rows % BATCH_ROWS_MAX
        for start in range(0, whole, BATCH_ROWS_MAX):
            yield records.slice(start, min(BATCH_ROWS_MAX, whole - start))
        rows -= whole
        waiting = [records.slice(whole)] if rows else []
    if waiting:
        yield concat_records(waiting)


def _overlapping_groups(batches: Sequence[ChangeBatch]) -> Iterator[list[ChangeBatch]]:
    """Group batches whose ts ranges overlap, in ts order; one after the other the groups are in order, as each batch is in itself.

    Batches are taken by their first row, so where one goes on after a group, no later batch can reach back before it.
    """
    group: list[ChangeBatch] = []
    group_max_ts = 0
    for batch in sorted(batches, key=lambda b: (b.header.min_ts, b.records.column(KEY)[0].as_py())):
        if group and (batch.header.min_ts > group_max_ts or (len(group) == 1 and _continues(group[0], batch))):
            yield group
            group = []
        group.append(batch)
        group_max_ts = max(group_max_ts, batch.header.max_ts)
    if group:
        yield group


def _continues(batch: ChangeBatch, after: ChangeBatch) -> bool:
    """Return whether two batches meet in one transaction that was cut between them: the ts is the same and the keys go on."""
    if batch.header.max_ts != after.header.min_ts:
        return False
    last, first = batch.records.slice(batch.header.rows - 1), after.records.slice(0, 1)
    key_rises: bool = last.column(KEY)[0].as_py() < first.column(KEY)[0].as_py()
    return key_rises and bool(commit_ts_array(last)[0] == commit_ts_array(first)[0])


class MemorySide:
    """One side of a span's memory. The owner's lock guards it."""

    def __init__(self) -> None:
        self._spilled: list[ChangeBatch] = []
        self._large: list[ChangeBatch] = []
        self._medium: list[ChangeBatch] = []
        self._small: list[ChangeBatch] = []
        self.rows = 0
        self.nbytes = 0
        self.heap_nbytes = 0

    def add(self, batch: ChangeBatch) -> None:
        """Take a batch over."""
        self.rows += batch.header.rows
        self.nbytes += batch.header.nbytes
        self.heap_nbytes += batch.header.nbytes
        if batch.header.rows >= SMALL_ROWS:
            self._large.append(batch)
            return
        self._small.append(batch)
        if len(self._small) >= SMALL_BATCHES_MAX:
            self._medium.extend(_put_together(self._small))
            self._small = []
        if len(self._medium) >= SMALL_BATCHES_MAX:
            self._large.extend(_put_together(self._medium))
            self._medium = []

    def batches(self) -> tuple[ChangeBatch, ...]:
        """Return all batches."""
        return (*self._spilled, *self._large, *self._medium, *self._small)

    def heap_batches(self) -> tuple[ChangeBatch, ...]:
        """Return the batches that are worth spilling: large ones on the heap."""
        return tuple(self._large)

    def replace_spilled(self, spilled: Sequence[ChangeBatch]) -> None:
        """Put spilled batches in the place of those that ``heap_batches`` gave; others may have come since."""
        self._spilled += spilled
        self._large = self._large[len(spilled) :]
        self.heap_nbytes -= sum(b.header.nbytes for b in spilled)

    def drop_through(self, ts: int) -> None:
        """Forget every row at or below a ts."""
        on_heap = [*self._large, *self._medium, *self._small]
        self._spilled = [_rows_above(b, ts) for b in self._spilled if b.header.max_ts > ts]
        self._large, self._medium, self._small = [], [], []
        self.rows = sum(b.header.rows for b in self._spilled)
        self.nbytes = sum(b.header.nbytes for b in self._spilled)
        self.heap_nbytes = 0
        for batch in on_heap:
            if batch.header.max_ts > ts:
                self.add(_rows_above(batch, ts))


def _put_together(batches: Sequence[ChangeBatch]) -> Iterator[ChangeBatch]:
    by_version: dict[int, list[ChangeBatch]] = {}
    for batch in batches:
        by_version.setdefault(batch.header.schema_version, []).append(batch)
    for mine in by_version.values():
        records = order_records(concat_records([b.records for b in mine]))
        merged = batch_like(mine[0], records, min(b.header.min_ts for b in mine), max(b.header.max_ts for b in mine))
        yield ChangeBatch(msgspec.structs.replace(merged.header, nbytes=sum(b.header.nbytes for b in mine)), records)


def _rows_above(batch: ChangeBatch, ts: int) -> ChangeBatch:
    if batch.header.min_ts > ts:
        return batch
    records = window_rows(batch.records, ts, batch.header.max_ts)
    kept_ts = commit_ts_array(records)
    return batch_like(batch, records, int(kept_ts.min()), int(kept_ts.max()))


class SpanMemory:
    """Both sides of a span's memory. The owner's lock guards it."""

    def __init__(self) -> None:
        self._sides = {kind: MemorySide() for kind in BatchKind}

    def add(self, batch: ChangeBatch) -> None:
        """Take a batch over."""
        self._sides[batch.header.kind].add(batch)

    def drop_through(self, ts: int) -> None:
        """Forget every row at or below a ts, on both sides."""
        for side in self._sides.values():
            side.drop_through(ts)

    def rows(self) -> MemoryRows:
        """Return an immutable picture."""
        return MemoryRows(self._sides[BatchKind.DATA].batches(), self._sides[BatchKind.TOMBSTONE].batches())

    def heap_batches(self) -> dict[BatchKind, tuple[ChangeBatch, ...]]:
        """Return what is worth spilling, per side."""
        return {kind: side.heap_batches() for kind, side in self._sides.items()}

    def replace_spilled(self, kind: BatchKind, spilled: Sequence[ChangeBatch]) -> None:
        """Put spilled batches in the place of those on the heap."""
        self._sides[kind].replace_spilled(spilled)

    @property
    def heap_nbytes(self) -> int:
        """Return how many bytes both sides hold on the heap."""
        return sum(s.heap_nbytes for s in self._sides.values())

    @property
    def nbytes(self) -> int:
        """Return how many bytes both sides hold."""
        return sum(s.nbytes for s in self._sides.values())

    @property
    def row_count(self) -> int:
        """Return how many rows both sides hold."""
        return sum(s.rows for s in self._sides.values())
