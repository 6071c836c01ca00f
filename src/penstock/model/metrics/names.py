"""Every metric that Penstock shows: its name, kind, labels and meaning. The only place where one is named.

Whoever counts takes them from here; ``docs/metrics.md`` is generated from here, and the dashboard and the alert rules under ``ops/`` name
nothing else. Invariants: a label has a bounded number of values: states, codes, feeds, tables (see ``TABLES_MAX``), never keys or
positions; units stand last in a name. Data only. Runs everywhere.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

TABLES_MAX = 1_000
"""A feed with more tables than this shows no metrics of each."""
TABLES_TOTAL_MAX = 10_000
"""So many tables of all feeds together have metrics of their own; feeds with the fewest come first."""
SINK_PREFIX = "penstock_sink_"


class MetricKind(StrEnum):
    """What a number does: rise only, rise and fall, or a distribution. A sum is a counter whose name has no ending of its own."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUM = "sum"


class MetricName(NamedTuple):
    """One metric. ``name`` is without the endings that the text format gives to counters and histograms."""

    section: str
    name: str
    kind: MetricKind
    text: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the names of its samples."""
        if self.kind is MetricKind.COUNTER:
            return (f"{self.name}_total",)
        return tuple(self.name + end for end in ("_bucket", "_sum", "_count")) if self.kind is MetricKind.HISTOGRAM else (self.name,)

    @property
    def key(self) -> str:
        """Return the name that a sink's task counts under, which is without the prefix of sinks."""
        return self.name.removeprefix(SINK_PREFIX)


_COUNTER, _GAUGE, _HISTOGRAM, _SUM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM, MetricKind.SUM
_F = "Feeds"
_FEED = ("feed",)
FEED_CHECKPOINT_TS = MetricName(_F, "penstock_feed_checkpoint_ts", _GAUGE, "The ts up to which everything is delivered.", _FEED)
FEED_LAG_SECONDS = MetricName(
    _F,
    "penstock_feed_checkpoint_lag_seconds",
    _GAUGE,
    "How far the checkpoint is behind the clock; the age of a feed that has none yet.",
    _FEED,
)
FEED_KEPT_SECONDS = MetricName(
    _F, "penstock_feed_history_left_seconds", _GAUGE, "For how long the history that a feed needs next is still kept.", _FEED
)
FEED_STATE = MetricName(_F, "penstock_feed_state", _GAUGE, "1 for the state that the feed is in.", ("feed", "state"))
FEED_PROBLEM = MetricName(
    _F, "penstock_feed_problem", _GAUGE, "1 for the stage at which a feed of this server does not go on.", ("feed", "stage")
)
FEED_PROBLEM_SECONDS = MetricName(
    _F, "penstock_feed_problem_seconds", _GAUGE, "For how long a feed of this server does not go on.", ("feed", "stage")
)
FEED_RETRYING_SECONDS = MetricName(_F, "penstock_feed_retrying_seconds", _GAUGE, "For how long a feed has been tried again.", _FEED)
FEED_FAILURES = MetricName(_F, "penstock_feed_failures", _GAUGE, "How often in a row a feed failed without progress.", _FEED)
FEED_ROWS = MetricName(_F, "penstock_feed_rows", _COUNTER, "Rows delivered.", _FEED)
FEED_BYTES = MetricName(_F, "penstock_feed_bytes", _COUNTER, "Bytes delivered.", _FEED)
FEED_FILES = MetricName(_F, "penstock_feed_files", _COUNTER, "Files published.", _FEED)
FEED_WINDOWS = MetricName(_F, "penstock_feed_windows", _COUNTER, "Windows committed.", _FEED)
FEED_RESNAPSHOTS = MetricName(
    _F, "penstock_feed_resnapshots", _COUNTER, "Windows begun with a new snapshot, because the history was gone.", _FEED
)

