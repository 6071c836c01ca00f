"""The order of change rows: lower commit ts first, at one ts tombstones first, then by key.

Owns the two vectorised operations on it: bringing records into (commit ts, key) order without repeated rows, and merging the two sides of a
step into one ordered sequence for a feed. Nothing here looks at a row from Python. Runs in the log service and on executors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import COMMIT_TS, KEY, ChangeBatch, commit_ts_array, without_before
from penstock.store.contract import Changes

Mask = npt.NDArray[np.bool_]


def order_records(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the records by (commit ts, key), each (commit ts, key) once; records that already are so come back as they are.

    A row may stand twice because a range that reconnects gives again what lies above its resolved ts.
    """
    if records.num_rows < 2:
        return records
    ts = commit_ts_array(records)
    later = ts[1:] > ts[:-1]
    if bool(later.all()):
        return records
    if bool((ts[1:] >= ts[:-1]).all()) and bool((later | _key_mask("greater", records)).all()):
        return records
    order = pc.sort_indices(records.select([COMMIT_TS, KEY]), sort_keys=[(COMMIT_TS, "ascending"), (KEY, "ascending")])
    ordered = records.take(order)
    ts = commit_ts_array(ordered)
    repeated = (ts[1:] == ts[:-1]) & _key_mask("equal", ordered)
    if not bool(repeated.any()):
        return ordered
    return ordered.filter(pa.array(np.concatenate([[True], ~repeated])))


def _key_mask(comparison: str, records: pa.RecordBatch) -> Mask:
    """Compare each key with the one before it."""
    keys = records.column(KEY)
    mask: Mask = pc.call_function(comparison, [keys[1:], keys[:-1]]).to_numpy(zero_copy_only=False)
    return mask


def concat_records(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return several record batches of one schema as one; a single one is not copied."""
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def window_rows(records: pa.RecordBatch, from_ts: int, to_ts: int) -> pa.RecordBatch:
    """Return the rows with a commit ts in ``(from_ts, to_ts]``; a zero-copy slice where the records are in ts order."""
    ts = commit_ts_array(records)
    if bool((ts[1:] >= ts[:-1]).all()):
        start, end = np.searchsorted(ts, np.array([from_ts, to_ts], dtype=np.uint64), side="right")
        return records.slice(int(start), int(end - start))
    inside = (ts > np.uint64(from_ts)) & (ts <= np.uint64(to_ts))
    return records.filter(pa.array(inside))


def merge_step(changes: Changes, keep_before: bool) -> list[tuple[int, pa.RecordBatch]]:
    """Merge both sides of a step into ordered change rows, as (schema version, records), one per run of one version.

    Without ``keep_before`` the BEFORE rows and the ``_key`` column are dropped, and a step without other tombstones passes through
    without a copy. Steps that are merged one after the other stay in order, TAIL_WIP steps too.
    """
    tombstones = [(b.header.schema_version, b.records) for b in changes.tombstones]
    if not keep_before:
        tombstones = [(v, r) for v, r in ((v, without_before(r)) for v, r in tombstones) if r.num_rows]
    data = [(b.header.schema_version, b.records) for b in changes.data]
    merged = _merge_sides(tombstones, data) if tombstones and data else tombstones or data
    return merged if keep_before else [(version, _without_key(records)) for version, records in merged]


def _without_key(records: pa.RecordBatch) -> pa.RecordBatch:
    return records.drop_columns([KEY])


def _merge_sides(tombstones: list[tuple[int, pa.RecordBatch]], data: list[tuple[int, pa.RecordBatch]]) -> list[tuple[int, pa.RecordBatch]]:
    """Merge by a stable sort on ts alone: tombstones stand first in the input, and each side already has its keys in order."""
    parts = [*tombstones, *data]
    ts = np.concatenate([commit_ts_array(r) for _, r in parts])
    order = np.argsort(ts, kind="stable")
    versions = sorted({v for v, _ in parts})
    if len(versions) == 1:
        return [(versions[0], concat_records([r for _, r in parts]).take(pa.array(order)))]
    version_of = np.concatenate([np.full(r.num_rows, versions.index(v), dtype=np.int32) for v, r in parts])
    by_version = []
    for at, version in enumerate(versions):
        mine = concat_records([r for v, r in parts if v == version])
        by_version.append(mine.take(pa.array(np.argsort(ts[version_of == at], kind="stable"))))
    sequence = version_of[order]
    edges = np.flatnonzero(np.diff(sequence)) + 1
    merged: list[tuple[int, pa.RecordBatch]] = []
    taken = [0] * len(versions)
    for start, end in zip([0, *edges.tolist()], [*edges.tolist(), len(sequence)], strict=True):
        at = int(sequence[start])
        merged.append((versions[at], by_version[at].slice(taken[at], end - start)))
        taken[at] += end - start
    return merged


def rebatch(batch: ChangeBatch, records: pa.RecordBatch) -> ChangeBatch:
    """Return a batch with the same ids and other rows, which must not be empty and must be in ts order."""
    ts = records.column(COMMIT_TS)
    return batch_like(batch, records, int(ts[0].as_py()), int(ts[-1].as_py()))


def batch_like(batch: ChangeBatch, records: pa.RecordBatch, min_ts: int, max_ts: int) -> ChangeBatch:
    """Return a batch with the same ids and other rows whose ts range is known."""
    share = batch.header.nbytes * records.num_rows // max(1, batch.header.rows)
    header = type(batch.header)(
        span_id=batch.header.span_id,
        table_id=batch.header.table_id,
        schema_version=batch.header.schema_version,
        kind=batch.header.kind,
        min_ts=min_ts,
        max_ts=max_ts,
        rows=records.num_rows,
        nbytes=max(1, share),
    )
    return ChangeBatch(header, records)
