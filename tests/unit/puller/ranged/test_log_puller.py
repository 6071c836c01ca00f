"""The log puller and its region workers against scripted stores: real gRPC, and a store that says what the test tells it to."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.puller.contract import SpanState
from penstock.puller.ranged.log_puller import LogPuller, LogPullerSettings
from penstock.puller.ranged.region_worker import RegionWorkerSettings
from penstock.puller.span_pipeline import Finish, SpanPipeline, SpanPipelineSettings
from penstock.source.proto import cdc_pb2 as pb
from penstock.source.raw import RAW_SCHEMA, RawBatch
from testing.checks.looked_inside import wait_for_waiters
from testing.twins.change_stream import (
    ScriptedStore,
    ScriptedStream,
    ScriptedUpstream,
    entries,
    initialized,
    range_info,
    region_failed,
    resolved,
    row,
)

WAIT_S = 120
PREWRITE, COMMIT, ROLLBACK, COMMITTED = 1, 2, 3, 4
SPAN = Span(1)
SETTINGS = LogPullerSettings(advance_interval_s=0.0, worker=RegionWorkerSettings(backoff_min_s=0.01, uninitialized_regions_max=2))


class Target:
    """Persists at once, unless a test holds the callbacks."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, bytes, bytes | None]] = []
        self.resolved: list[int] = []
        self.failures: list[PenstockError] = []
        self.held: list[Finish] | None = None
        self.changed = threading.Condition()

    def consume(self, raw: RawBatch, finish: Finish) -> bool:
        with self.changed:
            self.rows.extend((r["commit_ts"], r["key"], r["value"]) for r in raw.entries.to_pylist())
            self.changed.notify_all()
            if self.held is not None:
                self.held.append(finish)
                return True
        finish()
        return True

    def advance(self, ts: int) -> None:
        with self.changed:
            self.resolved.append(ts)
            self.changed.notify_all()

    def fail(self, error: PenstockError) -> None:
        with self.changed:
            self.failures.append(error)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), (self.rows, self.resolved, self.failures)

    def wait_resolved(self, ts: int) -> None:
        self.wait(lambda: bool(self.resolved) and self.resolved[-1] == ts)


class Lab:
    """One upstream, its puller and pipeline."""

    def __init__(self, settings: LogPullerSettings = SETTINGS, quota_bytes: int = 1 << 20) -> None:
        self.upstream = ScriptedUpstream()
        self.pipeline = SpanPipeline(SpanPipelineSettings(workers=2, quota_bytes=quota_bytes), SystemClock())
        self.puller = LogPuller(self.upstream, self.pipeline, settings)
        self.target = Target()

    def subscribe(self, start_ts: int = 10) -> None:
        self.puller.subscribe(SPAN, start_ts, self.target.consume, self.target.advance, self.target.fail)

    def count(self, name: str, **labels: str) -> float:
        return self.puller.metrics.registry.get_sample_value(name, labels) or 0.0

    def close(self) -> None:
        self.pipeline.close()
        self.puller.close()


@pytest.fixture
def store() -> Iterator[ScriptedStore]:
    with ScriptedStore() as scripted:
        yield scripted


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


def start_one(lab: Lab, store: ScriptedStore) -> tuple[ScriptedStream, pb.ChangeDataRequest]:
    """Subscribe one region and let it be initialised."""
    lab.upstream.set_ranges(range_info(7, store))
    lab.subscribe()
    stream = store.next_stream()
    request = stream.next_request()
    stream.send(initialized(request))
    return stream, request


def test_request_carries_range_epoch_checkpoint_and_old_values(lab: Lab, store: ScriptedStore) -> None:
    _, request = start_one(lab, store)
    assert (request.region_id, request.checkpoint_ts, request.region_epoch.version) == (7, 10, 1)
    assert request.extra_op == pb.ChangeDataRequest.ReadOldValue
    assert request.WhichOneof("request") == "register"


