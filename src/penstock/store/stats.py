"""What an event store holds, as numbers. Runs in the log service."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.store.log.wal import WriteAheadLog
from penstock.store.span_store import SpanStore
from penstock.store.upkeep import Upkeep


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
    """What the store holds, and what waits: for the write-ahead log, for the threads that flush and merge."""

    spans: tuple[SpanStats, ...]
    wal_groups: int
    queue_fill: float
    wal_nbytes: int
    memory_nbytes: int
    flush_waiting: int
    """Spans that wait to be flushed, and those that wait for a look whether to merge them."""
    merge_waiting: int
    flush_failing: int
    """Spans whose last flush failed."""


def store_stats(stores: Sequence[SpanStore], wal: WriteAheadLog, upkeep: Upkeep) -> StoreStats:
    """Return what a store holds."""
    return StoreStats(
        spans=tuple(map(span_stats, stores)),
        wal_groups=wal.group_count,
        queue_fill=wal.queue_fill,
        wal_nbytes=wal.nbytes,
        memory_nbytes=sum(store.memory_nbytes for store in stores),
        flush_waiting=upkeep.flusher.waiting,
        merge_waiting=upkeep.merger.waiting,
        flush_failing=sum(store.flush_error is not None for store in stores),
    )


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
