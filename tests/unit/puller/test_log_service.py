"""The log service on a scripted store and an event store in memory: capturing, resuming, failing and pulling again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.puller.log_service import CaptureState, LogService, LogServiceSettings, SpanStatus
from penstock.puller.ranged.log_puller import LogPullerSettings
from penstock.puller.ranged.region_worker import RegionWorkerSettings
from penstock.puller.span_pipeline import SpanPipelineSettings
from penstock.source.proto import cdc_pb2 as pb
from penstock.store.event_store import ColumnarEventStore
from penstock.store.objects.objects import ObjectSpace
from testing.twins.change_stream import (
    TABLE,
    ScriptedStore,
    ScriptedStream,
    ScriptedUpstream,
    entries,
    initialized,
    range_info,
    resolved,
    row,
)
from testing.twins.event_store import MemoryEventStore

COMMITTED = 4
SPAN = Span(1, b"k")
SETTINGS = LogServiceSettings(
    retry_min_s=0.01,
    pipeline=SpanPipelineSettings(workers=2),
    puller=LogPullerSettings(advance_interval_s=0.0, worker=RegionWorkerSettings(backoff_min_s=0.01)),
)


class Lab:
    def __init__(self, store: ScriptedStore) -> None:
        self.upstream = ScriptedUpstream([range_info(7, store)])
        self.events = MemoryEventStore(seed=3)
        self.service = LogService(self.upstream, self.events, SETTINGS)
        self.stream: ScriptedStream
        self._store = store

    def start(self) -> pb.ChangeDataRequest:
        """Start with the DDL span; the scripted ranges serve every table."""
        self.service.start()
        self.stream = self._store.next_stream()
        return self.stream.next_request()

    def capture(self, start_ts: int = 10) -> pb.ChangeDataRequest:
        self.service.ensure_span(SPAN, start_ts)
        request = self.stream.next_request()
        self.stream.send(initialized(request))
        return request

    def status(self) -> SpanStatus:
        return next(s for s in self.service.status() if s.span_id == SPAN.span_id)

    def close(self) -> None:
        self.service.close()
        self.events.close()


@pytest.fixture
def lab() -> Iterator[Lab]:
    with ScriptedStore() as store:
        made = Lab(store)
        yield made
        made.close()


def test_the_ddl_span_is_always_captured(lab: Lab) -> None:
    request = lab.start()
    assert request.checkpoint_ts == 0
    assert [s.span for s in lab.service.status()] == [DDL_SPAN]


def test_rows_are_durable_before_the_resolved_ts_moves(lab: Lab) -> None:
    lab.start()
    lab.events.hold()
    request = lab.capture()
    assert lab.events.schema_history(1) == (TABLE,)
    lab.stream.send(entries(request, row(COMMITTED, b"k1", 20, 21), row(COMMITTED, b"k2", 20, 21, value=b"", op=2)))
    lab.stream.send(resolved(30, request))
    assert not lab.events.wait_resolved(SPAN.span_id, 30, timeout_s=0.2)
    lab.events.release()
    assert lab.events.wait_resolved(SPAN.span_id, 30)
    assert lab.events.rows(SPAN.span_id) == [(21, 0, b"k1"), (21, 2, b"k2")]
    assert lab.events.violations == []
    status = lab.status()
    assert (status.resolved_ts, status.regions, status.state, status.last_error) == (30, 1, CaptureState.PULLING, None)


def test_a_log_that_another_server_may_read_waits_for_a_feed() -> None:
    with ScriptedStore() as store, closing(MemoryEventStore(seed=3)) as events:
        service = LogService(ScriptedUpstream([range_info(7, store)]), events, SETTINGS, waits=True).start()
        assert (service.stands_by, service.status()) == (True, [])
        service.begin()
        assert (service.stands_by, [s.span_id for s in service.status()]) == (False, [DDL_SPAN.span_id])
        service.stand_by()
        assert (service.stands_by, service.status()) == (True, [])
        service.ensure_span(SPAN, 10)
        assert [s.span_id for s in service.status()] == [DDL_SPAN.span_id, SPAN.span_id]
        service.close()


def test_ensure_span_is_idempotent_and_remove_span_stops(lab: Lab) -> None:
    lab.start()
    request = lab.capture()
    assert lab.service.ensure_span(SPAN, 5) == SPAN.span_id
    assert len(lab.service.status()) == 2
    lab.service.remove_span(SPAN.span_id)
    lab.service.remove_span(SPAN.span_id)
    stop = lab.stream.next_request()
    assert (stop.WhichOneof("request"), stop.request_id) == ("deregister", request.request_id)
    # Captured again, it goes on where the store is.
    lab.events.advance_resolved_ts(SPAN.span_id, 44)
    assert lab.capture(start_ts=10).checkpoint_ts == 44


def test_a_failed_span_is_pulled_again_without_a_gap_and_without_repeats(lab: Lab) -> None:
    lab.start()
    request = lab.capture()
    lab.stream.send(entries(request, row(COMMITTED, b"k1", 20, 21)))
    lab.stream.send(resolved(21, request))
    assert lab.events.wait_resolved(SPAN.span_id, 21)
    lab.stream.send(entries(request, row(COMMITTED, b"k2", 22, 23)))
    lab.stream.send(resolved(22, request))
    assert lab.events.wait_resolved(SPAN.span_id, 22)
    lab.events.fail_appends(PenstockError("STORE_FAILED", "disk full"))
    lab.stream.send(entries(request, row(COMMITTED, b"k3", 24, 25)))
    lab.stream.send(resolved(30, request))
    stop = lab.stream.next_request()
    assert stop.WhichOneof("request") == "deregister"
    again = lab.stream.next_request()
    assert again.checkpoint_ts == 22
    assert lab.events.resolved_ts(SPAN.span_id) == 22
    lab.stream.send(entries(again, row(COMMITTED, b"k2", 22, 23), row(COMMITTED, b"k3", 24, 25)))
    lab.stream.send(initialized(again))
    lab.stream.send(resolved(40, again))
    assert lab.events.wait_resolved(SPAN.span_id, 40)
    assert lab.events.rows(SPAN.span_id) == [(21, 0, b"k1"), (23, 0, b"k2"), (25, 0, b"k3")]
    assert (lab.events.violations, lab.events.repeats) == ([], 1), "the store knows what it holds"
    status = lab.status()
    assert (status.state, status.failures) == (CaptureState.PULLING, 1)
    assert status.last_error is not None
    assert status.last_error.code == "STORE_FAILED"


def test_a_violation_pulls_the_span_again(lab: Lab) -> None:
    lab.start()
    request = lab.capture()
    lab.stream.send(resolved(30, request))
    lab.stream.send(entries(request, row(COMMITTED, b"k1", 20, 30)))
    assert lab.stream.next_request().WhichOneof("request") == "deregister"
    assert lab.stream.next_request().checkpoint_ts in {10, 30}
    error = lab.status().last_error
    assert error is not None
    assert error.code == "RESOLVED_TS_VIOLATED"


def test_close_may_come_at_any_time_and_twice(lab: Lab) -> None:
    lab.start()
    lab.events.hold()
    request = lab.capture()
    for i in range(20):
        lab.stream.send(entries(request, row(COMMITTED, b"k%d" % i, 20, 21 + i)))
    closer = threading.Thread(target=lab.service.close)
    closer.start()
    closer.join(120)
    assert not closer.is_alive()
    lab.service.close()
    with pytest.raises(PenstockError, match="CANCELLED"):
        lab.service.ensure_span(Span(9), 1)


def test_a_service_that_never_started_closes(lab: Lab) -> None:
    lab.service.close()


class LookedAt(ColumnarEventStore):
    """A store on shared storage during whose take-over somebody asks how the capture stands."""

    def register_span(self, span_id: int, span: Span, start_ts: int) -> int:
        self.seen = [(s.span_id, s.resolved_ts) for s in self.service.status()]
        return super().register_span(span_id, span, start_ts)

    service: LogService
    seen: list[tuple[int, int]]


def test_a_store_that_stands_by_is_taken_by_the_first_span_and_can_be_looked_at_meanwhile(tmp_path: Path) -> None:
    objects = ObjectSpace((tmp_path / "shared").as_uri())
    with ScriptedStore() as scripted, LookedAt(tmp_path / "disk", objects=objects, shared=True) as store:
        service = store.service = LogService(ScriptedUpstream([range_info(7, scripted)]), store, SETTINGS)
        service.start()
        assert (service.status(), objects.list_names("")) == ([], [])
        service.ensure_span(SPAN, 10)
        assert [s.span_id for s in service.status()] == [DDL_SPAN.span_id, SPAN.span_id]
        assert store.seen == [(DDL_SPAN.span_id, 0), (SPAN.span_id, 10)]
        assert len(objects.list_names("owner/")) == 1
        # Another server takes it; a feed that begins here takes it back, with nothing of before.
        with ColumnarEventStore(tmp_path / "other", objects=objects, shared=True) as other:
            other.own()
        with pytest.raises(PenstockError, match="FENCED"):
            store.flush(SPAN.span_id)
        service.begin()
        assert [s.span_id for s in service.status()] == [DDL_SPAN.span_id]
        assert len(objects.list_names("owner/")) == 3
        service.close()