def test_rows_and_resolved_arrive_in_order(lab: Lab, store: ScriptedStore) -> None:
    stream, request = start_one(lab, store)
    stream.send(entries(request, row(COMMITTED, b"a", 11, 12), row(PREWRITE, b"b", 13, value=b"x")))
    stream.send(resolved(12, request))
    stream.send(entries(request, row(COMMIT, b"b", 13, 14), row(COMMITTED, b"old", 1, 9)))
    stream.send(resolved(20, request))
    lab.target.wait_resolved(20)
    assert lab.target.rows == [(12, b"a", b"v"), (14, b"b", b"x")]
    assert lab.target.resolved == [12, 20]


def test_resolved_ts_before_initialized_is_ignored(lab: Lab, store: ScriptedStore) -> None:
    lab.upstream.set_ranges(range_info(7, store))
    lab.subscribe()
    stream = store.next_stream()
    request = stream.next_request()
    stream.send(resolved(15, request))
    stream.send(entries(request, row(COMMITTED, b"a", 11, 13)))
    stream.send(initialized(request))
    stream.send(resolved(16, request))
    lab.target.wait_resolved(16)
    assert lab.target.resolved == [16]
    assert lab.target.rows == [(13, b"a", b"v")]


def test_the_slowest_region_holds_the_span_back(lab: Lab, store: ScriptedStore) -> None:
    lab.upstream.set_ranges(range_info(1, store, b"", b"m"), range_info(2, store, b"m"))
    lab.subscribe()
    stream = store.next_stream()
    requests = sorted((stream.next_request(), stream.next_request()), key=lambda r: r.region_id)
    assert [(r.start_key, r.end_key) for r in requests] == [(b"", b"m"), (b"m", b"")]
    for request in requests:
        stream.send(initialized(request))
    stream.send(resolved(30, requests[0]))
    stream.send(resolved(20, *requests))
    lab.target.wait_resolved(20)
    stream.send(resolved(40, requests[1]))
    lab.target.wait_resolved(30)
    assert lab.target.resolved == [20, 30]


def test_uninitialised_regions_are_bounded(lab: Lab, store: ScriptedStore) -> None:
    cuts = [b"", b"b", b"c", b"d", b""]
    lab.upstream.set_ranges(*(range_info(i + 1, store, cuts[i], cuts[i + 1]) for i in range(4)))
    lab.subscribe()
    stream = store.next_stream()
    first = [stream.next_request(), stream.next_request()]
    with pytest.raises(queue.Empty):
        stream.next_request(timeout_s=0.1)
    stream.send(initialized(first[0]))
    third = stream.next_request()
    stream.send(region_failed(first[1], pb.Error(region_not_found=pb.RegionNotFound(region_id=2))))
    seen = {r.region_id for r in (*first, third, stream.next_request())}
    assert seen >= {1, 2, 3} or seen >= {1, 2, 4}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (pb.Error(epoch_not_match=pb.EpochNotMatch()), "EPOCH_NOT_MATCH"),
        (pb.Error(not_leader=pb.NotLeader(region_id=7)), "NOT_LEADER"),
        (pb.Error(region_not_found=pb.RegionNotFound(region_id=7)), "REGION_NOT_FOUND"),
        (pb.Error(congested=pb.Congested(region_id=7)), "CONGESTED"),
        (pb.Error(server_is_busy=pb.ServerIsBusy(reason="x", backoff_ms=1)), "CONGESTED"),
        (pb.Error(), "CONGESTED"),
    ],
)
def test_a_failed_region_is_registered_again_from_its_resolved_ts(lab: Lab, store: ScriptedStore, error: pb.Error, code: str) -> None:
    stream, request = start_one(lab, store)
    stream.send(resolved(25, request))
    stream.send(entries(request, row(COMMITTED, b"a", 26, 27)))
    stream.send(region_failed(request, error))
    again = stream.next_request()
    assert (again.region_id, again.checkpoint_ts, again.request_id) == (7, 25, request.request_id)
    # The scan brings the delivered row again, with one that is new: only the new one passes.
    stream.send(entries(again, row(COMMITTED, b"a", 26, 27), row(COMMITTED, b"b", 26, 27)))
    stream.send(initialized(again))
    stream.send(resolved(30, again))
    lab.target.wait_resolved(30)
    assert lab.target.rows == [(27, b"a", b"v"), (27, b"b", b"v")]
    assert lab.count("penstock_log_puller_errors_total", code=code) == 1
    assert lab.count("penstock_log_puller_replayed_entries_total") == 1


