"""Pulling the logs of ranges page by page, where a store refuses their change stream.

Owns, for one store, the ranges that are pulled and where in its log each stands. Rows go the way of a stream's: as entries of the region,
behind an INITIALIZED, then the resolved ts that the page promises; so order, resolved ts and rows that come again are the event
processor's to judge. Invariants: a page begins where the one before it ended, neither the log's index nor its resolved ts goes back, and
every request carries the range's epoch; a store that breaks one of these ends the feed of the range, which begins again at its resolved
ts. After a while a range is given back, so that its stream is tried again. Runs in the log service.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from penstock.model.clock import Clock
from penstock.model.errors import InvariantError, PenstockError
from penstock.puller.metrics import LogPullerMetrics
from penstock.puller.ranged.event_processor import RegionEventProcessor
from penstock.puller.ranged.matching.matcher import Entries
from penstock.puller.ranged.matching.wire_scan import COMMIT_TS, scan_message
from penstock.puller.ranged.region_errors import PullRefusedError
from penstock.puller.ranged.region_feed_state import RegionFeedState
from penstock.puller.ranged.subscribed_span import SubscribedSpan
from penstock.source.proto import cdc_pb2
from penstock.source.proto import dataserver_pb2 as pb

_log = logging.getLogger(__name__)

REGISTER, PULL_LOG = "/penstock.dataserver.DataServer/CdcRegister", "/penstock.dataserver.DataServer/CdcPullLog"
_SUBSCRIBER = "penstock"
_REFUSALS = frozenset({grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED})


@dataclass(frozen=True)
class LogPullSettings:
    """How logs are pulled."""

    interval_s: float = 0.2
    """How long a range whose log is read waits for more."""
    stream_again_s: float = 60.0
    """After how long the stream is tried again."""
    page_rows: int = 16_384
    call_timeout_s: float = 30.0


class _Place:
    """Where one range stands in its log."""

    __slots__ = ("begun_s", "index", "resolved_ts", "start_ts", "started")

    def __init__(self, start_ts: int, now_s: float) -> None:
        self.start_ts = start_ts
        self.begun_s = now_s
        self.index = 0
        self.resolved_ts = 0
        self.started = False


class LogPullWorker:
    """Pulls ranges of one store, one after the other. Implements ``FeedOwner``. Thread safe."""

    def __init__(
        self,
        store_addr: str,
        settings: LogPullSettings,
        clock: Clock,
        processor: RegionEventProcessor,
        metrics: LogPullerMetrics,
        channels: Callable[[str], grpc.Channel],
    ) -> None:
        self.store_addr = store_addr
        self._settings = settings
        self._clock = clock
        self._processor = processor
        self._entries = metrics.entries.cell()
        self._received_bytes = metrics.received_bytes.cell()
        self._channels = channels
        self._lock = threading.Lock()
        self._places: dict[RegionFeedState, _Place] = {}
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log-pull-{store_addr}", daemon=True)
        self._thread.start()

    def add_region(self, state: RegionFeedState) -> bool:
        """Begin to pull a range from its resolved ts on; False once closed."""
        with self._lock:
            if self._closed.is_set():
                return False
            self._places[state] = _Place(state.piece.resolved_ts, self._clock.monotonic_s())
        self._wake.set()
        return True

    def release_slot(self, state: RegionFeedState) -> None:
        """Do nothing: ranges are pulled one after the other."""

    def cut_stream(self, state: RegionFeedState) -> None:
        """Pull a range no more."""
        self._take(state)

    def stop_span(self, span: SubscribedSpan) -> None:
        """Pull the ranges of a subscription no more."""
        for state in self._states():
            if state.span is span:
                self._take(state)
                state.stop()

    def regions(self) -> int:
        """Return how many ranges are pulled."""
        with self._lock:
            return len(self._places)

    def close(self) -> None:
        """End the thread. Ranges are not given back."""
        self._closed.set()
        self._wake.set()
        self._thread.join()

    def _states(self) -> list[RegionFeedState]:
        with self._lock:
            return list(self._places)

    def _take(self, state: RegionFeedState) -> bool:
        with self._lock:
            return self._places.pop(state, None) is not None

    def _run(self) -> None:
        channel: grpc.Channel | None = None
        try:
            while not self._closed.is_set():
                self._wake.clear()
                states = self._states()
                if states and channel is None:
                    channel = self._channels(self.store_addr)
                more = [self._pull(channel, state) for state in states if channel is not None]
                if not any(more):
                    self._clock.wait(self._wake, self._settings.interval_s)
        finally:
            if channel is not None:
                channel.close()

    def _pull(self, channel: Any, state: RegionFeedState) -> bool:
        """Pull one page of a range; return whether there may be more."""
        with self._lock:
            place = self._places.get(state)
        if place is None or self._closed.is_set():
            return False
        if not state.live:
            self._take(state)
            return False
        try:
            if self._clock.monotonic_s() - place.begun_s > self._settings.stream_again_s:
                raise PenstockError("CANCELLED", f"region {state.region_id}: its stream is tried again")
            return self._page(channel, state, place)
        except PenstockError as own:
            error = own
        except grpc.RpcError as lost:
            error = self._failure(lost)
        except Exception as defect:  # noqa: BLE001 - the worker must give its ranges back whatever happened
            _log.exception("log pull: unexpected failure", extra={"store": self.store_addr})
            error = InvariantError(f"{type(defect).__name__}: {defect}")
        if self._take(state):
            self._processor.dispatch_error(state, error)
        return False

    def _failure(self, lost: grpc.RpcError) -> PenstockError:
        code = lost.code() if hasattr(lost, "code") else None
        name = code.name if code is not None else type(lost).__name__
        if code in _REFUSALS:
            return PullRefusedError(f"store {self.store_addr} gives no log either: {name}")
        return PenstockError("UPSTREAM_UNREACHABLE", f"store {self.store_addr}: {name}")

    def _page(self, channel: Any, state: RegionFeedState, place: _Place) -> bool:
        epoch = cdc_pb2.RegionEpoch(conf_ver=state.info.epoch.conf_ver, version=state.info.epoch.version)
        named: dict[str, Any] = {"range_id": state.region_id, "range_epoch": epoch, "subscriber_name": _SUBSCRIBER}
        if not place.started:
            _check(self._call(channel, REGISTER, pb.CdcRegisterRequest(**named), pb.CdcRegisterResponse).error)
            self._hand_over(state, _initialized(state.region_id))
            place.started = True
        request = pb.CdcPullLogRequest(
            **named, last_log_index=place.index, limit_rows=self._settings.page_rows, start_ts=place.start_ts, as_stream=True
        )
        answer = self._call(channel, PULL_LOG, request, pb.CdcPullLogResponse)
        _check(answer.error)
        _check_order(state, place, answer)
        if answer.change_data_event:
            self._hand_over(state, answer.change_data_event, max(place.start_ts, place.resolved_ts))
        more = int(answer.current_log_index) != place.index
        place.index, place.resolved_ts = int(answer.current_log_index), int(answer.resolved_ts)
        self._processor.dispatch_resolved([state], place.resolved_ts)
        return more

    def _call(self, channel: Any, method: str, request: Any, answer: Any) -> Any:
        call = channel.unary_unary(method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString)
        return call(request, timeout=self._settings.call_timeout_s)

    def _hand_over(self, state: RegionFeedState, payload: bytes, above_ts: int | None = None) -> None:
        """Give the entries of a message to the event processor; they must be of this range, in order, above a ts."""
        message = scan_message(payload)
        if len(message.events) != 1 or int(message.events[0][0]) != state.region_id:
            raise PenstockError("DECODE_FAILED", f"a page of region {state.region_id} has entries of another")
        if above_ts is not None:
            commit_ts = message.rows[:, COMMIT_TS].view(np.uint64)
            if len(commit_ts) and (int(commit_ts[0]) <= above_ts or bool((commit_ts[1:] < commit_ts[:-1]).any())):
                raise PenstockError("DECODE_FAILED", f"a page of region {state.region_id} is not in the order of commits")
        self._received_bytes.value += len(payload)
        self._entries.value += len(message.rows)
        self._processor.dispatch_entries(state, Entries.of(message, 0, len(message.rows)), len(payload))


def _check(error: pb.CdcError) -> None:
    if error.code:
        raise PenstockError(error.code, error.message)


def _check_order(state: RegionFeedState, place: _Place, answer: pb.CdcPullLogResponse) -> None:
    if int(answer.previous_log_index) != place.index:
        raise PenstockError(
            "DECODE_FAILED", f"a page of region {state.region_id} begins at {answer.previous_log_index}, not at {place.index}"
        )
    if int(answer.current_log_index) < place.index or int(answer.resolved_ts) < place.resolved_ts:
        raise PenstockError("DECODE_FAILED", f"the log of region {state.region_id} goes back")


def _initialized(region_id: int) -> bytes:
    row = cdc_pb2.Event.Row(type=cdc_pb2.Event.INITIALIZED)
    event = cdc_pb2.Event(region_id=region_id, entries=cdc_pb2.Event.Entries(entries=[row]))
    payload: bytes = cdc_pb2.ChangeDataEvent(events=[event]).SerializeToString()
    return payload
