"""The span pipeline: hands batches to the event store without waiting, and resolved ts only after the data before them is persisted.

Owns the workers, their queues and the in-flight quota. The one contract: for one subscription, ``advance`` is called with a ts only after
every batch that was enqueued before that resolved ts has been persisted. A batch that was refused counts as enqueued: behind it nothing of
that subscription is ever resolved. Nothing is promised across subscriptions.

A fixed number of worker threads; a subscription belongs to worker ``sub_id % workers``, the only one that touches its state, so
state needs no lock. Persist callbacks may come from any thread, in any order, more than once, and after unregistering: they only enqueue.
Callers that bring data or resolved ts may block (quota, full queue), callbacks never do: their number is bounded by what is in
flight, so a full queue cannot hold up the persists that would empty it. Payloads are anything with ``nbytes``. Runs in the log service.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from penstock.model.clock import Clock
from penstock.model.errors import InvariantError, PenstockError
from penstock.puller.metrics import SpanPipelineMetrics
from penstock.puller.pipeline_state import PipelineState
from penstock.puller.quota import DEFAULT_QUOTA_BYTES, ByteQuota

_log = logging.getLogger(__name__)


class Payload(Protocol):
    """What the pipeline carries: it only wants to know the weight."""

    @property
    def nbytes(self) -> int:
        """Return the weight of the batch in bytes."""


Finish = Callable[[], None]
Consume = Callable[[Any, Finish], bool]
"""Take over a batch, call back when it is persisted; False (and no callback) if nobody wants it. Called by one worker at a time."""
Advance = Callable[[int], None]
OnError = Callable[[PenstockError], None]


@dataclass(frozen=True)
class SpanPipelineSettings:
    """Sizes of the span pipeline; ``workers = 0`` means one per core."""

    workers: int = 0
    queue_size: int = 4096
    quota_bytes: int = DEFAULT_QUOTA_BYTES


class _Status(Enum):
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


class Registration:
    """One subscription's place in the pipeline. Late callbacks hold on to it, so a later one with the same id never sees them."""

    __slots__ = ("advance", "consume", "on_error", "refused", "state", "status", "sub_id")

    def __init__(self, sub_id: int, consume: Consume, advance: Advance, on_error: OnError | None) -> None:
        self.sub_id = sub_id
        self.consume = consume
        self.advance = advance
        self.on_error = on_error
        self.state = PipelineState()
        self.status = _Status.ACTIVE
        self.refused = False
        """Whether a batch was refused. It stays so: whoever brings a resolved ts afterwards cannot know what is missing before it."""


class _Event(Enum):
    DATA = 0
    RESOLVED = 1
    PERSISTED = 2
    REGISTER = 3
    UNREGISTER = 4


_Item = tuple[_Event, Registration, Any, int]


