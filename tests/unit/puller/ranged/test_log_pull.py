"""Logs that are pulled from a store that gives no stream: what it says wrongly is not believed, and nothing is lost or repeated."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.puller.ranged.log_pull import LogPullSettings
from penstock.puller.ranged.log_puller import LogPuller, LogPullerSettings
from penstock.puller.ranged.region_worker import RegionWorkerSettings
from penstock.puller.span_pipeline import Finish, SpanPipeline, SpanPipelineSettings
from penstock.source.proto import cdc_pb2
from penstock.source.proto import dataserver_pb2 as pb
from penstock.source.raw import RawBatch
from testing.servers.waiting import wait_until
from testing.twins.change_stream import ScriptedUpstream, range_info

WAIT_S = 60
SETTINGS = LogPullerSettings(
    advance_interval_s=0.0,
    retry_min_s=0.001,
    worker=RegionWorkerSettings(backoff_min_s=0.001, backoff_max_s=0.002),
    pull=LogPullSettings(interval_s=0.002, stream_again_s=3600),
)


class PullStore:
    """A store that refuses the stream and answers pulls by a script; None stands for what was said last, without rows."""

    def __init__(self, *pages: pb.CdcPullLogResponse, pulls: bool = True) -> None:
        self.asked: list[tuple[int, int]] = []
        self._pages: queue.Queue[pb.CdcPullLogResponse] = queue.Queue()
        for page in pages:
            self._pages.put(page)
        self._server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        feed = grpc.stream_stream_rpc_method_handler(_refuse)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("cdcpb.ChangeData", {"EventFeed": feed}),))
        calls = {
            "CdcRegister": _unary(lambda _: pb.CdcRegisterResponse(init_snapshot_version=1), pb.CdcRegisterRequest),
            "CdcPullLog": _unary(self._pull, pb.CdcPullLogRequest),
        }
        if pulls:
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("penstock.dataserver.DataServer", calls),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> PullStore:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=None).wait()

    def _pull(self, request: pb.CdcPullLogRequest) -> pb.CdcPullLogResponse:
        assert request.as_stream
        assert (request.range_epoch.conf_ver, request.range_epoch.version) == (1, 1)
        try:
            page = self._pages.get_nowait()
        except queue.Empty:
            return pb.CdcPullLogResponse(
                current_log_index=request.last_log_index, previous_log_index=request.last_log_index, resolved_ts=20
            )
        self.asked.append((int(request.last_log_index), int(request.start_ts)))
        return page


def _refuse(_requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    context.abort(grpc.StatusCode.UNIMPLEMENTED, "no stream here")
    yield b""


def _unary(answer: Callable[[Any], Any], request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        lambda message, _context: answer(message),
        request_deserializer=request.FromString,
        response_serializer=lambda m: m.SerializeToString(),
    )


def page(*commits: int, index: int, resolved: int, previous: int = 0, region: int = 7) -> pb.CdcPullLogResponse:
    rows = [
        cdc_pb2.Event.Row(
            type=cdc_pb2.Event.COMMITTED, op_type=cdc_pb2.Event.Row.PUT, start_ts=ts - 1, commit_ts=ts, key=b"k%d" % ts, value=b"v"
        )
        for ts in commits
    ]
    event = cdc_pb2.Event(region_id=region, entries=cdc_pb2.Event.Entries(entries=rows))
    payload = cdc_pb2.ChangeDataEvent(events=[event]).SerializeToString() if rows else b""
    return pb.CdcPullLogResponse(current_log_index=index, resolved_ts=resolved, previous_log_index=previous, change_data_event=payload)


class Target:
    def __init__(self) -> None:
        self.rows: list[int] = []
        self.resolved = 0
        self.failures: list[PenstockError] = []
        self.changed = threading.Condition()

    def consume(self, raw: RawBatch, finish: Finish) -> bool:
        with self.changed:
            self.rows.extend(raw.entries.column("commit_ts").to_pylist())
        finish()
        return True

    def advance(self, ts: int) -> None:
        with self.changed:
            self.resolved = ts
            self.changed.notify_all()

    def fail(self, error: PenstockError) -> None:
        with self.changed:
            self.failures.append(error)
            self.changed.notify_all()


def pulled(store: PullStore, done: Callable[[Target], bool]) -> Target:
    upstream, target = ScriptedUpstream(), Target()
    upstream.set_ranges(range_info(7, SimpleNamespace(address=store.address)))
    pipeline = SpanPipeline(SpanPipelineSettings(workers=1), SystemClock())
    puller = LogPuller(upstream, pipeline, SETTINGS)
    try:
        puller.subscribe(Span(1), 10, target.consume, target.advance, target.fail)
        with target.changed:
            assert target.changed.wait_for(lambda: done(target), WAIT_S), (target.rows, target.resolved, target.failures, store.asked)
    finally:
        pipeline.close()
        puller.close()
    return target


WRONG = {
    "gap": page(14, index=9, resolved=14, previous=8),
    "index goes back": page(index=2, resolved=13, previous=5),
    "resolved ts goes back": page(14, index=9, resolved=11, previous=5),
    "order": page(15, 14, index=9, resolved=15, previous=5),
    "covered": page(12, index=9, resolved=15, previous=5),
    "region": page(14, index=9, resolved=15, previous=5, region=8),
    "epoch": pb.CdcPullLogResponse(error=pb.CdcError(code="EPOCH_NOT_MATCH", message="moved")),
    "bytes": pb.CdcPullLogResponse(current_log_index=9, previous_log_index=5, resolved_ts=15, change_data_event=b"\x0a\xff"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_page_that_breaks_a_rule_is_asked_for_again_from_the_resolved_ts(wrong: pb.CdcPullLogResponse) -> None:
    first, second = page(11, 12, index=5, resolved=12), page(13, 14, 15, index=9, resolved=15)
    with PullStore(first, wrong, second) as store:
        target = pulled(store, lambda t: t.resolved == 20)
    assert (target.rows, target.failures) == ([11, 12, 13, 14, 15], [])
    assert store.asked == [(0, 10), (5, 10), (0, 12)]


def test_rows_above_the_resolved_ts_that_come_again_are_delivered_once() -> None:
    first, again = page(11, 12, 13, index=5, resolved=11), page(12, 13, 14, index=9, resolved=14)
    with PullStore(first, WRONG["epoch"], again) as store:
        target = pulled(store, lambda t: t.resolved == 20)
    assert (target.rows, target.failures) == ([11, 12, 13, 14], [])
    assert store.asked == [(0, 10), (5, 10), (0, 11)]


def test_a_store_that_gives_neither_is_tried_on() -> None:
    with PullStore(pulls=False) as store:
        upstream, target = ScriptedUpstream(), Target()
        upstream.set_ranges(range_info(7, SimpleNamespace(address=store.address)))
        pipeline = SpanPipeline(SpanPipelineSettings(workers=1), SystemClock())
        puller = LogPuller(upstream, pipeline, SETTINGS)
        try:
            puller.subscribe(Span(1), 10, target.consume, target.advance, target.fail)
            count = puller.metrics.registry.get_sample_value
            wait_until(
                lambda: (count("penstock_log_puller_errors_total", {"code": "UPSTREAM_UNREACHABLE"}) or 0) > 6, "it is tried", WAIT_S
            )
        finally:
            pipeline.close()
            puller.close()
    assert target.failures == []
