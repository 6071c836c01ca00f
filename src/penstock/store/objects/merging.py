"""Merging: the state of a span written as merged objects, so that a reader of states need not go through all changes.

A merge reads the state at ``merge_ts``, writes it in key order, and commits at ``commit_ts``: from there on states are read from the
merged objects, below it from the objects that they replace, which get ``commit_ts`` as their delete ts and stay for tails. Tombstones
that committed in between end rows of the merged objects: they are transferred, that is written again with the id of the row that they
end and ``commit_ts`` as their own ts. They are no changes: tails leave out tombstones whose ts is the delete ts of such a merge, and
that ts is one at which nothing else committed. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from penstock.model.batch import BATCH_ROWS_MAX, KEY, BatchHeader, BatchKind, ChangeBatch, Op
from penstock.model.rows.bag_key import is_bag
from penstock.model.table import META_FIELDS, SchemaHistory
from penstock.store.changes.changes import SpanState, SpanView, drain, side_handles, state_batches
from penstock.store.changes.ordered_handle import TS_END
from penstock.store.changes.snapshot import ROW, SnapshotSteps
from penstock.store.objects.object_file import ObjectKind, ObjectMeta
from penstock.store.objects.objects import ObjectSpace

FREE_TS_TRIES = 64
MERGED_BYTES_PER_OBJECT = 4 * 1024 * 1024
"""How many bytes may be merged again to be rid of one small object."""
TRANSFER_SCHEMA = pa.schema([*META_FIELDS, pa.field(ROW, pa.uint64(), False)])

Write = Callable[[BatchKind, ObjectKind, Iterator[ChangeBatch], int], Iterator[ObjectMeta]]
"""Writes batches of one side as objects of a kind whose rows all carry a commit ts."""


class MergeSettings(msgspec.Struct, frozen=True):
    """When a span is worth merging: what was not merged yet is large by itself, and beside what was, or it is in many objects.

    ``count_min`` is how many those are; 0 where they do not count. In a large span there must be more of them: a merge writes it all.
    """

    nbytes_min: int
    ratio: float
    count_min: int = 0

    def due(self, objects: Sequence[ObjectMeta]) -> float:
        """Return how much waits to be merged, 1 where it is worth it: readers of states then go through ``1 + ratio`` of what is left."""
        live = [o for o in objects if o.delete_ts == 0]
        others = [o for o in live if o.object_kind is not ObjectKind.MERGED]
        merged = sum(o.size for o in live) - sum(o.size for o in others)
        by_size = sum(o.size for o in others) / max(1, self.nbytes_min, int(self.ratio * merged))
        return max(by_size, len(others) / max(self.count_min, merged // MERGED_BYTES_PER_OBJECT)) if self.count_min else by_size


class MergePlan(msgspec.Struct, frozen=True):
    """A merge of the state at ``merge_ts``, which replaces the objects ``sources``. It holds nothing: another merge may come first."""

    span_id: int
    merge_ts: int
    sources: tuple[str, ...]


def plan_merge(state: SpanState) -> MergePlan | None:
    """Return the merge of everything that is flushed; None where the state is not known, or nothing was flushed since the last merge."""
    merge_ts = state.flushed_ts
    sources = [o for o in state.objects if o.delete_ts == 0 and o.max_ts <= merge_ts]
    known = state.base_ts is not None and state.base_ts <= merge_ts
    # A merge that began before the last one committed would take rows from objects that are replaced already.
    ended = all(o.create_ts <= merge_ts for o in state.objects)
    if not known or not ended or all(o.object_kind is ObjectKind.MERGED for o in sources):
        return None
    return MergePlan(state.span_id, merge_ts, tuple(o.path for o in sources))


class MergeCommit(msgspec.Struct, frozen=True):
    """What a merge adds to the manifest; ``transferred`` is empty where nothing was deleted meanwhile."""

    commit_ts: int
    merged: tuple[ObjectMeta, ...]
    transferred: tuple[ObjectMeta, ...]


def merged_batches(view: SpanView, merge_ts: int) -> Iterator[ChangeBatch]:
    """Yield the state at a ts in key order, as one run of rows that all carry that ts, under the table version that holds there."""
    steps = SnapshotSteps(state_batches(view, merge_ts), merge_ts, view.state.span_id)
    if not steps.empty:
        history = SchemaHistory(view.state.span.table_id, view.state.tables)
        yield from steps.batches(history, BATCH_ROWS_MAX)


def free_ts(view: SpanView, above_ts: int) -> int | None:
    """Return the largest ts above another, at or below the resolved ts, at which nothing committed; None where a few tries find none.

    Nothing can commit there later, because it is resolved.
    """
    top = view.state.resolved_ts
    for ts in range(top, max(above_ts, top - FREE_TS_TRIES), -1):
        if all(h.next_ts == TS_END for side in BatchKind for h in side_handles(view, side, ts - 1, ts)):
            return ts
    return None


def transferred_batch(view: SpanView, merged: Sequence[ObjectMeta], merge_ts: int, commit_ts: int) -> Iterator[ChangeBatch]:
    """Yield the tombstones in ``(merge_ts, commit_ts]`` that end rows of the merged objects, by row id.

    Merged objects are read one at a time, only their keys, so memory is bounded by the tombstones and one object.
    """
    keys = [b.records.column(KEY) for b in drain(side_handles(view, BatchKind.TOMBSTONE, merge_ts, commit_ts))]
    if not keys:
        return
    ended = pl.DataFrame({KEY: pl.Series(pa.chunked_array(keys))}).unique()
    found = [_rows_of(view.space, meta, ended) for meta in merged]
    rows = pl.concat(found) if found else ended.head(0).with_columns(pl.lit(0, pl.UInt64).alias(ROW))
    for part in rows.sort(ROW).iter_slices(BATCH_ROWS_MAX):
        if part.height:
            yield _transfer(view, part, commit_ts)


def _rows_of(space: ObjectSpace, meta: ObjectMeta, ended: pl.DataFrame) -> pl.DataFrame:
    keys = pa.chunked_array([b.records.column(KEY) for b in space.batches(meta, 0, meta.max_ts)])
    held = pl.DataFrame({KEY: pl.Series(keys)}).with_row_index(ROW, meta.first_row).with_columns(pl.col(ROW).cast(pl.UInt64))
    return held.join(ended, on=KEY, how="semi").select(KEY, ROW)


def _transfer(view: SpanView, part: pl.DataFrame, commit_ts: int) -> ChangeBatch:
    count = part.height
    ids: npt.NDArray[np.uint64] = part[ROW].to_numpy()
    columns = [
        pa.repeat(pa.scalar(commit_ts, pa.uint64()), count),
        pa.repeat(pa.scalar(int(Op.DELETE), pa.uint8()), count),
        part[KEY].to_arrow().cast(pa.binary()),
        pa.array(ids),
    ]
    records = pa.RecordBatch.from_arrays(columns, schema=TRANSFER_SCHEMA)
    header = BatchHeader(
        view.state.span_id, view.state.span.table_id, 0, BatchKind.TOMBSTONE, commit_ts, commit_ts, count, max(1, records.nbytes)
    )
    return ChangeBatch(header, records)


def write_merge(view: SpanView, merge_ts: int, write: Write) -> tuple[ObjectMeta, ...]:
    """Write the merged objects of a span; nothing refers to them until the merge commits."""
    return tuple(write(BatchKind.DATA, ObjectKind.MERGED, merged_batches(view, merge_ts), merge_ts))


def commit_of(view: SpanView, merged: Sequence[ObjectMeta], merge_ts: int, write: Write) -> MergeCommit:
    """Choose where a merge commits and write what it transfers. ``merged`` must have their row ids.

    Where every ts is taken, it commits at the ts that it merged, so that nothing has to be transferred; also where rows are counted,
    because a tombstone then names none of them.
    """
    commit_ts = None if any(is_bag(t) for t in view.state.tables) else free_ts(view, merge_ts)
    if commit_ts is None:
        return MergeCommit(merge_ts, tuple(merged), ())
    batches = transferred_batch(view, merged, merge_ts, commit_ts)
    return MergeCommit(commit_ts, tuple(merged), tuple(write(BatchKind.TOMBSTONE, ObjectKind.APPENDABLE, batches, commit_ts)))