class SpanPipeline:
    """The delivery layer between event processor and event store. Thread safe."""

    def __init__(self, settings: SpanPipelineSettings, clock: Clock, metrics: SpanPipelineMetrics | None = None) -> None:
        self.settings = settings
        self.metrics = metrics if metrics is not None else SpanPipelineMetrics()
        self.quota = ByteQuota(settings.quota_bytes)
        self.metrics.watch(self.quota)
        self._clock = clock
        count = settings.workers or os.cpu_count() or 1
        self._workers = [_Worker(f"span-pipeline-{i}", settings.queue_size, self.quota, self.metrics) for i in range(count)]

    def register(self, sub_id: int, consume: Consume, advance: Advance, on_error: OnError | None = None) -> Registration:
        """Begin a subscription; it is known to its worker when this returns.

        Args:
            sub_id: routes the subscription to its worker; must not be registered now.
            consume: called once per batch, in the order of arrival.
            advance: called with growing resolved ts.
            on_error: called once if one of the two raises; nothing more is delivered then, and no resolved ts passes the failure.
        """
        registration = Registration(sub_id, consume, advance, on_error)
        self._worker(sub_id).control(_Event.REGISTER, registration)
        return registration

    def unregister(self, registration: Registration) -> None:
        """End a subscription: neither of its functions is called after this returns. Its quota returns as its callbacks come."""
        self._worker(registration.sub_id).control(_Event.UNREGISTER, registration)

    def enqueue_data(self, registration: Registration, batch: Payload) -> bool:
        """Hand over a batch; blocks while the quota or the queue is full.

        Returns False once the pipeline is closed; then everything that comes for this registration is refused as well.
        """
        if registration.refused:
            return False
        weight = max(1, batch.nbytes)
        began_s = self._clock.monotonic_s()
        granted = self.quota.acquire(weight)
        self.metrics.quota_acquire.observe(self._clock.monotonic_s() - began_s)
        if granted:
            if self._worker(registration.sub_id).put((_Event.DATA, registration, batch, weight)):
                return True
            self._worker(registration.sub_id).give_back(weight)
        registration.refused = True
        return False

    def enqueue_resolved(self, registration: Registration, ts: int) -> bool:
        """Hand over a resolved ts, bound to all data that was handed over before. Zero is ignored. False as for data."""
        return not registration.refused and self._worker(registration.sub_id).put((_Event.RESOLVED, registration, None, ts))

    def close(self) -> None:
        """Stop the workers. What is queued is dropped; callbacks that come later still give their quota back."""
        # All of them first, and the quota only then: whoever is refused a batch finds its worker closed for the resolved ts as well.
        for worker in self._workers:
            worker.begin_close()
        self.quota.close()
        for worker in self._workers:
            worker.join()

    def _worker(self, sub_id: int) -> _Worker:
        return self._workers[sub_id % len(self._workers)]


