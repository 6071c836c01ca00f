"""Settings of an event store: how much it keeps where, and for how long.

Values only, as users write them under ``store``. Runs anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model.batch import BATCH_ROWS_MAX, BATCH_ROWS_MIN


@dataclass(frozen=True)
class StoreSettings:
    """How much the store keeps where."""

    flush_bytes: int = 64 * 1024 * 1024
    object_bytes: int = 64 * 1024 * 1024
    """A flush that has more writes several objects: a reader maps one at a time."""
    spill_bytes: int = 256 * 1024 * 1024
    """When a span whose resolved ts hangs has more on the heap, it goes to a mapped file."""
    wal_segment_bytes: int = 64 * 1024 * 1024
    wal_bytes_max: int = 512 * 1024 * 1024
    """When the log is larger, spans that hold its oldest segment are flushed however small they are."""
    group_commit_max_delay_s: float = 0.0
    """How long the log's writer waits for company before it syncs a group; 0 takes what is there."""
    resolved_max_delay_s: float = 0.2
    queue_bytes_max: int = 256 * 1024 * 1024
    history_seconds: int = 3_600
    """How long changes that no one pins stay where every reader finds them at once."""
    checkpoint_seconds: int = 24 * 3_600
    """How long they stay readable from checkpoints, counted from the change as well."""
    gc_ttl_seconds: int = 24 * 3_600
    """How long a subscription that does not get on can hold history back; after that its reader gets ``STALE_READ``."""
    gc_interval_s: float = 60.0
    orphan_seconds: int = 24 * 3_600
    """How old object files that nothing names must be before they go: younger ones may belong to a bootstrap under way."""
    merge_bytes_min: int = 256 * 1024 * 1024
    """A span is merged when so much was flushed since the last merge, ..."""
    merge_ratio: float = 0.5
    """... and it is at least this share of what is merged. Bounds what the reader of a state reads, and how often rows are written."""
    merge_lull_s: float = 10.0
    """While a span is flushed more often than this, its merge waits, until four times as much is due: catching up comes first."""
    batch_rows_min: int = BATCH_ROWS_MIN
    batch_rows_max: int = BATCH_ROWS_MAX
    compression: str | None = None
    """Of object files: None (readers map them), ``lz4`` or ``zstd``."""
    objects: str = field(default="", repr=False)
    """Where objects go, below a folder for each source: a URI of shared storage; the data directory where it is empty. May hold secrets."""
    objects_interval_s: float = 60.0
    """How often what lies in memory goes to shared storage: so much a server that takes over pulls again."""

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        return [] if 0.1 <= self.objects_interval_s <= 86_400 else [("objects-interval", "must be between 100 ms and 24 h")]
