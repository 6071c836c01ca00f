"""The changes handle: what happened to a span in ``(from_ts, to_ts]``, or its state at ``to_ts``.

A handle is built from a ``SpanView``: the objects' descriptions, a source of the rows in memory, and the space that holds the
objects. Nothing in it depends on where it runs: the log service builds one from its own state, an executor from a Flight answer. Tail
steps come in order: lower ts first, at one ts tombstones first. A transaction that is larger than a step comes in several steps, its
tombstones before its rows; all but the last carry TAIL_WIP. So merging steps one by one keeps the order. Runs in the log service and
on executors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from penstock.model.batch import BATCH_ROWS_MAX, BATCH_ROWS_MIN, BatchKind, ChangeBatch, commit_ts_array
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import SchemaHistory, TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.store.changes.ordered_handle import TS_END, OrderedHandle, SideReader
from penstock.store.changes.ordering import rebatch
from penstock.store.changes.snapshot import ROW, SnapshotSteps, StateBatches, row_positions
from penstock.store.contract import Changes, EndOfRange, Hint
from penstock.store.memory import MemorySource
from penstock.store.objects.object_file import ObjectKind, ObjectMeta
from penstock.store.objects.objects import READ_AHEAD_BYTES, ObjectSpace

SNAPSHOT_READ_BYTES = 1 << 30
"""A snapshot keeps what it reads until its end, so it reads whole objects."""


class SpanState(msgspec.Struct, frozen=True):
    """What a reader must know of a span; it travels as JSON in a Flight answer. See ``Manifest`` for the ts fields."""

    span_id: int
    span: Span
    resolved_ts: int
    flushed_ts: int
    history_start_ts: int
    base_ts: int | None
    objects: tuple[ObjectMeta, ...]
    tables: tuple[TableSchema, ...]
    transfer_ts: tuple[int, ...] = ()

    def needed(self, from_ts: int, to_ts: int) -> tuple[ObjectMeta, ...]:
        """Return the objects that a read of the window opens: of a state those that make it up, of a tail those that hold changes.

        Merged objects repeat what others hold and transferred tombstones are no changes, so a tail opens neither.
        """
        if from_ts == TS_ZERO:
            return tuple(o for o in self.objects if o.visible_at(to_ts) and o.min_ts <= to_ts)
        return tuple(
            o
            for o in self.objects
            if o.object_kind is not ObjectKind.MERGED and o.max_ts > from_ts and o.min_ts <= to_ts and not self.transferred(o)
        )

    def transferred(self, meta: ObjectMeta) -> bool:
        """Return whether an object holds nothing but tombstones that a merge transferred."""
        return meta.side is BatchKind.TOMBSTONE and meta.min_ts == meta.max_ts and meta.max_ts in self.transfer_ts


class SpanView(msgspec.Struct, frozen=True):
    """A consistent picture of a span: its state, its rows in memory, and where its objects are.

    A reader that wants less says which columns, by field names, and which keys, from one on and up to another (empty for no end). Columns
    that are not wanted are left out; of keys whole objects are, so rows beyond them may come still, and not as they are.
    """

    state: SpanState
    memory: MemorySource
    space: ObjectSpace
    columns: frozenset[str] | None = None
    keys: tuple[bytes, bytes] | None = None

    def needed(self, from_ts: int, to_ts: int) -> tuple[ObjectMeta, ...]:
        """Return the objects that a read of the window opens."""
        return tuple(o for o in self.state.needed(from_ts, to_ts) if self._has_keys(o) or self.state.transferred(o))

    def batches(self, meta: ObjectMeta, from_ts: int, to_ts: int, read_ahead: int) -> Iterator[ChangeBatch]:
        """Yield the rows of an object in a window, with the columns that are wanted."""
        for batch in self.space.batches(meta, from_ts, to_ts, read_ahead):
            yield batch if self.columns is None else rebatch(batch, only_columns(batch.records, self.columns))

    def tables(self) -> tuple[TableSchema, ...]:
        """Return the table's versions with the columns that are wanted."""
        wanted = self.columns
        if wanted is None:
            return self.state.tables
        return tuple(msgspec.structs.replace(t, columns=tuple(c for c in t.columns if c.field_name in wanted)) for t in self.state.tables)

    def _has_keys(self, meta: ObjectMeta) -> bool:
        if self.keys is None or not meta.max_key:
            return True
        start, end = self.keys
        return meta.max_key >= start and (not end or meta.min_key < end)


