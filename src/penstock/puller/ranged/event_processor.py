"""The region event processor: turns region events into data batches and span resolved ts.

Sharded by region id: everything of one region is handled by one thread at a time in the order of arrival, which is all the order
that the span pipeline needs, because a span's resolved ts is the minimum over its regions and a region's resolved ts is applied only
after its earlier rows were handed over. A shard that waits for quota holds its regions' resolved ts back with it, and, through the
bounded inbox, the streams of the stores. Runs in the log service.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from penstock.model.clock import Clock
from penstock.model.errors import InvariantError, PenstockError
from penstock.puller.metrics import LogPullerMetrics
from penstock.puller.quota import ByteQuota
from penstock.puller.ranged.matching.committed_rows import Committed
from penstock.puller.ranged.matching.matcher import Entries
from penstock.puller.ranged.region_feed_state import FeedStatus, RegionFeedState
from penstock.puller.ranged.repeats import drop_replayed
from penstock.puller.span_pipeline import SpanPipeline
from penstock.source.raw import RawBatch

_log = logging.getLogger(__name__)

_SMALL = 32
"""Events with so few entries are handled by whoever brings them, if the shard is at rest."""

OnRegionError = Callable[[RegionFeedState, PenstockError], None]


@dataclass(frozen=True)
class EventProcessorSettings:
    """Sizes of the event processor; ``workers = 0`` means one per core. ``inbox_bytes`` bounds what waits before matching."""

    workers: int = 0
    queue_size: int = 4096
    inbox_bytes: int = 64 << 20


class _EntriesEvent(msgspec.Struct, frozen=True, gc=False):
    state: RegionFeedState
    entries: Entries
    nbytes: int


class _ResolvedEvent(msgspec.Struct, frozen=True, gc=False):
    states: Sequence[RegionFeedState]
    """All of one subscription."""
    ts: int


class _ErrorEvent(msgspec.Struct, frozen=True, gc=False):
    state: RegionFeedState
    error: PenstockError


_Event = _EntriesEvent | _ResolvedEvent | _ErrorEvent


class RegionEventProcessor:
    """Routes events to shards. ``dispatch_*`` may block: that is the back-pressure which reaches the stream."""

    def __init__(
        self,
        settings: EventProcessorSettings,
        pipeline: SpanPipeline,
        clock: Clock,
        metrics: LogPullerMetrics,
        on_region_error: OnRegionError,
    ) -> None:
        self._inbox = ByteQuota(settings.inbox_bytes)
        count = settings.workers or os.cpu_count() or 1
        self._shards = [
            _Shard(f"region-events-{i}", settings.queue_size, self._inbox, pipeline, clock, metrics, on_region_error) for i in range(count)
        ]

    def dispatch_entries(self, state: RegionFeedState, entries: Entries, nbytes: int) -> bool:
        """Hand over a region's entries; False once closed."""
        if not self._inbox.acquire(nbytes):
            return False
        if self._shard(state).put(_EntriesEvent(state, entries, nbytes), len(entries.rows) <= _SMALL):
            return True
        self._inbox.release(nbytes)
        return False

    def dispatch_resolved(self, states: Sequence[RegionFeedState], ts: int) -> None:
        """Hand over one resolved ts for one region or for many of one subscription."""
        if len(states) == 1:
            self._shard(states[0]).put(_ResolvedEvent(states, ts), small=True)
            return
        by_shard: dict[int, list[RegionFeedState]] = {}
        for state in states:
            by_shard.setdefault(state.region_id % len(self._shards), []).append(state)
        for index, part in by_shard.items():
            self._shards[index].put(_ResolvedEvent(part, ts))

    def dispatch_error(self, state: RegionFeedState, error: PenstockError) -> None:
        """Hand over the end of a region's feed, behind everything that it sent before."""
        self._shard(state).put(_ErrorEvent(state, error))

    def close(self) -> None:
        """Stop the shards; what is queued is dropped. The pipeline is closed before, so no shard hangs on its quota."""
        self._inbox.close()
        for shard in self._shards:
            shard.close()

    def _shard(self, state: RegionFeedState) -> _Shard:
        return self._shards[state.region_id % len(self._shards)]


