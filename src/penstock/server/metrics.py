"""The server's metrics. Feeds are read from the meta database when somebody asks. Names: ``model/metrics/names.py``. Runs in the server."""

from __future__ import annotations

import threading
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord, RetryRecord, TableProgress
from penstock.meta.table_states import TableCondition, TableState
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.metrics import names
from penstock.model.metrics.families import counter, family, gauge, single
from penstock.model.timestamp import lag_seconds
from penstock.server.health.feed_watch import FeedProblem
from penstock.server.health.watch import ComponentHealth
from penstock.store.settings import StoreSettings
from penstock.store.stats import StoreStats

_REREAD_BUCKETS_S = (1, 10, 60, 600, 3600, 36000)


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
            return [single(names.META_UP, 0)]
        up = single(names.META_UP, 1)
        lags = {feed.name: self._lag_s(feed) for feed in feeds}
        of_feeds = [*self._gauges(feeds, lags), *self._retrying(retries), *_counters(feeds, resnapshots)]
        return [up, *of_feeds, *_of_tables(tables, lags)]

    def _lag_s(self, feed: FeedRecord) -> float:
        """Return how late a feed is; one that has delivered nothing yet is as late as it is old, so that an alert on lag sees it."""
        waited_s = max(0, self._clock.now_ms() - feed.created_ms) / 1000
        return lag_seconds(feed.checkpoint_ts, self._clock) if feed.checkpoint_ts else waited_s

    def _retrying(self, retries: Mapping[str, RetryRecord]) -> list[Metric]:
        seconds = family(names.FEED_RETRYING_SECONDS)
        failures = family(names.FEED_FAILURES)
        for name, retry in retries.items():
            seconds.add_metric([name], max(0, self._clock.now_ms() - retry.since_ms) / 1000)
            failures.add_metric([name], retry.failures)
        return [seconds, failures]

    def _gauges(self, feeds: Sequence[FeedRecord], lags: Mapping[str, float]) -> list[Metric]:
        checkpoint = family(names.FEED_CHECKPOINT_TS)
        lag = family(names.FEED_LAG_SECONDS)
        state = family(names.FEED_STATE)
        kept = family(names.FEED_KEPT_SECONDS)
        for feed in feeds:
            checkpoint.add_metric([feed.name], feed.checkpoint_ts)
            lag.add_metric([feed.name], lags[feed.name])
            state.add_metric([feed.name, feed.reached_state.value], 1)
            if feed.checkpoint_ts and not feed.is_over:
                kept.add_metric([feed.name], max(0.0, self._kept_s - lags[feed.name]))
        return [checkpoint, lag, state, kept]


def _counters(feeds: Sequence[FeedRecord], resnapshots: Mapping[str, int]) -> list[Metric]:
    rows = family(names.FEED_ROWS)
    nbytes = family(names.FEED_BYTES)
    files = family(names.FEED_FILES)
    windows = family(names.FEED_WINDOWS)
    taken = family(names.FEED_RESNAPSHOTS)
    for feed in feeds:
        rows.add_metric([feed.name], feed.rows_total)
        nbytes.add_metric([feed.name], feed.nbytes_total)
        files.add_metric([feed.name], feed.files_total)
        windows.add_metric([feed.name], feed.windows_total)
        taken.add_metric([feed.name], resnapshots[feed.name])
    return [rows, nbytes, files, windows, taken]


def shown_feeds(counts: Mapping[str, int], most: int = names.TABLES_MAX, total: int = names.TABLES_TOTAL_MAX) -> set[str]:
    """Return the feeds whose tables are shown one by one, by how many each has: no more than a metrics store bears."""
    found, left = set(), total
    for feed in sorted(counts, key=lambda name: (counts[name], name)):
        left -= counts[feed]
        if counts[feed] > most or left < 0:
            break
        found.add(feed)
    return found


def _of_tables(tables: Sequence[TableProgress], lags: Mapping[str, float]) -> list[Metric]:
    """Return what was delivered of each table of the feeds whose tables are shown, and how many tables each feed has."""
    count, rows, nbytes, files, delivered, lag = (
        family(metric)
        for metric in (
            names.FEED_TABLES,
            names.TABLE_ROWS,
            names.TABLE_BYTES,
            names.TABLE_FILES,
            names.TABLE_DELIVERED_TS,
            names.TABLE_LAG_SECONDS,
        )
    )
    merged: dict[tuple[str, str], list[TableProgress]] = {}
    for one in tables:
        merged.setdefault((one.feed, f"{one.db_name}.{one.table_name}"), []).append(one)
    counts = Counts(feed for feed, _ in merged)
    for feed, tables_of_feed in counts.items():
        count.add_metric([feed], tables_of_feed)
    shown = shown_feeds(counts)
    for (feed, table), parts in merged.items():
        if feed not in shown:
            continue
        rows.add_metric([feed, table], sum(one.counted.rows for one in parts))
        nbytes.add_metric([feed, table], sum(one.counted.nbytes for one in parts))
        files.add_metric([feed, table], sum(one.counted.files for one in parts))
        delivered.add_metric([feed, table], max(one.delivered_ts for one in parts))
        if feed in lags:
            lag.add_metric([feed, table], lags[feed])
    return [count, rows, nbytes, files, delivered, lag]