def only_columns(records: pa.RecordBatch, wanted: Collection[str]) -> pa.RecordBatch:
    """Return rows with the wanted columns of the table, without a copy."""
    return records.select([name for name in records.schema.names if name.startswith("_") or name in wanted])


def open_changes(view: SpanView, from_ts: int, to_ts: int, rows_min: int = BATCH_ROWS_MIN, rows_max: int = BATCH_ROWS_MAX) -> OpenHandle:
    """Open a handle on ``(from_ts, to_ts]``; ``from_ts = 0`` gives the state at ``to_ts``."""
    state = view.state
    if from_ts > to_ts or to_ts > state.resolved_ts:
        raise PenstockError("WINDOW_INVALID", f"span {state.span_id}: window ({from_ts}, {to_ts}] with resolved ts {state.resolved_ts}")
    if from_ts == TS_ZERO:
        if state.base_ts is None or to_ts < state.base_ts:
            raise PenstockError("STALE_READ", f"span {state.span_id}: its state at ts {to_ts} is not known, capture began later")
        return OpenHandle(to_ts, _snapshot_steps(view, to_ts, rows_max))
    if from_ts < state.history_start_ts:
        raise PenstockError(
            "STALE_READ", f"span {state.span_id}: history starts at ts {state.history_start_ts}, after the requested {from_ts}"
        )
    return OpenHandle(to_ts, _tail_steps(view, from_ts, to_ts, rows_min, rows_max))


class OpenHandle:
    """The handle's life: steps, then the end, cancelled after close."""

    def __init__(self, to_ts: int, steps: Iterator[Changes]) -> None:
        self._to_ts = to_ts
        self._steps = steps
        self._closed = threading.Event()
        self._released: Callable[[], object] | None = None

    def on_close(self, release: Callable[[], object]) -> None:
        """Have something released when the handle is closed. It must bear being called twice."""
        self._released = release

    def next(self) -> Changes | EndOfRange:
        """Return the next step, or the end."""
        if self._closed.is_set():
            raise PenstockError("CANCELLED", "the changes handle is closed")
        step = next(self._steps, None)
        if self._closed.is_set():
            raise PenstockError("CANCELLED", "the changes handle was closed while it read")
        return EndOfRange(self._to_ts) if step is None else step

    def close(self) -> None:
        """Cancel; the sources go with the last reference to their batches."""
        self._closed.set()
        if self._released is not None:
            self._released()


def side_handles(view: SpanView, side: BatchKind, from_ts: int, to_ts: int, bulk: bool = True) -> list[OrderedHandle]:
    """Return the ordered handles of one side of a tail: memory per table version, appendable objects, bulk objects."""
    objects = [o for o in view.needed(max(from_ts, 1), to_ts) if o.side is side]
    return _handles(view, side, objects, (ObjectKind.APPENDABLE, ObjectKind.BULK)[: 1 + bulk], from_ts, to_ts, READ_AHEAD_BYTES)


def _handles(
    view: SpanView, side: BatchKind, objects: Sequence[ObjectMeta], kinds: Sequence[ObjectKind], from_ts: int, to_ts: int, read_ahead: int
) -> list[OrderedHandle]:
    handles = [OrderedHandle(batches) for batches in view.memory.sources(side, from_ts, to_ts)]
    for kind in kinds:
        for chain in _chains([o for o in objects if o.object_kind is kind]):
            batches = _chain(view, chain, from_ts, to_ts, read_ahead)
            handles.append(OrderedHandle(_changes_only(batches, view.state.transfer_ts) if side is BatchKind.TOMBSTONE else batches))
    return handles


def _changes_only(batches: Iterator[ChangeBatch], transfer_ts: Sequence[int]) -> Iterator[ChangeBatch]:
    """Leave out tombstones that a merge transferred: those whose commit ts is the delete ts of the objects that it replaced."""
    for batch in batches:
        if not any(batch.header.min_ts <= ts <= batch.header.max_ts for ts in transfer_ts):
            yield batch
            continue
        records = batch.records.filter(pa.array(~np.isin(commit_ts_array(batch.records), np.array(transfer_ts, dtype=np.uint64))))
        if records.num_rows:
            yield rebatch(batch, records)