_T = "Tables"
_TABLE = ("feed", "table")
TABLE_ROWS = MetricName(_T, "penstock_table_rows", _COUNTER, "Rows delivered of a table.", _TABLE)
TABLE_BYTES = MetricName(_T, "penstock_table_bytes", _COUNTER, "Bytes delivered of a table.", _TABLE)
TABLE_FILES = MetricName(_T, "penstock_table_files", _COUNTER, "Files published of a table.", _TABLE)
TABLE_DELIVERED_TS = MetricName(
    _T, "penstock_table_delivered_ts", _GAUGE, "The end of the last window in which a table had changes.", _TABLE
)
TABLE_LAG_SECONDS = MetricName(
    _T, "penstock_table_lag_seconds", _GAUGE, "How far what is delivered of a table is behind the clock: as its feed.", _TABLE
)
FEED_TABLES = MetricName(_T, "penstock_feed_tables", _GAUGE, "Tables of which a feed has delivered something.", _FEED)
TABLES_IN_DOUBT = MetricName(
    _T, "penstock_tables_in_doubt", _GAUGE, "Tables of a source that are doubtful, rereading or quarantined.", ("state",)
)
TABLE_STATE = MetricName(_T, "penstock_table_state", _GAUGE, "1 for the state of a table that is not ok.", ("table", "state", "code"))
TABLE_DOUBT_SECONDS = MetricName(
    _T, "penstock_table_doubt_seconds", _GAUGE, "For how long a table has been in a state that is not ok.", ("table", "state")
)
REREADS = MetricName(_T, "penstock_rereads", _COUNTER, "Re-reads of doubted tables: settled, again, failed, gone.", ("outcome",))
REREAD_SECONDS = MetricName(_T, "penstock_reread_seconds", _HISTOGRAM, "How long a re-read took.")
CORRECTIONS = MetricName(_T, "penstock_corrections", _COUNTER, "Rows that a re-read found to differ and that were corrected.")
VERIFIED_RANGES = MetricName(
    _T, "penstock_verified_ranges", _COUNTER, "Key ranges compared on schedule: identical, differs, unchecked.", ("outcome",)
)
VERIFIED_ROWS = MetricName(_T, "penstock_verified_rows", _COUNTER, "Rows found identical.")
DIFFERENCES = MetricName(_T, "penstock_table_differences", _GAUGE, "Rows found to differ from the source.", _TABLE)

_H = "Server"
COMPONENT_UP = MetricName(_H, "penstock_component_up", _GAUGE, "Whether a component of this server works.", ("component",))
META_UP = MetricName(_H, "penstock_meta_up", _GAUGE, "Whether the meta database answers.")

_S = "Event store"
STORE_SPANS = MetricName(_S, "penstock_store_spans", _GAUGE, "Spans that the store holds.")
STORE_MEMORY_ROWS = MetricName(_S, "penstock_store_memory_rows", _GAUGE, "Rows that lie in memory, not in objects.")
STORE_MEMORY_BYTES = MetricName(_S, "penstock_store_memory_bytes", _GAUGE, "Bytes of rows that lie in memory, not in objects.")
STORE_WAL_BYTES = MetricName(_S, "penstock_store_wal_bytes", _GAUGE, "Bytes of the write-ahead log on disk.")
STORE_WAL_GROUPS = MetricName(_S, "penstock_store_wal_groups", _COUNTER, "Groups of records that were written with one sync.")
STORE_QUEUE_RATIO = MetricName(
    _S, "penstock_store_wal_queue_ratio", _GAUGE, "How full the queue before the write-ahead log is: 1 is full, and capture waits."
)
STORE_FLUSH_QUEUE = MetricName(_S, "penstock_store_flush_queue_spans", _GAUGE, "Spans that wait to be written to objects.")
STORE_MERGE_QUEUE = MetricName(_S, "penstock_store_merge_queue_spans", _GAUGE, "Spans that wait for a look whether to merge them.")
STORE_FLUSH_FAILING = MetricName(
    _S, "penstock_store_flush_failing_spans", _GAUGE, "Spans whose last flush to objects failed; their rows stay in memory."
)

