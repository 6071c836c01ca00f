"""The region worker of one store: a long-lived change stream, and the regions that are fed through it.

Owns the stream and the map from (request id, region id) to feed states. Two loops: the *send loop* takes region requests and stop-span
tasks from the request cache, which lets only so many regions be in their incremental scan at once; the *receive loop* scans
messages and dispatches entries, resolved ts and errors to the event processor. Messages for a feed that is no longer there are counted
and dropped. When the stream ends, for whatever reason, all its regions go back to the puller to be looked up again, and the worker
connects anew with bounded backoff when there is something to ask for. Runs in the log service.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from penstock.model.backoff import Backoff
from penstock.model.clock import Clock
from penstock.model.errors import InvariantError, PenstockError
from penstock.puller.metrics import LogPullerMetrics
from penstock.puller.ranged.event_processor import RegionEventProcessor
from penstock.puller.ranged.matching.matcher import Entries
from penstock.puller.ranged.matching.wire_scan import KIND_ENTRIES, KIND_ERROR, KIND_RESOLVED, ScannedMessage, scan_message
from penstock.puller.ranged.region_errors import StreamRefusedError, region_error
from penstock.puller.ranged.region_feed_state import RegionFeedState
from penstock.puller.ranged.request_cache import RequestCache
from penstock.puller.ranged.subscribed_span import SubscribedSpan
from penstock.source.proto import cdc_pb2

_log = logging.getLogger(__name__)

EVENT_FEED = "/cdcpb.ChangeData/EventFeed"
_VERSION = "8.5.0"
"""The protocol generation that we speak; a TiKV store refuses older ones."""
_REFUSALS = frozenset({"UNIMPLEMENTED", "PERMISSION_DENIED", "UNAUTHENTICATED"})
"""With what a store ends a stream that it does not give."""

Channels = Callable[[str], grpc.Channel]


@dataclass(frozen=True)
class RegionWorkerSettings:
    """Flow control, reconnecting and the watchdog of a stream."""

    uninitialized_regions_max: int = 64
    pending_regions_max: int = 4096
    backoff_min_s: float = 0.05
    backoff_max_s: float = 5.0
    silence_max_s: float = 30.0
    """A stream with regions that says nothing for so long is cut."""
    message_bytes_max: int = 256 << 20


def open_channel(settings: RegionWorkerSettings) -> Channels:
    """Return a function that opens a plain channel to a store."""
    limit = ("grpc.max_receive_message_length", settings.message_bytes_max)
    options = [limit, ("grpc.enable_retries", 0), ("grpc.enable_http_proxy", 0)]
    return lambda address: grpc.insecure_channel(address, options=options)


class RegionWorker:
    """The worker of one store. Thread safe."""

    def __init__(
        self,
        store_addr: str,
        settings: RegionWorkerSettings,
        clock: Clock,
        rng: random.Random,
        processor: RegionEventProcessor,
        metrics: LogPullerMetrics,
        channels: Channels | None = None,
    ) -> None:
        self.store_addr = store_addr
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._processor = processor
        self._metrics = metrics
        self._entries = metrics.entries.cell()
        self._received_bytes = metrics.received_bytes.cell()
        self._channels = channels or open_channel(settings)
        self._cache = RequestCache(settings.pending_regions_max, settings.uninitialized_regions_max)
        self._stop = threading.Event()
        self._call_lock = threading.Lock()
        self._call: Any = None
        self._heard_at_s = clock.monotonic_s()
        self._handling = False
        self._thread = threading.Thread(target=self._run, name=f"region-worker-{store_addr}", daemon=True)
        self._thread.start()

    def release_slot(self, state: RegionFeedState) -> None:
        """Let the next region be requested; called when a feed is initialised or over."""
        self._cache.release_slot(state)

    def add_region(self, state: RegionFeedState) -> bool:
        """Queue a region request; False if the cache is full or the worker closed (then nothing happens to the region)."""
        return self._cache.add(state)

    def cut_stream(self, state: RegionFeedState) -> None:
        """End the stream of a feed; all its regions go back to be looked up again. Nothing is sent on it after this returns.

        A newer stream is left alone: what is wrong with an older one is no fault of it.
        """
        self._cut(state.stream)

    def stop_span(self, span: SubscribedSpan) -> None:
        """Deregister all regions of a subscription and stop their feeds."""
        for state in self._cache.stop_span(span.request_id):
            state.stop()

    def regions(self) -> int:
        """Return how many regions are requested or fed."""
        return self._cache.regions()

    def regions_by_state(self) -> dict[str, int]:
        """Return how many regions are pending, requested and initialised."""
        return self._cache.count_by_state()

    def check_silence(self) -> None:
        """Cut the stream if it should have spoken and did not; a half-open connection looks like an idle one otherwise."""
        if self._handling:
            # It is we who do not listen: the event store is slow, and the stream waits for it, as it should.
            return
        silent_s = self._clock.monotonic_s() - self._heard_at_s
        if silent_s > self._settings.silence_max_s and self._cache.regions():
            _log.warning("region worker: silent stream cut", extra={"store": self.store_addr, "silent_s": round(silent_s, 1)})
            self._cut(self._cache.stream)

    def close(self) -> None:
        """End the stream and the thread. Regions are not given back."""
        self._stop.set()
        self._cache.close()
        self._cancel()
        self._thread.join()

    def _cut(self, stream: int) -> None:
        if self._cache.is_open(stream):
            self._cache.close_stream(stream)
            self._cancel()

    def _cancel(self) -> None:
        with self._call_lock:
            if self._call is not None:
                self._call.cancel()

    def _run(self) -> None:
        failures = 0
        backoff = Backoff(self._settings.backoff_min_s, self._settings.backoff_max_s)
        while self._cache.wait_for_work():
            heard_before_s = self._heard_at_s
            try:
                self._run_stream()
                error = PenstockError("UPSTREAM_UNREACHABLE", f"store {self.store_addr} closed the stream")
            except PenstockError as own:
                error = own
            except grpc.RpcError as lost:
                refused = _status(lost) in _REFUSALS
                error = (StreamRefusedError if refused else PenstockError)(
                    "UPSTREAM_UNREACHABLE", f"store {self.store_addr}: {_status(lost)}"
                )
            except Exception as defect:  # noqa: BLE001 - the worker must give its regions back whatever happened
                _log.exception("region worker: unexpected failure", extra={"store": self.store_addr})
                error = InvariantError(f"{type(defect).__name__}: {defect}")
            if self._stop.is_set():
                return
            failures = 0 if self._heard_at_s != heard_before_s else failures + 1
            self._metrics.errors.labels(error.code).inc()
            _log.warning("region worker: stream ended", extra={"store": self.store_addr, "code": error.code, "regions": self.regions()})
            for state in self._cache.take_all():
                self._processor.dispatch_error(state, error)
            self._clock.wait(self._stop, backoff.pause_s(failures + 1, self._rng))

    def _run_stream(self) -> None:
        """Run one stream to its end."""
        # The silence of the stream before is none of this one, which may be cut as soon as it is open.
        self._heard_at_s = self._clock.monotonic_s()
        stream = self._cache.open_stream()
        channel = self._channels(self.store_addr)
        try:
            feed = channel.stream_stream(
                EVENT_FEED, request_serializer=cdc_pb2.ChangeDataRequest.SerializeToString, response_deserializer=None
            )
            with self._call_lock:
                if self._stop.is_set():
                    return
                self._call = feed(self._requests(stream), metadata=(("features", "batch-resolved-ts"),))
                if not self._cache.is_open(stream):
                    # It was cut before there was a call to cancel.
                    self._call.cancel()
            self._heard_at_s = self._clock.monotonic_s()
            for payload in self._call:
                self._heard_at_s = self._clock.monotonic_s()
                self._handling = True
                try:
                    self._receive(payload)
                finally:
                    self._heard_at_s = self._clock.monotonic_s()
                    self._handling = False
        finally:
            self._cache.close_stream(stream)
            self._cancel()
            with self._call_lock:
                self._call = None
            channel.close()

    def _requests(self, stream: int) -> Iterator[cdc_pb2.ChangeDataRequest]:
        """Run the send loop; gRPC runs it in a thread of its own, until the stream is closed."""
        while True:
            task = self._cache.take(stream)
            if task is None:
                return
            yield _register(task) if isinstance(task, RegionFeedState) else _deregister(task)

    def _receive(self, payload: bytes) -> None:
        self._received_bytes.value += len(payload)
        message = scan_message(payload)
        if len(message.events):
            events = message.events.tolist()
            share = max(1, len(payload) // len(events))
            for index, event in enumerate(events):
                self._dispatch_event(message, index, event, share)
        if len(message.batch_regions):
            self._dispatch_resolved_batch(message)

    def _dispatch_event(self, message: ScannedMessage, index: int, event: list[int], nbytes: int) -> None:
        region_id, request_id, kind, resolved_ts, _, _, low, high = event
        state = self._cache.find(request_id, region_id)
        if state is None:
            self._metrics.stale_messages.inc()
            return
        if kind == KIND_ENTRIES:
            self._entries.value += high - low
            self._processor.dispatch_entries(state, Entries.of(message, low, high), nbytes)
        elif kind == KIND_RESOLVED:
            self._processor.dispatch_resolved([state], resolved_ts)
        elif kind == KIND_ERROR:
            error = region_error(message.error_bytes(index), region_id)
            if error.kind is error.kind.BUG:
                # The store's idea of our registrations differs from ours: only a new stream makes them agree again.
                raise error
            self._cache.remove(state)
            self._processor.dispatch_error(state, error)

    def _dispatch_resolved_batch(self, message: ScannedMessage) -> None:
        states, missing = self._cache.find_many(message.batch_request_id, message.batch_regions.tolist())
        if missing:
            self._metrics.stale_messages.inc(missing)
        if states:
            self._processor.dispatch_resolved(states, message.batch_ts)


def _register(state: RegionFeedState) -> cdc_pb2.ChangeDataRequest:
    info, piece = state.info, state.piece
    return cdc_pb2.ChangeDataRequest(
        header=cdc_pb2.Header(ticdc_version=_VERSION),
        region_id=info.range_id,
        region_epoch=cdc_pb2.RegionEpoch(conf_ver=info.epoch.conf_ver, version=info.epoch.version),
        checkpoint_ts=piece.resolved_ts,
        start_key=piece.start_key,
        end_key=piece.end_key,
        request_id=state.span.request_id,
        extra_op=cdc_pb2.ChangeDataRequest.ReadOldValue,
        register=cdc_pb2.ChangeDataRequest.Register(),
    )


def _deregister(request_id: int) -> cdc_pb2.ChangeDataRequest:
    return cdc_pb2.ChangeDataRequest(
        header=cdc_pb2.Header(ticdc_version=_VERSION), request_id=request_id, deregister=cdc_pb2.ChangeDataRequest.Deregister()
    )


def _status(error: grpc.RpcError) -> str:
    code = error.code() if hasattr(error, "code") else None
    return str(code.name) if code is not None else type(error).__name__
