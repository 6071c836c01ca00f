"""The server's metrics, and the names of all of them. Feeds are read from the meta database when somebody asks. Runs in the server."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord, RetryRecord, TableProgress
from penstock.meta.table_states import TableCondition, TableState
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.timestamp import lag_seconds
from penstock.server.health.feed_watch import FeedProblem
from penstock.server.health.watch import ComponentHealth
from penstock.store.settings import StoreSettings

FEED_CHECKPOINT_TS = "penstock_feed_checkpoint_ts"
FEED_LAG_SECONDS = "penstock_feed_checkpoint_lag_seconds"
FEED_KEPT_SECONDS = "penstock_feed_history_left_seconds"
FEED_STATE = "penstock_feed_state"
FEED_ROWS = "penstock_feed_rows"
FEED_BYTES = "penstock_feed_bytes"
FEED_FILES = "penstock_feed_files"
FEED_WINDOWS = "penstock_feed_windows"
FEED_RESNAPSHOTS = "penstock_feed_resnapshots"
FEED_RETRYING_SECONDS = "penstock_feed_retrying_seconds"
FEED_FAILURES = "penstock_feed_failures"
FEED_PROBLEM = "penstock_feed_problem"
COMPONENT_UP = "penstock_component_up"
META_UP = "penstock_meta_up"
TABLES = "penstock_tables_in_doubt"
TABLE_STATE = "penstock_table_state"
REREADS = "penstock_rereads"
REREAD_SECONDS = "penstock_reread_seconds"
CORRECTIONS = "penstock_corrections"
VERIFIED_RANGES = "penstock_verified_ranges"
VERIFIED_ROWS = "penstock_verified_rows"
DIFFERENCES = "penstock_table_differences"
TABLE_ROWS = "penstock_table_rows"
TABLE_BYTES = "penstock_table_bytes"
TABLE_FILES = "penstock_table_files"
TABLE_DELIVERED_TS = "penstock_table_delivered_ts"
TABLES_MAX = 1_000
"""A feed with more tables than this shows no metrics of each."""


class FeedCollector(Collector):
    """Turns the rows of the meta database into metrics."""

    def __init__(self, meta: MetaDatabase, clock: Clock, kept_s: int = StoreSettings.gc_ttl_seconds) -> None:
        """``kept_s`` is for how long history is kept for a feed that does not get on."""
        self._meta = meta
        self._clock = clock
        self._kept_s = kept_s

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not read the database."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the current values."""
        try:
            feeds = self._meta.list_feeds()
            resnapshots = {feed.name: self._meta.resnapshots(feed.name) for feed in feeds}
            retries = self._meta.retries()
            tables = self._meta.table_progress()
        except PenstockError:
            return [GaugeMetricFamily(META_UP, "Whether the meta database answers.", 0)]
        up = GaugeMetricFamily(META_UP, "Whether the meta database answers.", 1)
        return [up, *self._gauges(feeds), *self._retrying(retries), *_counters(feeds, resnapshots), *_of_tables(tables)]

    def _retrying(self, retries: Mapping[str, RetryRecord]) -> list[Metric]:
        seconds = GaugeMetricFamily(FEED_RETRYING_SECONDS, "For how long a feed has been tried again.", labels=["feed"])
        failures = GaugeMetricFamily(FEED_FAILURES, "How often in a row a feed failed without progress.", labels=["feed"])
        for name, retry in retries.items():
            seconds.add_metric([name], max(0, self._clock.now_ms() - retry.since_ms) / 1000)
            failures.add_metric([name], retry.failures)
        return [seconds, failures]

    def _gauges(self, feeds: Sequence[FeedRecord]) -> list[Metric]:
        checkpoint = GaugeMetricFamily(FEED_CHECKPOINT_TS, "The ts up to which everything is delivered.", labels=["feed"])
        lag = GaugeMetricFamily(FEED_LAG_SECONDS, "How far the checkpoint is behind the clock.", labels=["feed"])
        state = GaugeMetricFamily(FEED_STATE, "1 for the state that the feed is in.", labels=["feed", "state"])
        kept = GaugeMetricFamily(FEED_KEPT_SECONDS, "For how long the history that a feed needs next is still kept.", labels=["feed"])
        for feed in feeds:
            checkpoint.add_metric([feed.name], feed.checkpoint_ts)
            # A feed that has delivered nothing yet is as late as it is old, so that an alert on lag sees it.
            waited_s = max(0, self._clock.now_ms() - feed.created_ms) / 1000
            lag.add_metric([feed.name], lag_seconds(feed.checkpoint_ts, self._clock) if feed.checkpoint_ts else waited_s)
            state.add_metric([feed.name, feed.reached_state.value], 1)
            if feed.checkpoint_ts and not feed.is_over:
                kept.add_metric([feed.name], max(0.0, self._kept_s - lag_seconds(feed.checkpoint_ts, self._clock)))
        return [checkpoint, lag, state, kept]


