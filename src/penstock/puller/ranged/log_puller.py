"""The log puller: subscribes spans, finds their ranges, and keeps every piece of every span fed.

Owns the subscriptions, one region worker per store, and the schedule of range lookups. One thread looks ranges up, locks what is
unlocked, and asks the worker of the leader's store for it; a region that fails gives its piece back and the span is looked up again after
a bounded backoff. A range whose stream is refused is pulled instead, for a while. Since the range lock always partitions the span, a piece
is either fed or scheduled: nothing is forgotten. Runs in the log service.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.model.backoff import Backoff
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.errors import ErrorKind, InvariantError, PenstockError
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import compose_ts, lag_seconds
from penstock.puller.contract import NewBeginning, SpanProgress
from penstock.puller.metrics import LogPullerMetrics
from penstock.puller.ranged.event_processor import EventProcessorSettings, RegionEventProcessor
from penstock.puller.ranged.log_pull import LogPullSettings, LogPullWorker
from penstock.puller.ranged.region_errors import PullRefusedError, RegionBusyError, StreamRefusedError
from penstock.puller.ranged.region_feed_state import RegionFeedState
from penstock.puller.ranged.region_worker import Channels, RegionWorker, RegionWorkerSettings, open_channel
from penstock.puller.ranged.subscribed_span import SubscribedSpan
from penstock.puller.span_pipeline import Advance, Consume, OnError, SpanPipeline
from penstock.source.ranged import RangeInfo

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LogPullerSettings:
    """Intervals and backoffs of the puller, and the settings of its parts."""

    advance_interval_s: float = 0.1
    retry_min_s: float = 0.02
    retry_busy_s: float = 0.2
    retry_max_s: float = 5.0
    tick_s: float = 1.0
    lagging_s: float = 60.0
    """A region whose resolved ts is further behind than this counts as lagging."""
    processor: EventProcessorSettings = field(default_factory=EventProcessorSettings)
    worker: RegionWorkerSettings = field(default_factory=RegionWorkerSettings)
    pull: LogPullSettings = field(default_factory=LogPullSettings)


class Placement(Protocol):
    """The part of ``RangedUpstream`` that tells where ranges are."""

    def current_ts(self) -> int:
        """Return a ts that is larger than every commit that was acknowledged before the call."""

    def key_span(self, span: Span) -> tuple[bytes, bytes]:
        """Return the full start and end key of a span."""

    def ranges(self, span: Span) -> Sequence[RangeInfo]:
        """Return the ranges that cover a span now."""


class LogPuller:
    """Pulls the logs of many spans. Thread safe. Implements ``Puller``."""

    def __init__(
        self,
        upstream: Placement,
        pipeline: SpanPipeline,
        settings: LogPullerSettings | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        metrics: LogPullerMetrics | None = None,
        channels: Channels | None = None,
    ) -> None:
        self.settings = settings or LogPullerSettings()
        self.metrics = metrics or LogPullerMetrics()
        self._upstream = upstream
        self._pipeline = pipeline
        self._clock = clock or SystemClock()
        self._rng = rng or system_random()
        self._channels = channels or open_channel(self.settings.worker)
        self._processor = RegionEventProcessor(self.settings.processor, pipeline, self._clock, self.metrics, self._on_region_error)
        self._request_ids = itertools.count(1)
        self._lock = threading.Lock()
        self._spans: dict[int, SubscribedSpan] = {}
        self._workers: dict[str, RegionWorker] = {}
        self._pullers: dict[str, LogPullWorker] = {}
        self._pulled_next: set[tuple[str, int]] = set()
        """Ranges, by store, whose stream was refused: their log is pulled when they are requested next."""
        self._refusals: dict[tuple[str, int], PenstockError] = {}
        """Why their streams were refused."""
        self._without_pull: set[str] = set()
        """Stores that give no log either."""
        self._due: list[tuple[float, int, SubscribedSpan]] = []
        self._order = itertools.count()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="log-puller", daemon=True)
        self._thread.start()

    @property
    def doubts(self) -> None:
        """Return nothing: a change stream tells everything."""

    def subscribe(self, span: Span, start_ts: int, consume: Consume, advance: Advance, on_failed: OnError | None = None) -> int:
        """Pull a span; ``consume`` gets ``RawBatch`` es with full keys."""
        keys = self._upstream.key_span(span)
        with self._lock:
            if self._closed:
                raise PenstockError("CANCELLED", "the log puller is closed")
            if span.span_id in self._spans:
                raise InvariantError(f"span {span.span_id} is subscribed twice")
            subscribed = SubscribedSpan(span, next(self._request_ids), start_ts, keys, self.settings.advance_interval_s, on_failed)
            self._spans[span.span_id] = subscribed
        subscribed.registration = self._pipeline.register(span.span_id, consume, advance, subscribed.fail)
        self._schedule(subscribed, 0.0)
        return span.span_id

    def unsubscribe(self, span_id: int) -> None:
        """Stop pulling a span."""
        with self._lock:
            span = self._spans.pop(span_id, None)
            workers: list[RegionWorker | LogPullWorker] = [*self._workers.values(), *self._pullers.values()]
        if span is None:
            return
        span.stop()
        for worker in workers:
            worker.stop_span(span)
        self._pipeline.unregister(span.registration)

    def progress(self, span_id: int) -> SpanProgress | None:
        """Return where a subscription stands, None if there is none."""
        with self._lock:
            span = self._spans.get(span_id)
        if span is None:
            return None
        regions, waiting = span.regions()
        return SpanProgress(span.resolved_ts(), regions, waiting, span.state, span.last_error)

    def settled_ts(self) -> int:
        """Return the upstream's ts: ranges resolve up to it by themselves."""
        return self._upstream.current_ts()

    def begin_again(self, told_ts: int) -> NewBeginning:
        """Return the upstream's ts: ranges can be registered from any ts on, so nothing was lost."""
        return NewBeginning(self._upstream.current_ts())

    def keep_schemas(self, versions: Sequence[TableSchema]) -> None:
        """Do nothing: the upstream keeps the history of its schemas."""

    def release(self) -> None:
        """Do nothing: nothing is made at the upstream."""

    def close(self) -> None:
        """Stop everything. The pipeline's owner closes the pipeline before, so that nothing waits for its quota."""
        with self._lock:
            self._closed = True
            spans = list(self._spans.values())
            workers: list[RegionWorker | LogPullWorker] = [*self._workers.values(), *self._pullers.values()]
            self._spans.clear()
        self._wake.set()
        for span in spans:
            span.stop()
        self._processor.close()
        for worker in workers:
            worker.close()
        self._thread.join()

    def _on_region_error(self, state: RegionFeedState, error: PenstockError) -> None:
        """Give a region's piece back; runs in the region's shard, behind all that the region sent."""
        span = state.span
        if not span.running:
            return
        error = self._judged(state, error)
        if error.kind not in {ErrorKind.TRANSIENT, ErrorKind.BUG} and error.code != "DECODE_FAILED":
            span.fail(error)
            return
        span.last_error = error
        _log.info("log puller: region ended", extra={"region_id": state.region_id, "sub_id": span.sub_id, "code": error.code})
        self._schedule(span, span.unlock_range(state.piece, self._delay_of(error), self._clock.monotonic_s()))

    def _judged(self, state: RegionFeedState, error: PenstockError) -> PenstockError:
        """Return what an error means: a refused stream passes while the log can be pulled, and counts where that is refused too."""
        addr, key = state.info.store_addr, (state.info.store_addr, state.region_id)
        with self._lock:
            if isinstance(error, PullRefusedError):
                self._without_pull.add(addr)
                return self._refusals.pop(key, error)
            if not isinstance(error, StreamRefusedError) or addr in self._without_pull:
                return error
            self._refusals[key] = error
            self._pulled_next.add(key)
        _log.warning("log puller: stream refused, the log is pulled", extra={"region_id": state.region_id, "why": error.detail})
        return PenstockError("CANCELLED", error.detail)

    def _delay_of(self, error: PenstockError) -> Callable[[int], float]:
        """Return the pause before the n-th attempt in a row."""
        first_s = self.settings.retry_min_s
        if isinstance(error, RegionBusyError):
            first_s = max(self.settings.retry_busy_s, error.backoff_ms / 1000)
        backoff = Backoff(first_s, max(self.settings.retry_max_s, first_s))
        return lambda failures: backoff.pause_s(failures, self._rng)

    def _schedule(self, span: SubscribedSpan, delay_s: float) -> None:
        """Look the span's ranges up after a pause, or earlier if that is planned already."""
        due_s = self._clock.monotonic_s() + delay_s
        with self._lock:
            if span.due_s is not None and span.due_s <= due_s:
                return
            span.due_s = due_s
            heapq.heappush(self._due, (due_s, next(self._order), span))
        self._wake.set()

    def _run(self) -> None:
        next_tick_s = self._clock.monotonic_s() + self.settings.tick_s
        while not self._closed:
            self._wake.clear()
            now_s = self._clock.monotonic_s()
            for span in self._take_due(now_s):
                self._look_up(span)
            if now_s >= next_tick_s:
                next_tick_s = now_s + self.settings.tick_s
                self._tick()
            with self._lock:
                first_s = min(self._due[0][0] if self._due else next_tick_s, next_tick_s)
            self._clock.wait(self._wake, max(0.0, first_s - self._clock.monotonic_s()))

    def _take_due(self, now_s: float) -> list[SubscribedSpan]:
        spans = []
        with self._lock:
            while self._due and self._due[0][0] <= now_s:
                due_s, _, span = heapq.heappop(self._due)
                if span.due_s == due_s:
                    span.due_s = None
                    spans.append(span)
        return spans

    def _look_up(self, span: SubscribedSpan) -> None:
        """Lock and request every range of the span that nobody feeds and that may be tried now."""
        if not span.running:
            return
        try:
            ranges = self._upstream.ranges(span.span)
        except PenstockError as error:
            self.metrics.errors.labels(error.code).inc()
            span.last_error = error
            span.lookup_failures += 1
            self._schedule(span, self._delay_of(error)(span.lookup_failures))
            return
        now_s = self._clock.monotonic_s()
        requested = sum(self._request(span, info, now_s) for info in ranges)
        span.lookup_failures = 0 if requested else span.lookup_failures + 1
        retry_s = span.next_retry_s(now_s)
        if retry_s is not None:
            # Pieces that could not be locked wait for a neighbour's error or for the upstream's ranges to cover them.
            backoff = Backoff(self.settings.retry_min_s, self.settings.retry_max_s)
            self._schedule(span, max(retry_s, backoff.pause_s(span.lookup_failures + 1, self._rng)))

    def _request(self, span: SubscribedSpan, info: RangeInfo, now_s: float) -> bool:
        piece = span.lock_range(info.start_key, info.end_key, info.range_id, now_s)
        if piece is None:
            return False
        worker = self._worker(info)
        state = RegionFeedState(span, info, piece, worker) if worker is not None else None
        if worker is not None and state is not None and worker.add_region(state):
            return True
        span.unlock_range(piece, lambda _: self.settings.retry_busy_s, now_s)
        return False

    def _worker(self, info: RangeInfo) -> RegionWorker | LogPullWorker | None:
        """Return who feeds a range: the stream of its store, or what pulls its log where that was refused."""
        addr = info.store_addr
        with self._lock:
            if self._closed:
                return None
            if (addr, info.range_id) in self._pulled_next:
                self._pulled_next.discard((addr, info.range_id))
                if addr not in self._pullers:
                    pull = self.settings.pull
                    self._pullers[addr] = LogPullWorker(addr, pull, self._clock, self._processor, self.metrics, self._channels)
                return self._pullers[addr]
            if addr not in self._workers:
                stream = self.settings.worker
                self._workers[addr] = RegionWorker(addr, stream, self._clock, self._rng, self._processor, self.metrics, self._channels)
            return self._workers[addr]

    def _tick(self) -> None:
        """Watch for silent streams, and publish how far behind the spans are."""
        with self._lock:
            spans, workers, pullers = list(self._spans.values()), list(self._workers.values()), list(self._pullers.values())
        for worker in workers:
            worker.check_silence()
        below_ts = compose_ts(max(0, self._clock.now_ms() - int(self.settings.lagging_s * 1000)))
        surveys = [span.survey(below_ts) for span in spans]
        states = [worker.regions_by_state() for worker in workers]
        for state in ("pending", "requested", "initialized"):
            self.metrics.regions.labels(state).set(sum(s[state] for s in states))
        self.metrics.regions.labels("pulled").set(sum(puller.regions() for puller in pullers))
        self.metrics.regions.labels("waiting").set(sum(s.waiting for s in surveys))
        self.metrics.lagging_regions.set(sum(s.lagging for s in surveys))
        self.metrics.delivered_bytes.set(sum(s.delivered_bytes for s in surveys))
        slowest_ts = min((span.emitted_ts for span in spans), default=0)
        self.metrics.resolved_lag.set(lag_seconds(slowest_ts, self._clock) if slowest_ts else 0.0)