def test_a_split_and_a_merge_leave_no_hole_and_no_repeat(lab: Lab, store: ScriptedStore) -> None:
    stream, request = start_one(lab, store)
    stream.send(entries(request, row(COMMITTED, b"a", 20, 21), row(COMMITTED, b"x", 20, 21)))
    lab.target.wait(lambda: len(lab.target.rows) == 2)
    lab.upstream.set_ranges(range_info(7, store, b"", b"m", version=2), range_info(8, store, b"m", version=2))
    stream.send(region_failed(request, pb.Error(epoch_not_match=pb.EpochNotMatch())))
    left, right = sorted((stream.next_request(), stream.next_request()), key=lambda r: r.region_id)
    for half, key in ((left, b"a"), (right, b"x")):
        stream.send(entries(half, row(COMMITTED, key, 20, 21), row(COMMITTED, key + b"2", 22, 23)))
        stream.send(initialized(half))
    stream.send(resolved(40, left))
    stream.send(resolved(30, right))
    lab.target.wait_resolved(30)
    stream.send(entries(left, row(COMMITTED, b"b", 41, 42)))
    lab.target.wait(lambda: len(lab.target.rows) == 5)
    lab.upstream.set_ranges(range_info(7, store, version=3))
    for half in (left, right):
        stream.send(region_failed(half, pb.Error(epoch_not_match=pb.EpochNotMatch())))
    merged = stream.next_request()
    assert (merged.region_id, merged.checkpoint_ts, merged.start_key, merged.end_key) == (7, 30, b"", b"")
    # From 30 on: the left half had reached 40, so its row at 35 was delivered before; the right half's row at 35 is new.
    stream.send(entries(merged, row(COMMITTED, b"c", 34, 35), row(COMMITTED, b"y", 34, 35), row(COMMITTED, b"b", 41, 42)))
    stream.send(initialized(merged))
    stream.send(resolved(50, merged))
    lab.target.wait_resolved(50)
    assert sorted(lab.target.rows) == [
        (21, b"a", b"v"),
        (21, b"x", b"v"),
        (23, b"a2", b"v"),
        (23, b"x2", b"v"),
        (35, b"y", b"v"),
        (42, b"b", b"v"),
    ]


def test_a_leader_move_goes_to_the_other_store(lab: Lab, store: ScriptedStore) -> None:
    stream, request = start_one(lab, store)
    stream.send(resolved(25, request))
    with ScriptedStore() as other:
        lab.upstream.set_ranges(range_info(7, other))
        stream.send(region_failed(request, pb.Error(not_leader=pb.NotLeader(region_id=7))))
        moved = other.next_stream()
        again = moved.next_request()
        assert again.checkpoint_ts == 25
        # What the old leader still says is stale.
        stream.send(entries(request, row(COMMITTED, b"ghost", 30, 31)))
        stream.send(resolved(99, request))
        moved.send(initialized(again))
        moved.send(resolved(26, again))
        lab.target.wait_resolved(26)
    assert lab.target.rows == []


@pytest.mark.parametrize("how", ["cut", "garbage", "duplicate"])
def test_a_lost_stream_is_opened_again_and_nothing_is_lost(lab: Lab, store: ScriptedStore, how: str) -> None:
    stream, request = start_one(lab, store)
    stream.send(resolved(25, request))
    stream.send(entries(request, row(COMMITTED, b"a", 26, 27), row(PREWRITE, b"p", 28)))
    if how == "cut":
        stream.cut()
    elif how == "garbage":
        stream.send(b"\x0a\xff\xff")
    else:
        stream.send(region_failed(request, pb.Error(duplicate_request=pb.DuplicateRequest(region_id=7))))
    second = store.next_stream()
    again = second.next_request()
    assert again.checkpoint_ts == 25
    second.send(entries(again, row(COMMITTED, b"a", 26, 27), row(COMMITTED, b"p", 28, 29)))
    second.send(initialized(again))
    second.send(resolved(40, again))
    lab.target.wait_resolved(40)
    assert lab.target.rows == [(27, b"a", b"v"), (29, b"p", b"v")]
    assert lab.target.failures == []