def _counters(feeds: Sequence[FeedRecord], resnapshots: Mapping[str, int]) -> list[Metric]:
    rows = CounterMetricFamily(FEED_ROWS, "Rows delivered.", labels=["feed"])
    nbytes = CounterMetricFamily(FEED_BYTES, "Bytes delivered.", labels=["feed"])
    files = CounterMetricFamily(FEED_FILES, "Files published.", labels=["feed"])
    windows = CounterMetricFamily(FEED_WINDOWS, "Windows committed.", labels=["feed"])
    taken = CounterMetricFamily(FEED_RESNAPSHOTS, "Windows begun with a new snapshot, because the history was gone.", labels=["feed"])
    for feed in feeds:
        rows.add_metric([feed.name], feed.rows_total)
        nbytes.add_metric([feed.name], feed.nbytes_total)
        files.add_metric([feed.name], feed.files_total)
        windows.add_metric([feed.name], feed.windows_total)
        taken.add_metric([feed.name], resnapshots[feed.name])
    return [rows, nbytes, files, windows, taken]


def _of_tables(tables: Sequence[TableProgress]) -> list[Metric]:
    """Return what was delivered of each table, of feeds that have no more of them than a metrics store bears."""
    labels = ["feed", "table"]
    rows = CounterMetricFamily(TABLE_ROWS, "Rows delivered of a table.", labels=labels)
    nbytes = CounterMetricFamily(TABLE_BYTES, "Bytes delivered of a table.", labels=labels)
    files = CounterMetricFamily(TABLE_FILES, "Files published of a table.", labels=labels)
    delivered = GaugeMetricFamily(TABLE_DELIVERED_TS, "The end of the last window in which a table had changes.", labels=labels)
    count = Counts(one.feed for one in tables)
    merged: dict[tuple[str, str], list[TableProgress]] = {}
    for one in tables:
        if count[one.feed] <= TABLES_MAX:
            merged.setdefault((one.feed, f"{one.db_name}.{one.table_name}"), []).append(one)
    for (feed, table), parts in merged.items():
        rows.add_metric([feed, table], sum(one.counted.rows for one in parts))
        nbytes.add_metric([feed, table], sum(one.counted.nbytes for one in parts))
        files.add_metric([feed, table], sum(one.counted.files for one in parts))
        delivered.add_metric([feed, table], max(one.delivered_ts for one in parts))
    return [rows, nbytes, files, delivered]


class HealthCollector(Collector):
    """Tells which components are well and which feeds have problems."""

    def __init__(self, components: Callable[[], Mapping[str, ComponentHealth]], problems: Callable[[], Mapping[str, FeedProblem]]) -> None:
        self._components = components
        self._problems = problems

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering asks nobody."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return what was found at the last look."""
        up = GaugeMetricFamily(COMPONENT_UP, "Whether a component of this server works.", labels=["component"])
        for name, health in self._components().items():
            up.add_metric([name], health.ok)
        problem = GaugeMetricFamily(
            FEED_PROBLEM, "1 for the stage at which a feed of this server does not go on.", labels=["feed", "stage"]
        )
        for name, found in self._problems().items():
            problem.add_metric([name, found.stage], 1)
        return [up, problem]


class DoubtMetrics:
    """What the re-reads of doubted tables did."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.rereads = Counter(REREADS, "Re-reads of doubted tables: settled, again, failed, gone.", ["outcome"], registry=registry)
        self.corrections = Counter(CORRECTIONS, "Rows that a re-read found to differ and that were corrected.", registry=registry)
        self.seconds = Histogram(REREAD_SECONDS, "How long a re-read took.", registry=registry, buckets=(1, 10, 60, 600, 3600, 36000))


class VerifyMetrics:
    """What verification on a schedule found."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ranges = Counter(VERIFIED_RANGES, "Key ranges compared: identical, differs, unchecked.", ["outcome"], registry=registry)
        self.rows = Counter(VERIFIED_ROWS, "Rows found identical.", registry=registry)
        self.differences = Gauge(DIFFERENCES, "Rows found to differ from the source.", ["feed", "table"], registry=registry)

    def forget(self, feed: str) -> None:
        """Show nothing of a feed any more."""
        self.differences.remove_by_labels({"feed": feed})


class TableStateCollector(Collector):
    """Tells which tables are in doubt."""

    def __init__(self, states: Callable[[], Sequence[TableState]]) -> None:
        self._states = states

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not read the database."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return how many tables are in each state, and the state of each that is not ok."""
        try:
            found = [s for s in self._states() if s.is_open]
        except PenstockError:
            return []
        count = GaugeMetricFamily(TABLES, "How many tables are in doubt, by state.", labels=["state"])
        for condition in TableCondition:
            if condition is not TableCondition.OK:
                count.add_metric([condition.value], sum(s.state is condition for s in found))
        each = GaugeMetricFamily(TABLE_STATE, "1 for the state of a table that is not ok.", labels=["table", "state", "code"])
        for state in found:
            each.add_metric([f"{state.schema}.{state.table}", state.state.value, state.code], 1)
        return [count, each]


class SourceCollector(Collector):
    """Puts the metrics of several sources together; those of a source with a name carry it."""

    def __init__(self, registries: Callable[[], Mapping[str, Sequence[CollectorRegistry]]]) -> None:
        """``registries`` are those of each source that is open, by name."""
        self._registries = registries

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering asks nobody."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return every family once, with the samples of all sources."""
        families: dict[str, Metric] = {}
        for source, registries in self._registries().items():
            label = {"source": source} if source else {}
            for family in (family for registry in registries for family in registry.collect()):
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type, family.unit))
                merged.samples += [sample._replace(labels=sample.labels | label) for sample in family.samples]
        return families.values()


def render(registries: Sequence[CollectorRegistry]) -> bytes:
    """Return all registries in the text format that Prometheus reads."""
    return b"".join(generate_latest(registry) for registry in registries)
