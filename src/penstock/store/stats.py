"""What an event store holds, as numbers. Runs in the log service."""

from __future__ import annotations

import msgspec

from penstock.store.span_store import SpanStore


class SpanStats(msgspec.Struct, frozen=True):
    """What one span holds."""

    span_id: int
    table_id: int
    resolved_ts: int
    flushed_ts: int
    history_start_ts: int
    memory_rows: int
    start_key: bytes = b""
    end_key: bytes = b""
    base_ts: int | None = None
    """From this ts on the state of the span is known; None where it is not yet."""


class StoreStats(msgspec.Struct, frozen=True):
    """What the store holds."""

    spans: tuple[SpanStats, ...]
    wal_groups: int
    queue_fill: float


def span_stats(store: SpanStore) -> SpanStats:
    """Return what one span holds."""
    return SpanStats(
        span_id=store.span_id,
        table_id=store.span.table_id,
        resolved_ts=store.resolved_ts,
        flushed_ts=store.flushed_ts,
        history_start_ts=store.start_ts,
        memory_rows=store.memory_row_count,
        start_key=store.span.start_key,
        end_key=store.span.end_key,
        base_ts=store.base_ts,
    )