class _Worker:
    """One thread and its queue."""

    def __init__(self, name: str, queue_size: int, quota: ByteQuota, metrics: SpanPipelineMetrics) -> None:
        self._queue: deque[_Item] = deque()
        self._bounded = 0
        self._queue_size = max(1, queue_size)
        self._quota = quota
        self._metrics = metrics
        self._pending_barriers = metrics.pending_barriers.cell()
        self._closed = False
        self._gone = False
        """Whether the thread has handled its last item. Until then it alone touches the state of its subscriptions."""
        self._idle = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._active: dict[int, Registration] = {}
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: _Item) -> bool:
        """Queue data or a resolved ts; blocks while the queue is full."""
        with self._lock:
            while self._bounded >= self._queue_size and not self._closed:
                self._changed.wait()
            if self._closed:
                return False
            self._bounded += 1
            self._queue.append(item)
            if self._idle:
                self._changed.notify_all()
            return True

    def persisted(self, registration: Registration, seq: int) -> None:
        """Queue a persist callback; never blocks."""
        with self._lock:
            if not self._gone:
                self._queue.append((_Event.PERSISTED, registration, None, seq))
                if self._idle:
                    self._changed.notify_all()
                return
            # The worker is gone; the lock stands in for its thread.
            self._release_persisted(registration, seq)

    def control(self, event: _Event, registration: Registration) -> None:
        """Run a registration change on the worker and wait for it; inline if the caller is the worker itself."""
        if threading.current_thread() is self._thread:
            self._control(event, registration)
            return
        done = threading.Event()
        failure: list[PenstockError] = []
        with self._changed:
            if event is _Event.REGISTER and self._closed:
                registration.status = _Status.CLOSED
                raise PenstockError("CANCELLED", "the span pipeline is closed")
            if self._gone:
                return
            self._queue.append((event, registration, (done, failure), 0))
            self._changed.notify_all()
        done.wait()
        if failure:
            raise failure[0]

    def give_back(self, weight: int) -> None:
        """Return the quota of one batch."""
        self._quota.release(weight)

    def begin_close(self) -> None:
        """Take nothing more; the thread ends behind what it has begun."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the thread's end, unless it is the caller."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._idle = True
                    self._changed.wait()
                self._idle = False
                items, self._queue = self._queue, deque()
                was_full = self._bounded >= self._queue_size
                self._bounded = 0
                if was_full:
                    self._changed.notify_all()
                if self._closed:
                    self._drop(items)
                    self._gone = True
                    return
            for item in items:
                self._handle(item)

    def _drop(self, items: deque[_Item]) -> None:
        """Settle what was queued when the pipeline closed."""
        for event, registration, payload, number in items:
            if event is _Event.DATA:
                self.give_back(number)
            elif event is _Event.PERSISTED:
                self._release_persisted(registration, number)
            elif event in {_Event.REGISTER, _Event.UNREGISTER}:
                if event is _Event.REGISTER:
                    payload[1].append(PenstockError("CANCELLED", "the span pipeline is closed"))
                payload[0].set()
        for registration in self._active.values():
            self._retire(registration, _Status.CLOSED)
        self._active.clear()

    def _handle(self, item: _Item) -> None:
        event, registration, payload, number = item
        if event is _Event.DATA:
            self._on_data(registration, payload, number)
        elif event is _Event.RESOLVED:
            self._on_resolved(registration, number)
        elif event is _Event.PERSISTED:
            self._on_persisted(registration, number)
        else:
            done, failure = payload
            try:
                self._control(event, registration)
            except PenstockError as error:
                failure.append(error)
            finally:
                done.set()

    def _on_data(self, registration: Registration, batch: Any, weight: int) -> None:
        if registration.status is not _Status.ACTIVE:
            self.give_back(weight)
            return
        seq = registration.state.add_data(weight)
        # It only enqueues: it neither changes state nor advances anything.
        finish = functools.partial(self.persisted, registration, seq)
        try:
            wanted = registration.consume(batch, finish)
        except Exception as error:  # noqa: BLE001 - whatever the store raises fails this span and no other
            self._release_persisted(registration, seq)
            self._fail(registration, error)
            return
        if not wanted:
            self._on_persisted(registration, seq)

    def _on_resolved(self, registration: Registration, ts: int) -> None:
        if registration.status is not _Status.ACTIVE or ts == 0:
            return
        if registration.state.add_resolved(ts):
            self._pending_barriers.value += 1
        else:
            self._metrics.barriers_dropped.inc()
        self._flush_resolved_if_ready(registration)

    def _on_persisted(self, registration: Registration, seq: int) -> None:
        self._release_persisted(registration, seq)
        if registration.status is _Status.ACTIVE:
            self._flush_resolved_if_ready(registration)

    def _flush_resolved_if_ready(self, registration: Registration) -> None:
        state = registration.state
        compactions = state.compactions
        ready = state.take_ready()
        if state.compactions != compactions:
            self._metrics.compactions.inc(state.compactions - compactions)
        if not ready:
            return
        self._pending_barriers.value -= len(ready)
        try:
            for ts in ready:
                registration.advance(ts)
        except Exception as error:  # noqa: BLE001 - as in _on_data
            self._fail(registration, error)

    def _release_persisted(self, registration: Registration, seq: int) -> None:
        weight = registration.state.add_persisted(seq)
        if weight is not None:
            self.give_back(weight)

    def _control(self, event: _Event, registration: Registration) -> None:
        known = self._active.get(registration.sub_id)
        if event is _Event.REGISTER:
            if known is not None:
                raise InvariantError(f"subscription {registration.sub_id} is registered twice")
            self._active[registration.sub_id] = registration
            self._metrics.active_subscriptions.inc()
        elif known is registration:
            del self._active[registration.sub_id]
            self._retire(registration, _Status.CLOSED)
            self._metrics.active_subscriptions.dec()

    def _fail(self, registration: Registration, error: Exception) -> None:
        if registration.status is not _Status.ACTIVE:
            return
        self._retire(registration, _Status.FAILED)
        cause = error if isinstance(error, PenstockError) else PenstockError("STORE_FAILED", f"{type(error).__name__}: {error}")
        _log.error("span pipeline: subscription failed", extra={"sub_id": registration.sub_id, "code": cause.code})
        if registration.on_error is not None:
            registration.on_error(cause)

    def _retire(self, registration: Registration, status: _Status) -> None:
        if registration.status is _Status.ACTIVE:
            self._pending_barriers.value -= registration.state.pending_barriers
        registration.status = status