def test_a_commit_without_prewrite_restarts_the_region(lab: Lab, store: ScriptedStore) -> None:
    stream, request = start_one(lab, store)
    stream.send(entries(request, row(COMMIT, b"a", 20, 21)))
    stream.send(resolved(30, request))
    # The store still holds the registration, so the region is not asked for again on this stream.
    again = store.next_stream().next_request()
    assert stream.requests.empty()
    assert again.checkpoint_ts == 10
    assert lab.count("penstock_log_puller_errors_total", code="PREWRITE_MISSING") == 1
    assert lab.target.resolved == []


def test_a_row_at_or_below_a_resolved_ts_fails_the_span(lab: Lab, store: ScriptedStore) -> None:
    stream, request = start_one(lab, store)
    stream.send(resolved(25, request))
    lab.target.wait_resolved(25)
    stream.send(entries(request, row(COMMITTED, b"a", 20, 25), row(COMMITTED, b"b", 20, 24), row(COMMITTED, b"c", 20, 26)))
    stream.send(resolved(30, request))
    lab.target.wait(lambda: bool(lab.target.failures))
    assert [e.code for e in lab.target.failures] == ["RESOLVED_TS_VIOLATED"]
    assert lab.count("penstock_log_puller_resolved_violations_total") == 2
    assert lab.target.rows == []
    assert lab.target.resolved == [25]
    progress = lab.puller.progress(SPAN.span_id)
    assert progress is not None
    assert progress.state is SpanState.FAILED


def test_an_incompatible_store_fails_the_span(lab: Lab, store: ScriptedStore) -> None:
    stream, request = start_one(lab, store)
    stream.send(region_failed(request, pb.Error(compatibility=pb.Compatibility(required_version="99"))))
    lab.target.wait(lambda: bool(lab.target.failures))
    assert lab.target.failures[0].code == "UPSTREAM_REFUSED"


def test_unsubscribe_deregisters_and_a_new_subscription_has_a_new_request_id(lab: Lab, store: ScriptedStore) -> None:
    stream, request = start_one(lab, store)
    stream.send(resolved(25, request))
    lab.target.wait_resolved(25)
    lab.puller.unsubscribe(SPAN.span_id)
    stop = stream.next_request()
    assert (stop.WhichOneof("request"), stop.request_id) == ("deregister", request.request_id)
    assert lab.puller.progress(SPAN.span_id) is None
    lab.subscribe(start_ts=25)
    again = stream.next_request()
    assert again.request_id != request.request_id
    stream.send(entries(request, row(COMMITTED, b"ghost", 30, 31)))
    stream.send(initialized(again))
    stream.send(resolved(32, again))
    lab.target.wait_resolved(32)
    assert lab.target.rows == []


def test_an_upstream_that_is_down_at_first_is_asked_again(lab: Lab, store: ScriptedStore) -> None:
    lab.upstream.down = True
    lab.subscribe()
    lab.upstream.set_ranges(range_info(7, store))
    with pytest.raises(queue.Empty):
        store.next_stream(timeout_s=0.1)
    lab.upstream.down = False
    assert store.next_stream().next_request().region_id == 7
    assert lab.upstream.lookups > 1


def test_a_slow_store_stops_the_stream_and_memory_stays_under_the_quota(store: ScriptedStore) -> None:
    lab = Lab(quota_bytes=50_000)
    try:
        lab.target.held = []
        stream, request = start_one(lab, store)
        for i in range(40):
            stream.send(entries(request, row(COMMITTED, b"k%03d" % i, 20 + i, 21 + i, value=b"v" * 10_000)))
        stream.send(resolved(100, request))
        lab.target.wait(lambda: len(lab.target.held or []) >= 4)
        assert lab.pipeline.quota.held_bytes <= 50_000
        assert len(lab.target.rows) < 10
        persisted = 0
        while persisted < 40:
            lab.target.wait(lambda n=persisted: len(lab.target.held or []) > n)
            assert lab.pipeline.quota.held_bytes <= 50_000
            lab.target.held[persisted]()
            persisted += 1
        lab.target.wait_resolved(100)
        assert [r[1] for r in lab.target.rows] == [b"k%03d" % i for i in range(40)]
        assert lab.pipeline.quota.held_bytes == 0
    finally:
        lab.close()