class HealthCollector(Collector):
    """Tells which components are well and which feeds have problems."""

    def __init__(
        self, components: Callable[[], Mapping[str, ComponentHealth]], problems: Callable[[], Mapping[str, FeedProblem]], clock: Clock
    ) -> None:
        self._components = components
        self._problems = problems
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering asks nobody."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return what was found at the last look."""
        up = family(names.COMPONENT_UP)
        for name, health in self._components().items():
            up.add_metric([name], health.ok)
        problem, seconds = family(names.FEED_PROBLEM), family(names.FEED_PROBLEM_SECONDS)
        for name, found in self._problems().items():
            problem.add_metric([name, found.stage], 1)
            seconds.add_metric([name, found.stage], max(0, self._clock.now_ms() - found.since_ms) / 1000)
        return [up, problem, seconds]


class DoubtMetrics:
    """What the re-reads of doubted tables did."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.rereads = counter(names.REREADS, registry)
        self.corrections = counter(names.CORRECTIONS, registry)
        self.seconds = Histogram(*names.REREAD_SECONDS[1:4:2], registry=registry, buckets=_REREAD_BUCKETS_S)


class VerifyMetrics:
    """What verification on a schedule found."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ranges = counter(names.VERIFIED_RANGES, registry)
        self.rows = counter(names.VERIFIED_ROWS, registry)
        self.differences = gauge(names.DIFFERENCES, registry)
        self._lock = threading.Lock()
        self._shown: dict[str, dict[str, int]] = {}

    def note(self, feed: str, table: str, wrong: int, most: int = names.TABLES_MAX, total: int = names.TABLES_TOTAL_MAX) -> None:
        """Show how many rows of a table differ; where no more may be shown, one that differs takes the place of one that does not."""
        with self._lock:
            shown = self._shown.setdefault(feed, {})
            if table not in shown and (len(shown) >= most or sum(map(len, self._shown.values())) >= total):
                right = next((name for name, rows in shown.items() if not rows), None) if wrong else None
                if right is None:
                    return
                del shown[right]
                self.differences.remove(feed, right)
            shown[table] = wrong
            self.differences.labels(feed, table).set(wrong)

    def forget(self, feed: str) -> None:
        """Show nothing of a feed any more."""
        with self._lock:
            self._shown.pop(feed, None)
            self.differences.remove_by_labels({"feed": feed})


class TableStateCollector(Collector):
    """Tells which tables are in doubt."""

    def __init__(self, states: Callable[[], Sequence[TableState]], clock: Clock) -> None:
        self._states = states
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not read the database."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return how many tables are in each state, and the state of each that is not ok."""
        try:
            found = [s for s in self._states() if s.is_open]
        except PenstockError:
            return []
        count = family(names.TABLES_IN_DOUBT)
        for condition in TableCondition:
            if condition is not TableCondition.OK:
                count.add_metric([condition.value], sum(s.state is condition for s in found))
        each = family(names.TABLE_STATE)
        since = family(names.TABLE_DOUBT_SECONDS)
        # What must be acted upon comes first, so that it is shown where there are too many.
        worst = sorted(found, key=lambda s: (s.state is not TableCondition.QUARANTINED, s.since_ms, s.schema, s.table))[: names.TABLES_MAX]
        for state in worst:
            each.add_metric([f"{state.schema}.{state.table}", state.state.value, state.code], 1)
            since.add_metric([f"{state.schema}.{state.table}", state.state.value], max(0, self._clock.now_ms() - state.since_ms) / 1000)
        return [count, each, since]


class StoreCollector(Collector):
    """Shows what an event store holds and what waits in its queues."""

    def __init__(self, stats: Callable[[], StoreStats]) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering asks nobody."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the current values."""
        stats = self._stats()
        yield single(names.STORE_SPANS, len(stats.spans))
        yield single(names.STORE_MEMORY_ROWS, sum(span.memory_rows for span in stats.spans))
        yield single(names.STORE_MEMORY_BYTES, stats.memory_nbytes)
        yield single(names.STORE_WAL_BYTES, stats.wal_nbytes)
        yield single(names.STORE_WAL_GROUPS, stats.wal_groups)
        yield single(names.STORE_QUEUE_RATIO, stats.queue_fill)
        yield single(names.STORE_FLUSH_QUEUE, stats.flush_waiting)
        yield single(names.STORE_MERGE_QUEUE, stats.merge_waiting)
        yield single(names.STORE_FLUSH_FAILING, stats.flush_failing)


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
            for shown in (one for registry in registries for one in registry.collect()):
                merged = families.setdefault(shown.name, Metric(shown.name, shown.documentation, shown.type, shown.unit))
                merged.samples += [sample._replace(labels=sample.labels | label) for sample in shown.samples]
        return families.values()


def render(registries: Sequence[CollectorRegistry]) -> bytes:
    """Return all registries in the text format that Prometheus reads."""
    return b"".join(generate_latest(registry) for registry in registries)