def _chains(objects: Sequence[ObjectMeta]) -> list[list[ObjectMeta]]:
    """Put objects that follow each other in time into one chain; those that overlap go to chains of their own.

    Where two meet at a ts they follow each other only if their keys do.
    """
    chains: list[list[ObjectMeta]] = []
    for meta in sorted(objects, key=lambda o: (o.min_ts, o.max_ts, o.min_key, o.path)):
        for chain in chains:
            if _follows(chain[-1], meta):
                chain.append(meta)
                break
        else:
            chains.append([meta])
    return chains


def _follows(before: ObjectMeta, after: ObjectMeta) -> bool:
    if before.max_ts != after.min_ts:
        return before.max_ts < after.min_ts
    return before.max_key < after.min_key or not (before.max_key and after.min_key)


def _chain(view: SpanView, objects: Sequence[ObjectMeta], from_ts: int, to_ts: int, read_ahead: int) -> Iterator[ChangeBatch]:
    for meta in objects:
        yield from view.batches(meta, from_ts, to_ts, read_ahead)


def _tail_steps(view: SpanView, from_ts: int, to_ts: int, rows_min: int, rows_max: int) -> Iterator[Changes]:
    """Yield the steps of a tail. Both sides are filled, and the longer one is cut where the shorter one ends."""
    data = SideReader(side_handles(view, BatchKind.DATA, from_ts, to_ts), rows_min, rows_max)
    tombstones = SideReader(side_handles(view, BatchKind.TOMBSTONE, from_ts, to_ts), rows_min, rows_max)
    while True:
        data.fill()
        tombstones.fill()
        if data.first_ts == TS_END and tombstones.first_ts == TS_END:
            return
        end_ts = min(data.frontier_ts, tombstones.frontier_ts)
        if min(data.first_ts, tombstones.first_ts) < end_ts:
            yield Changes(data.take_below(end_ts), tombstones.take_below(end_ts), Hint.TAIL_DONE)
            continue
        # One transaction, at end_ts, is larger than a step: its tombstones go first, and its rows once they are all out.
        removed = tombstones.take_below(end_ts + 1)
        rows = data.take_below(end_ts + 1) if tombstones.frontier_ts > end_ts else ()
        yield Changes(rows, removed, Hint.TAIL_WIP)


def _snapshot_steps(view: SpanView, to_ts: int, rows_max: int) -> Iterator[Changes]:
    """Yield the state at a ts, read from everything that makes it up."""
    history = SchemaHistory(view.state.span.table_id, view.tables())
    steps = SnapshotSteps(state_batches(view, to_ts), to_ts, view.state.span_id)
    if steps.empty:
        return
    for batch in steps.batches(history, rows_max):
        yield Changes((batch,), (), Hint.SNAPSHOT)


def state_batches(view: SpanView, to_ts: int) -> StateBatches:
    """Return the batches that make up the state at a ts: the merged run, the changes since, and the rows of the run that have ended."""
    objects = view.needed(TS_ZERO, to_ts)
    merged = sorted((o for o in objects if o.object_kind is ObjectKind.MERGED), key=lambda o: o.first_row)
    run = [b for meta in merged for b in view.batches(meta, TS_ZERO, to_ts, SNAPSHOT_READ_BYTES)]
    changed = [o for o in objects if o.object_kind is not ObjectKind.MERGED and not view.state.transferred(o)]
    sides: dict[BatchKind, list[ChangeBatch]] = {}
    for side in BatchKind:
        mine = [o for o in changed if o.side is side]
        handles = _handles(view, side, mine, (ObjectKind.APPENDABLE, ObjectKind.BULK), TS_ZERO, to_ts, SNAPSHOT_READ_BYTES)
        sides[side] = list(drain(handles))
    ended = [b.records.column(ROW).to_numpy() for o in objects if view.state.transferred(o) for b in view.space.batches(o, TS_ZERO, to_ts)]
    first_rows = [(o.first_row, o.rows) for o in merged]
    positions = row_positions(first_rows, ended)
    return StateBatches((*run, *sides[BatchKind.DATA]), tuple(sides[BatchKind.TOMBSTONE]), positions, view.state.tables)


def drain(handles: Sequence[OrderedHandle], rows_min: int = BATCH_ROWS_MIN, rows_max: int = BATCH_ROWS_MAX) -> Iterator[ChangeBatch]:
    """Yield the batches of several handles of one side in ts order."""
    reader = SideReader(handles, rows_min, rows_max)
    while True:
        reader.fill()
        taken = reader.take_below(TS_END)
        if not taken:
            return
        yield from taken