class _Shard:
    """One thread and its bounded queue."""

    def __init__(
        self,
        name: str,
        queue_size: int,
        inbox: ByteQuota,
        pipeline: SpanPipeline,
        clock: Clock,
        metrics: LogPullerMetrics,
        on_region_error: OnRegionError,
    ) -> None:
        self._queue: deque[_Event] = deque()
        self._queue_size = max(1, queue_size)
        self._closed = False
        self._idle = False
        self._busy = False
        """Whether somebody handles events of this shard now: its thread, or a caller. Never two at once."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._inbox = inbox
        self._pipeline = pipeline
        self._clock = clock
        self._metrics = metrics
        self._pending = metrics.matcher_pending.cell()
        self._matcher_bytes = metrics.matcher_bytes.cell()
        self._on_region_error = on_region_error
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, event: _Event, small: bool = False) -> bool:
        """Queue an event; a small one that finds the shard at rest is handled at once, by the caller: waking a thread costs more."""
        with self._lock:
            while len(self._queue) >= self._queue_size and not self._closed:
                self._changed.wait()
            if self._closed:
                return False
            if self._busy or self._queue or not small:
                self._queue.append(event)
                if self._idle:
                    self._changed.notify_all()
                return True
            self._busy = True
        try:
            self._handle(event)
        finally:
            with self._lock:
                self._busy = False
                if self._queue:
                    self._changed.notify_all()
        return True

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                while (not self._queue or self._busy) and not self._closed:
                    self._idle = True
                    self._changed.wait()
                self._idle = False
                if self._closed:
                    return
                self._busy = True
                events, self._queue = self._queue, deque()
                if len(events) >= self._queue_size:
                    self._changed.notify_all()
            for event in events:
                if self._closed:
                    return
                self._handle(event)

    def _handle(self, event: _Event) -> None:
        try:
            if isinstance(event, _EntriesEvent):
                self._on_entries(event)
            elif isinstance(event, _ResolvedEvent):
                self._on_resolved(event)
            else:
                self._end_feed(event.state, event.error)
        except Exception as error:  # noqa: BLE001 - the shard serves other spans too: a defect fails the span that met it
            state = event.states[0] if isinstance(event, _ResolvedEvent) else event.state
            _log.exception("event processor: unexpected failure", extra={"sub_id": state.span.sub_id, "region_id": state.region_id})
            state.span.fail(error if isinstance(error, PenstockError) else InvariantError(f"{type(error).__name__}: {error}"))

    def _on_entries(self, event: _EntriesEvent) -> None:
        try:
            state = event.state
            if not state.live:
                self._metrics.stale_messages.inc()
                return
            try:
                committed = state.matcher.feed(event.entries, state.span.start_ts)
            except PenstockError as error:
                # The bytes or the order are wrong: the region begins again from its resolved ts, with a new matcher. The store still holds
                # the registration, and only a new stream tells its messages from those of the next one.
                state.owner.cut_stream(state)
                self._end_feed(state, error)
                return
            self._meter(state, state.matcher.pending, state.matcher.nbytes)
            if state.matcher.initialized:
                state.mark_initialized()
            if committed is not None:
                self._emit(state, committed)
        finally:
            self._inbox.release(event.nbytes)

    def _meter(self, state: RegionFeedState, pending: int, nbytes: int) -> None:
        """Count what a region's matcher holds now; the shard is the only one that does."""
        self._pending.value += pending - state.metered_pending
        self._matcher_bytes.value += nbytes - state.metered_bytes
        state.metered_pending, state.metered_bytes = pending, nbytes

    def _emit(self, state: RegionFeedState, committed: Committed) -> None:
        piece = state.piece
        records, low_ts, high_ts = committed.records, committed.low_ts, committed.high_ts
        if piece.priors:
            rows = records.num_rows
            records = drop_replayed(records, piece.priors)
            self._metrics.replayed_entries.inc(rows - records.num_rows)
            if records.num_rows == 0:
                return
            commit_ts = records.column(0).to_numpy()
            low_ts, high_ts = int(commit_ts.min()), int(commit_ts.max())
        if low_ts <= piece.resolved_ts:
            late = int(np.count_nonzero(records.column(0).to_numpy() <= np.uint64(piece.resolved_ts)))
            self._metrics.violations.inc(late)
            detail = f"region {state.region_id}: {late} rows at or below resolved ts {piece.resolved_ts}"
            state.span.fail(PenstockError("RESOLVED_TS_VIOLATED", detail))
            return
        piece.delivered.add(records, high_ts)
        if not self._pipeline.enqueue_data(state.span.registration, RawBatch(state.region_id, records)):
            # The pipeline closes. Nothing that this region says from now on may count: the rows before it are in no store.
            state.stop()

    def _on_resolved(self, event: _ResolvedEvent) -> None:
        span = event.states[0].span
        # Initialised means live, too, as long as the span is running.
        pieces = [state.piece for state in event.states if state.status is FeedStatus.INITIALIZED]
        if not pieces or not span.running:
            return
        ts = span.resolve(pieces, event.ts, self._clock.monotonic_s())
        if ts is not None:
            self._pipeline.enqueue_resolved(span.registration, ts)

    def _end_feed(self, state: RegionFeedState, error: PenstockError) -> None:
        self._meter(state, 0, 0)
        self._metrics.errors.labels(error.code).inc()
        if state.stop():
            self._on_region_error(state, error)