_P = "Capture"
_PIPELINE = "penstock_log_puller_span_pipeline_"
INFLIGHT_BYTES = MetricName(_P, _PIPELINE + "inflight_bytes", _GAUGE, "Bytes held against the in-flight quota.")
INFLIGHT_BATCHES = MetricName(_P, _PIPELINE + "inflight_batches", _GAUGE, "Data batches that wait for their persist callback.")
PENDING_BARRIERS = MetricName(_P, _PIPELINE + "pending_resolved_barriers", _GAUGE, "Resolved ts that wait for earlier data.")
ACTIVE_SUBSCRIPTIONS = MetricName(_P, _PIPELINE + "active_subscriptions", _GAUGE, "Subscriptions that the workers track.")
QUOTA_SECONDS = MetricName(_P, _PIPELINE + "quota_acquire_duration_seconds", _HISTOGRAM, "Time that a batch waited for quota.")
BARRIERS_DROPPED = MetricName(_P, _PIPELINE + "resolved_barrier_dropped", _COUNTER, "Redundant resolved ts that were dropped.")
BARRIER_COMPACTIONS = MetricName(_P, _PIPELINE + "resolved_barrier_compaction", _COUNTER, "Times a queue of barriers was compacted.")
_PULLER = "penstock_log_puller_"
REGIONS = MetricName(
    _P, _PULLER + "regions", _GAUGE, "Regions that wait for a range, are pending, requested, initialized, or pulled.", ("state",)
)
RESOLVED_LAG_SECONDS = MetricName(
    _P, _PULLER + "resolved_lag_seconds", _GAUGE, "How far the slowest span's resolved ts is behind the clock."
)
LAGGING_REGIONS = MetricName(
    _P, _PULLER + "lagging_regions", _GAUGE, "Regions whose resolved ts is further behind than the settings allow."
)
ENTRIES = MetricName(_P, _PULLER + "entries", _COUNTER, "Entries received.")
RECEIVED_BYTES = MetricName(_P, _PULLER + "received_bytes", _COUNTER, "Bytes of change-data messages received.")
MATCHER_PENDING = MetricName(_P, _PULLER + "matcher_pending", _GAUGE, "Prewrites that wait for their commit or rollback.")
MATCHER_BYTES = MetricName(_P, _PULLER + "matcher_bytes", _GAUGE, "Memory of what waits in the matchers.")
DELIVERED_BYTES = MetricName(_P, _PULLER + "delivered_bytes", _GAUGE, "Memory of delivered keys that no resolved ts covers yet.")
PULLER_ERRORS = MetricName(_P, _PULLER + "errors", _COUNTER, "Errors of ranges, streams and logs, by code.", ("code",))
STALE_MESSAGES = MetricName(_P, _PULLER + "stale_messages", _COUNTER, "Messages for a feed that is no longer there.")
REPLAYED_ENTRIES = MetricName(_P, _PULLER + "replayed_entries", _COUNTER, "Entries that a re-registered region sent a second time.")
RESOLVED_VIOLATIONS = MetricName(_P, _PULLER + "resolved_violations", _COUNTER, "Rows at or below a resolved ts that was already emitted.")

