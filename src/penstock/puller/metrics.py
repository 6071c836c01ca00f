"""The log puller's metrics: their names, and the objects that count.

Every name is a constant here. The objects are built on a registry that the composition root passes, so two log services in one
process (as in tests) never share a counter. Runs in the log service.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SPAN_PIPELINE_PREFIX = "penstock_log_puller_span_pipeline_"
INFLIGHT_BYTES = SPAN_PIPELINE_PREFIX + "inflight_bytes"
INFLIGHT_BATCHES = SPAN_PIPELINE_PREFIX + "inflight_batches"
PENDING_RESOLVED_BARRIERS = SPAN_PIPELINE_PREFIX + "pending_resolved_barriers"
ACTIVE_SUBSCRIPTIONS = SPAN_PIPELINE_PREFIX + "active_subscriptions"
QUOTA_ACQUIRE_DURATION_SECONDS = SPAN_PIPELINE_PREFIX + "quota_acquire_duration_seconds"
RESOLVED_BARRIER_DROPPED_TOTAL = SPAN_PIPELINE_PREFIX + "resolved_barrier_dropped_total"
RESOLVED_BARRIER_COMPACTION_TOTAL = SPAN_PIPELINE_PREFIX + "resolved_barrier_compaction_total"

LOG_PULLER_PREFIX = "penstock_log_puller_"
REGIONS = LOG_PULLER_PREFIX + "regions"
RESOLVED_LAG_SECONDS = LOG_PULLER_PREFIX + "resolved_lag_seconds"
LAGGING_REGIONS = LOG_PULLER_PREFIX + "lagging_regions"
ENTRIES_TOTAL = LOG_PULLER_PREFIX + "entries_total"
RECEIVED_BYTES_TOTAL = LOG_PULLER_PREFIX + "received_bytes_total"
MATCHER_PENDING = LOG_PULLER_PREFIX + "matcher_pending"
ERRORS_TOTAL = LOG_PULLER_PREFIX + "errors_total"
STALE_MESSAGES_TOTAL = LOG_PULLER_PREFIX + "stale_messages_total"
REPLAYED_ENTRIES_TOTAL = LOG_PULLER_PREFIX + "replayed_entries_total"
RESOLVED_VIOLATIONS_TOTAL = LOG_PULLER_PREFIX + "resolved_violations_total"

_QUOTA_BUCKETS_S = (0.0001, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0)


class SpanPipelineMetrics:
    """The seven metrics of the span pipeline."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        on = self.registry
        self.inflight_bytes = Gauge(INFLIGHT_BYTES, "Bytes held against the in-flight quota.", registry=on)
        self.inflight_batches = Gauge(INFLIGHT_BATCHES, "Data batches that wait for their persist callback.", registry=on)
        self.pending_barriers = Gauge(PENDING_RESOLVED_BARRIERS, "Resolved ts that wait for earlier data.", registry=on)
        self.active_subscriptions = Gauge(ACTIVE_SUBSCRIPTIONS, "Subscriptions that the workers track.", registry=on)
        self.quota_acquire = Histogram(
            QUOTA_ACQUIRE_DURATION_SECONDS, "Time that a batch waited for quota.", buckets=_QUOTA_BUCKETS_S, registry=on
        )
        self.barriers_dropped = Counter(RESOLVED_BARRIER_DROPPED_TOTAL, "Redundant resolved ts that were dropped.", registry=on)
        self.compactions = Counter(RESOLVED_BARRIER_COMPACTION_TOTAL, "Times a queue of barriers was compacted.", registry=on)


class LogPullerMetrics:
    """The metrics of region workers, event processor and frontier."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        on = self.registry
        self.regions = Gauge(REGIONS, "Regions by state of their feed.", ["state"], registry=on)
        self.resolved_lag = Gauge(RESOLVED_LAG_SECONDS, "How far the slowest span's resolved ts is behind the clock.", registry=on)
        self.lagging_regions = Gauge(LAGGING_REGIONS, "Regions whose resolved ts is further behind than the settings allow.", registry=on)
        self.entries = Counter(ENTRIES_TOTAL, "Entries received.", registry=on)
        self.received_bytes = Counter(RECEIVED_BYTES_TOTAL, "Bytes of change-data messages received.", registry=on)
        self.matcher_pending = Gauge(MATCHER_PENDING, "Prewrites that wait for their commit or rollback.", registry=on)
        self.errors = Counter(ERRORS_TOTAL, "Region and stream errors, by code.", ["code"], registry=on)
        self.stale_messages = Counter(STALE_MESSAGES_TOTAL, "Messages for a feed that is no longer there.", registry=on)
        self.replayed_entries = Counter(REPLAYED_ENTRIES_TOTAL, "Entries that a re-registered region sent a second time.", registry=on)
        self.violations = Counter(RESOLVED_VIOLATIONS_TOTAL, "Rows at or below a resolved ts that was already emitted.", registry=on)
