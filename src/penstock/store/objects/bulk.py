"""Bulk objects: rows that someone else writes, such as a Spark task that pulled a range's snapshot, and the store commits whole.

All rows of a bulk object carry one commit ts. Every attempt of a task writes an object of its own, so a late attempt cannot touch what is
committed; the commit says which objects count. Nothing is visible until ``ColumnarEventStore.commit_bulk``. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.model.batch import ChangeBatch
from penstock.model.clock import system_random
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.table import TableSchema
from penstock.store.objects.object_file import ObjectKind, ObjectMeta, ObjectWriter
from penstock.store.objects.objects import ObjectSpace


def write_bulk(
    space: ObjectSpace,
    span_id: int,
    name: str,
    batches: Iterable[ChangeBatch],
    commit_ts: int,
    tables: Sequence[TableSchema] = (),
) -> ObjectMeta:
    """Write one bulk object, rows or tombstones in key order; durable when it returns. There must be at least one batch."""
    path = f"spans/{span_id}/bulk/{name}-{system_random().getrandbits(64):016x}.arrow"
    writer = ObjectWriter(path, ObjectKind.BULK, _checked(batches, span_id, commit_ts), tables, None, commit_ts)
    if not space.put_new(path, writer.parts()):
        raise PenstockError("STORE_FAILED", f"bulk object {path} exists already")
    return writer.meta


def _checked(batches: Iterable[ChangeBatch], span_id: int, commit_ts: int) -> Iterable[ChangeBatch]:
    for batch in batches:
        header = batch.header
        if (header.span_id, header.min_ts, header.max_ts) != (span_id, commit_ts, commit_ts):
            raise InvariantError(f"a bulk object of span {span_id} holds rows of ts {header.min_ts} to {header.max_ts}, not {commit_ts}")
        yield batch