_R = "Receivers on executors"
_RECEIVER = ("slot", "host")
RECEIVERS = MetricName(_R, "penstock_receivers", _GAUGE, "Receivers that are there.")
RECEIVERS_WANTED = MetricName(_R, "penstock_receivers_wanted", _GAUGE, "Receivers that should be there.")
RECEIVERS_LOST = MetricName(_R, "penstock_receivers_lost", _COUNTER, "Receivers that were lost: silent, or their task ended.")
RECEIVER_PARTS = MetricName(_R, "penstock_receiver_parts", _GAUGE, "Parts that a receiver has open.", _RECEIVER)
RECEIVER_SPANS = MetricName(_R, "penstock_receiver_spans", _GAUGE, "Spans that a receiver captures.", _RECEIVER)
RECEIVER_FAILING = MetricName(_R, "penstock_receiver_failing_spans", _GAUGE, "Spans whose capture is tried again.", _RECEIVER)
RECEIVER_LAG_SECONDS = MetricName(
    _R, "penstock_receiver_resolved_lag_seconds", _GAUGE, "How far its slowest span is behind the clock.", _RECEIVER
)
RECEIVER_MEMORY_ROWS = MetricName(_R, "penstock_receiver_memory_rows", _GAUGE, "Rows that lie in its memory, not in objects.", _RECEIVER)
PART_ENTRIES = MetricName(_R, "penstock_receiver_part_entries", _COUNTER, "Entries received for a part.", ("part",))
PART_BYTES = MetricName(_R, "penstock_receiver_part_received_bytes", _COUNTER, "Bytes received for a part.", ("part",))

_K = "Targets"
_BY_REASON = ("feed", "reason")
SPOOL_BYTES = MetricName(
    _K, SINK_PREFIX + "spool_bytes", _GAUGE, "Bytes in the spool, memory and disk: the most that any task held.", _FEED
)
SPOOL_ITEMS = MetricName(_K, SINK_PREFIX + "spool_items", _GAUGE, "Items in the spool: the most that any task held.", _FEED)
WAKE_CALLS = MetricName(_K, SINK_PREFIX + "wake_calls_total", _SUM, "Events whose dispatcher was woken.", _FEED)
WAKE_SUPPRESSED = MetricName(
    _K, SINK_PREFIX + "wake_suppressed_total", _SUM, "Events whose wake was held back above the high watermark.", _FEED
)
FLUSH_COUNT = MetricName(_K, SINK_PREFIX + "flush_count", _SUM, "Files flushed, by reason.", _BY_REASON)
FLUSH_DURATION = MetricName(
    _K, SINK_PREFIX + "flush_duration_seconds", _HISTOGRAM, "From taking a file to its index in the target, by reason.", _BY_REASON
)
FLUSH_FILE_SIZE = MetricName(_K, SINK_PREFIX + "flush_file_size_bytes", _HISTOGRAM, "Size of flushed files before compression.", _FEED)
DDL_DRAIN_DURATION = MetricName(
    _K,
    SINK_PREFIX + "ddl_drain_duration_seconds",
    _HISTOGRAM,
    "From a DDL's arrival at a dispatcher to all before it in the target.",
    _FEED,
)
DDL_AFFECTED = MetricName(_K, SINK_PREFIX + "ddl_affected_dispatchers", _SUM, "Dispatchers that drained for a DDL.", _FEED)
DDL_WAIT_ENCODE = MetricName(
    _K, SINK_PREFIX + "ddl_drain_wait_encode_seconds", _HISTOGRAM, "The part of a drain until all before the DDL was encoded.", _FEED
)
DDL_WAIT_REMOTE = MetricName(
    _K,
    SINK_PREFIX + "ddl_drain_wait_remote_seconds",
    _HISTOGRAM,
    "The part of a drain until all before the DDL was in the target.",
    _FEED,
)
SPOOL_SPILLED_BYTES = MetricName(
    _K, SINK_PREFIX + "spool_spilled_bytes_total", _SUM, "Bytes that went from the spool's memory to its disk.", _FEED
)
DEAD_LETTERS = MetricName(
    _K, SINK_PREFIX + "dead_letters_total", _SUM, "Messages that the target refused for good, and that were put aside.", _FEED
)

METRICS: tuple[MetricName, ...] = tuple(value for value in list(globals().values()) if isinstance(value, MetricName))
"""All of them, in the order of this module."""
SINK_METRICS = {metric.key: metric for metric in METRICS if metric.name.startswith(SINK_PREFIX)}
"""Those of sinks, by the name that tasks count under."""
