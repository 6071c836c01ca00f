"""What an event store holds, as numbers: per span, and by kind of storage. Runs in the log service."""

from __future__ import annotations

import msgspec

from penstock.model.span import Span
from penstock.store.span_store import SpanStore


class SpanStats(msgspec.Struct, frozen=True):
    """What one span holds, by kind of storage."""

    span_id: int
    table_id: int
    span: Span
    resolved_ts: int
    flushed_ts: int
    history_start_ts: int
    memory_rows: int
    memory_nbytes: int
    object_rows: dict[str, int]
    object_nbytes: dict[str, int]
    base_ts: int | None = None


class StoreStats(msgspec.Struct, frozen=True):
    """What the store holds."""

    spans: tuple[SpanStats, ...]
    wal_nbytes: int
    wal_groups: int
    queue_fill: float


def span_stats(store: SpanStore) -> SpanStats:
    """Return what one span holds."""
    rows: dict[str, int] = {}
    nbytes: dict[str, int] = {}
    for meta in store.objects:
        rows[meta.object_kind] = rows.get(meta.object_kind, 0) + meta.rows
        nbytes[meta.object_kind] = nbytes.get(meta.object_kind, 0) + meta.size
    return SpanStats(
        span_id=store.span_id,
        table_id=store.span.table_id,
        span=store.span,
        resolved_ts=store.resolved_ts,
        flushed_ts=store.flushed_ts,
        history_start_ts=store.start_ts,
        memory_rows=store.memory_row_count,
        memory_nbytes=store.memory_nbytes,
        object_rows=rows,
        object_nbytes=nbytes,
        base_ts=store.base_ts,
    )
