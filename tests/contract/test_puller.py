"""What the log service relies on in a puller, run for every source with the puller that the catalog opens for it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.model.batch import Op
from penstock.model.clock import SystemClock
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.model.table import TableSchema
from penstock.puller.catalog import PullerParts, open_puller
from penstock.puller.contract import Puller, SpanState
from penstock.puller.logged.single_log_puller import SingleLogPullerSettings
from penstock.puller.metrics import LogPullerMetrics
from penstock.puller.ranged.log_puller import LogPullerSettings
from penstock.puller.span_capture import Decode
from penstock.puller.span_pipeline import Finish, SpanPipeline, SpanPipelineSettings
from penstock.source.contract import Capability
from testing.twins.single_log import MemoryJournal

TableOf = Callable[..., TableSchema]
WAIT_S = 120.0


def parts(journal: MemoryJournal | None) -> PullerParts:
    return PullerParts(
        LogPullerSettings(advance_interval_s=0.01),
        SingleLogPullerSettings(retry_min_s=0.01, advance_interval_s=0.01, gather_s=0.001),
        SystemClock(),
        random.Random(1),
        LogPullerMetrics(),
        lambda versions: None,
        journal=journal,
    )


class Receiver:
    """A span's consumer that keeps what it gets."""

    def __init__(self, decode: Decode, span: Span, start_ts: int) -> None:
        self.rows: list[tuple[int, Op, int]] = []
        self.resolved = [start_ts]
        self.errors: list[PenstockError] = []
        self.refuse: PenstockError | None = None
        self.late: list[str] = []
        self._changed = threading.Condition()
        self._decode = decode
        self._span = span

    def consume(self, payload: Any, finish: Finish) -> bool:
        if self.refuse is not None:
            raise self.refuse
        with self._changed:
            for change in self._decode(self._span.span_id, payload).changes:
                assert change.header.span_id == self._span.span_id
                if change.header.min_ts <= self.resolved[-1]:
                    self.late.append(f"a row at {change.header.min_ts}, resolved {self.resolved[-1]}")
                self.rows += [(r["_ts"], Op(r["_op"]), r["c1"]) for r in change.records.to_pylist()]
        finish()
        return True

    def advance(self, ts: int) -> None:
        with self._changed:
            self.resolved.append(ts)
            self._changed.notify_all()

    def failed(self, error: PenstockError) -> None:
        with self._changed:
            self.errors.append(error)
            self._changed.notify_all()

    def wait(self, ts: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.resolved[-1] >= ts, WAIT_S), (self.resolved[-1], ts, self.errors)

    def wait_failed(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.errors), WAIT_S)

    def came(self) -> list[int]:
        return sorted(i for _, op, i in self.rows if op is Op.INSERT)


class Lab:
    """A source with a table, its puller, and the DDL span, which the log service always pulls."""

    def __init__(self, source: Any, table: TableSchema) -> None:
        self.source = source
        self.table = table
        self.pipeline = SpanPipeline(SpanPipelineSettings(workers=1), SystemClock())
        self.puller: Puller
        self.puller, self.decode = open_puller(source.upstream, self.pipeline, parts(MemoryJournal()))
        self.ddls = self.subscribe(DDL_SPAN, 0)

    def subscribe(self, span: Span, start_ts: int) -> Receiver:
        receiver = Receiver(self.decode, span, start_ts)
        if span != DDL_SPAN:
            self.puller.keep_schemas(self.source.upstream.schema_history(span.table_id))
        assert self.puller.subscribe(span, start_ts, receiver.consume, receiver.advance, receiver.failed) == span.span_id
        return receiver

    def close(self) -> None:
        self.pipeline.close()
        self.puller.close()


@pytest.fixture
def lab(source: Any, table_of: TableOf) -> Iterator[Lab]:
    made = Lab(source, table_of(source))
    yield made
    made.close()


def test_a_span_gets_every_row_above_its_start_once_and_then_its_resolved_ts(lab: Lab) -> None:
    lab.source.put([100])
    start_ts = lab.puller.settled_ts()
    lab.source.put([1, 2])
    receiver = lab.subscribe(Span(lab.table.table_id), start_ts)
    lab.source.put([3])
    lab.source.put([4], "other")
    lab.source.delete([1])
    receiver.wait(lab.puller.settled_ts())
    assert receiver.came() == [1, 2, 3]
    assert [i for _, op, i in receiver.rows if op is Op.DELETE] == [1]
    assert min(ts for ts, _, _ in receiver.rows) > start_ts
    assert receiver.late == []
    assert receiver.resolved == sorted(set(receiver.resolved))
    progress = lab.puller.progress(Span(lab.table.table_id).span_id)
    assert progress is not None
    assert (progress.state, progress.regions_waiting, progress.last_error) == (SpanState.RUNNING, 0, None)