def test_a_silent_stream_is_cut_and_opened_again(store: ScriptedStore) -> None:
    settings = LogPullerSettings(advance_interval_s=0.0, tick_s=0.02, worker=RegionWorkerSettings(backoff_min_s=0.01, silence_max_s=0.2))
    lab = Lab(settings)
    try:
        _, request = start_one(lab, store)
        again = None
        while again is None:
            stream = store.next_stream()
            # On a busy machine a stream may be silent for too long before it was asked for anything.
            with contextlib.suppress(queue.Empty):
                again = stream.next_request(1.0)
        assert (again.region_id, again.checkpoint_ts) == (request.region_id, 10)
    finally:
        lab.close()


def test_a_stream_that_waits_for_a_slow_event_store_is_not_silent(store: ScriptedStore) -> None:
    settings = LogPullerSettings(advance_interval_s=0.0, tick_s=3600.0, worker=RegionWorkerSettings(silence_max_s=0.0))
    lab = Lab(settings, quota_bytes=10)
    try:
        lab.target.held = []
        stream, request = start_one(lab, store)
        for i in range(3):
            stream.send(entries(request, row(COMMITTED, b"k%d" % i, 20 + i, 21 + i)))
        stream.send(resolved(100, request))
        assert wait_for_waiters(lab.pipeline.quota, 1, WAIT_S)
        for worker in lab.puller._workers.values():
            worker.check_silence()
        for i in range(3):
            lab.target.wait(lambda n=i: len(lab.target.held or []) > n)
            lab.target.held[i]()
        lab.target.wait_resolved(100)
        assert store.streams.empty()
    finally:
        lab.close()


def test_the_tick_publishes_regions_and_lag(store: ScriptedStore) -> None:
    lab = Lab(LogPullerSettings(advance_interval_s=0.0, tick_s=3600.0))
    try:
        stream, request = start_one(lab, store)
        stream.send(resolved(25, request))
        lab.target.wait_resolved(25)
        lab.puller._tick()
        assert [lab.count("penstock_log_puller_regions", state=s) for s in ("waiting", "pending", "requested", "initialized")] == [
            0,
            0,
            0,
            1,
        ]
        assert lab.count("penstock_log_puller_lagging_regions") == 1
        assert lab.count("penstock_log_puller_resolved_lag_seconds") > 1000
        assert lab.count("penstock_log_puller_received_bytes_total") > 0
    finally:
        lab.close()


def test_a_region_whose_rows_are_refused_by_a_closing_pipeline_resolves_nothing_behind_them(store: ScriptedStore) -> None:
    """Worker 0 still ends while rows of a span of worker 1 arrive: what the store says behind them must not count."""
    lab = Lab()
    span = next(s for s in map(Span, range(1, 40)) if s.span_id % 2 == 1)
    gate, busy = threading.Event(), threading.Event()

    def hold(_: RawBatch, finish: Finish) -> bool:
        busy.set()
        gate.wait(WAIT_S)
        finish()
        return True

    held = lab.pipeline.register(0, hold, lambda _: None)
    lab.upstream.set_ranges(range_info(7, store))
    lab.puller.subscribe(span, 10, lab.target.consume, lab.target.advance, lab.target.fail)
    stream = store.next_stream()
    request = stream.next_request()
    stream.send(initialized(request))
    stream.send(resolved(12, request))
    lab.target.wait_resolved(12)
    lab.pipeline.enqueue_data(held, RawBatch(0, pa.RecordBatch.from_pylist([], schema=RAW_SCHEMA)))
    assert busy.wait(WAIT_S)
    closing = threading.Thread(target=lab.close)
    closing.start()
    while lab.pipeline.enqueue_resolved(held, 1):
        pass
    stream.send(entries(request, row(COMMITTED, b"a", 13, 14)))
    stream.send(resolved(20, request))
    threading.Event().wait(0.3)
    gate.set()
    closing.join()
    assert (lab.target.rows, lab.target.resolved) == ([], [12])