def test_spans_of_a_table_share_its_rows_by_key_and_one_may_join_further_back(lab: Lab) -> None:
    start_ts = lab.puller.settled_ts()
    lab.source.put(range(20))
    border = [k for b in lab.source.upstream.read_now(Span(lab.table.table_id)) for k in b.records.column("_key").to_pylist()][7]
    high = lab.subscribe(Span(lab.table.table_id, border), start_ts)
    high.wait(lab.puller.settled_ts())
    low = lab.subscribe(Span(lab.table.table_id, b"", border), start_ts)
    lab.source.delete([2, 12])
    end_ts = lab.puller.settled_ts()
    for receiver, inside, gone in ((low, range(7), [2]), (high, range(7, 20), [12])):
        receiver.wait(end_ts)
        assert receiver.came() == list(inside)
        assert [i for _, op, i in receiver.rows if op is Op.DELETE] == gone
        assert receiver.late == []


def test_a_span_that_is_refused_fails_once_and_can_be_pulled_again(lab: Lab) -> None:
    span = Span(lab.table.table_id)
    start_ts = lab.puller.settled_ts()
    receiver = lab.subscribe(span, start_ts)
    receiver.refuse = PenstockError("STORE_FAILED", "disk full")
    lab.source.put([1])
    receiver.wait_failed()
    lab.source.put([2])
    progress = lab.puller.progress(span.span_id)
    assert progress is not None
    assert progress.state is SpanState.FAILED
    assert progress.last_error is not None
    assert progress.last_error.code == "STORE_FAILED"
    lab.puller.unsubscribe(span.span_id)
    assert [e.code for e in receiver.errors] == ["STORE_FAILED"]
    again = lab.subscribe(span, receiver.resolved[-1])
    again.wait(lab.puller.settled_ts())
    assert again.came() == [1, 2]


def test_nothing_comes_to_a_span_that_left(lab: Lab) -> None:
    span = Span(lab.table.table_id)
    receiver = lab.subscribe(span, lab.puller.settled_ts())
    lab.source.put([1])
    receiver.wait(lab.puller.settled_ts())
    lab.puller.unsubscribe(span.span_id)
    lab.puller.unsubscribe(span.span_id)
    resolved_ts = receiver.resolved[-1]
    lab.source.put([2])
    lab.puller.settled_ts()
    assert (receiver.came(), receiver.resolved[-1]) == ([1], resolved_ts)
    assert lab.puller.progress(span.span_id) is None


def test_a_span_is_subscribed_once_and_to_nobody_who_is_closed(lab: Lab) -> None:
    span = Span(lab.table.table_id)
    lab.subscribe(span, lab.puller.settled_ts())
    with pytest.raises(InvariantError):
        lab.subscribe(span, 1)
    lab.close()
    with pytest.raises(PenstockError, match="CANCELLED"):
        lab.subscribe(Span(lab.table.table_id, b"\xff"), 1)


@pytest.mark.parametrize("source", ["dataserver", "memory log", "postgres"], indirect=True)
def test_a_puller_goes_on_at_the_end_after_what_it_needs_is_gone(lab: Lab) -> None:
    """As the log service does after a purge. A server that keeps its logs by its own rules is tried in ``test_one_log_feed.py``."""
    lab.puller.settled_ts()
    lab.source.put([1])
    before_ts = lab.puller.settled_ts()
    lab.puller.release()
    if Capability.LOG in lab.source.upstream.capabilities:
        lab.ddls.wait_failed()
        assert [e.code for e in lab.ddls.errors] == ["LOG_PURGED"]
    lab.puller.unsubscribe(DDL_SPAN.span_id)
    start_ts = lab.puller.begin_again(0).ts
    assert start_ts > before_ts
    lab.subscribe(DDL_SPAN, start_ts)
    lab.source.put([2])
    receiver = lab.subscribe(Span(lab.table.table_id), start_ts)
    receiver.wait(lab.puller.settled_ts())
    assert receiver.came() == [2]


def test_what_was_made_at_the_upstream_is_given_back_twice(lab: Lab) -> None:
    lab.puller.settled_ts()
    lab.source.put([1])
    lab.puller.settled_ts()
    lab.puller.unsubscribe(DDL_SPAN.span_id)
    lab.puller.release()
    lab.puller.release()


@pytest.mark.parametrize("source", ["memory log"], indirect=True)
def test_an_upstream_must_declare_how_its_changes_come(source: Any) -> None:
    pipeline = SpanPipeline(SpanPipelineSettings(workers=1), SystemClock())
    with pytest.raises(InvariantError, match="journal"):
        open_puller(source.upstream, pipeline, parts(None))
    source.upstream.capabilities = Capability(0)
    with pytest.raises(InvariantError, match="neither"):
        open_puller(source.upstream, pipeline, parts(MemoryJournal()))
    pipeline.close()
