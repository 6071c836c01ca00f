"""Who holds which part, and what becomes of it when somebody is lost."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from penstock.feed.receivers.board import PartBoard
from penstock.feed.receivers.messages import Orders, PartReport, Report, SpanReport
from penstock.feed.receivers.settings import ReceiverSettings
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.puller.log_service import CaptureState
from penstock.store.stats import SpanStats
from testing.twins.clock import SimulatedClock

SPANS = [Span(n) for n in range(1, 9)]
LOST_S = ReceiverSettings().lost_s


class Cluster:
    """Receivers that do what they are told, between two reports."""

    def __init__(self, receivers: int = 2) -> None:
        self.clock = SimulatedClock()
        self.board = PartBoard(ReceiverSettings(receivers), self.clock, lambda span_id: 1_000)
        self.runs = {slot: self.board.begin_run(slot) for slot in range(receivers)}
        self.told: dict[str, Orders] = {}

    def report(self, name: str, resolved_ts: int = 5, **given: object) -> Orders:
        """Report what the orders before said; a name begins with its slot."""
        slot = int(name[0])
        held = self.told.get(name, Orders()).parts
        parts = tuple(
            PartReport(o.part, f"grpc://{name}:{o.part}", tuple(self.said(s.span, resolved_ts) for s in o.spans), **given) for o in held
        )
        self.told[name] = self.board.receive(Report("", name, slot, self.runs[slot], "h", 1, parts))
        return self.told[name]

    def settle(self, *names: str) -> dict[str, set[int]]:
        """Let everybody report until nothing changes; return the tables that each captures."""
        for _ in range(20):
            before = dict(self.told)
            for name in names:
                self.report(name)
            if before == self.told:
                break
        return {name: {s.span.table_id for part in self.told[name].parts for s in part.spans} for name in names}

    @staticmethod
    def said(span: Span, resolved_ts: int) -> SpanReport:
        return SpanReport(SpanStats(span.span_id, span.table_id, resolved_ts, 0, 0, 0, base_ts=0))

    def ensure(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self.board.ensure(span)


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.ensure(SPANS)
    return cluster


def test_all_spans_are_divided_evenly(cluster: Cluster) -> None:
    held = cluster.settle("0a", "1a")
    assert sorted(held["0a"] | held["1a"]) == [s.table_id for s in SPANS]
    assert len(held["0a"]) == len(held["1a"]) == 4
    assert {cluster.board.resolved_ts(s.span_id) for s in SPANS} == {5}
    assert {order.pinned_ts for part in cluster.told["0a"].parts for order in part.spans} == {1_000}
    assert sorted(cluster.board.span_ids()) == sorted(s.span_id for s in SPANS)


def test_the_first_receiver_waits_a_moment_for_the_others(cluster: Cluster) -> None:
    assert cluster.report("0a").parts == ()
    cluster.clock.advance(ReceiverSettings().settle_s)
    assert len(cluster.report("0a").parts) == 4


def test_a_silent_receiver_is_lost_after_a_minute_and_its_parts_go_to_the_others(cluster: Cluster) -> None:
    held = cluster.settle("0a", "1a")
    cluster.clock.advance(LOST_S)
    cluster.report("1a")
    cluster.board.look()
    assert cluster.settle("1a")["1a"] == held["1a"], "a minute is not over"
    cluster.clock.advance(0.1)
    cluster.board.look()
    assert cluster.settle("1a")["1a"] == held["0a"] | held["1a"]
    assert cluster.report("0a").stop, "what comes too late is told to end"
    assert cluster.board.location(SPANS[0].span_id).startswith("grpc://1a")


def test_a_task_that_is_attempted_again_takes_the_place_of_the_attempt_before(cluster: Cluster) -> None:
    cluster.settle("0a", "1a")
    held = cluster.settle("0b", "1a")
    assert len(held["0b"]) == len(held["1a"]) == 4
    assert cluster.report("0a").stop
    assert not cluster.report("0b").stop


def test_the_others_take_the_parts_of_a_job_that_ended_and_give_some_back_when_it_comes_again(cluster: Cluster) -> None:
    held = cluster.settle("0a", "1a")
    cluster.board.end_run(0, PenstockError("WORKER_LOST", "gone"))
    assert cluster.settle("1a")["1a"] == held["0a"] | held["1a"]
    assert cluster.report("0a").stop, "the job is over"
    cluster.runs[0] = cluster.board.begin_run(0)
    held = cluster.settle("0b", "1a")
    assert len(held["0b"]) == len(held["1a"]) == 4


def test_a_part_has_no_second_holder_before_the_first_has_closed_it(cluster: Cluster) -> None:
    cluster.settle("0a", "1a")
    cluster.board.end_run(0, None)
    cluster.settle("1a")
    cluster.runs[0] = cluster.board.begin_run(0)
    slow = cluster.told["1a"]
    for _ in range(3):
        cluster.told["1a"] = slow  # It says that it still has all of them.
        assert cluster.report("0b").parts == ()
        assert len(cluster.report("1a").parts) == 3
    assert cluster.report("1a").parts == cluster.told["1a"].parts
    assert len(cluster.report("0b").parts) == 1


def test_nothing_is_known_of_spans_without_a_receiver(cluster: Cluster) -> None:
    span_id = SPANS[0].span_id
    for ask in (cluster.board.resolved_ts, lambda s: cluster.board.parts_of([s])):
        with pytest.raises(PenstockError, match="SPAN_UNKNOWN"):
            ask(span_id)
    assert {s.state for s in cluster.board.status()} == {CaptureState.PULLING}
    cluster.settle("0a", "1a")
    for slot in (0, 1):
        cluster.board.end_run(slot, PenstockError("WORKER_LOST", "no core"))
    with pytest.raises(PenstockError, match="SPAN_UNKNOWN"):
        cluster.board.resolved_ts(span_id)
    with pytest.raises(PenstockError, match="STORE_UNREACHABLE"):
        cluster.board.location(span_id)
    assert cluster.board.base_ts(span_id) is None
    assert {(s.state, str(s.last_error)) for s in cluster.board.status()} == {(CaptureState.RETRYING, "[WORKER_LOST] no core")}


def test_a_span_stays_where_something_of_it_is_stored(cluster: Cluster) -> None:
    fresh = Cluster()
    fresh.board.place({SPANS[0].span_id: 3, SPANS[1].span_id: 3, SPANS[2].span_id: 9})
    fresh.ensure(SPANS[:4])
    fresh.settle("0a", "1a")
    homes = {span_id: part for part, spans in fresh.board.parts_of([s.span_id for s in SPANS[:4]]).items() for span_id in spans}
    assert [homes[s.span_id] for s in SPANS[:3]] == [3, 3, 9]
    assert homes[SPANS[3].span_id] == 0, "a new one goes where the fewest are"


def test_a_span_that_is_removed_is_ordered_no_more(cluster: Cluster) -> None:
    cluster.settle("0a", "1a")
    for span in SPANS[1:]:
        cluster.board.remove(span.span_id)
    held = cluster.settle("0a", "1a")
    assert held["0a"] | held["1a"] == {SPANS[0].table_id}
    assert sum(len(cluster.told[name].parts) for name in ("0a", "1a")) == 1, "a part without spans is held by nobody"


def test_a_part_that_somebody_took_is_opened_again_unless_that_is_another_server(cluster: Cluster) -> None:
    cluster.settle("0a", "1a")
    report = Report("", "0a", 0, cluster.runs[0], "h", 1, (PartReport(cluster.told["0a"].parts[0].part, "x", is_taken_away=True),))
    assert len(cluster.board.receive(report, reopen=False).parts) == 2
    assert len(cluster.board.receive(report).parts) == 1, "it is closed first"
    assert len(cluster.report("0a").parts) == 1
    cluster.told["0a"] = Orders()
    assert len(cluster.report("0a").parts) == 2, "and comes back to whoever has fewer"


def test_parts_that_another_server_took_are_closed_until_they_are_wanted(cluster: Cluster) -> None:
    cluster.settle("0a", "1a")
    cluster.board.let_go()
    assert cluster.settle("0a", "1a") == {"0a": set(), "1a": set()}
    assert cluster.board.status() == []
    cluster.ensure(SPANS)
    assert sum(map(len, cluster.settle("0a", "1a").values())) == len(SPANS)


def test_everybody_is_told_to_stop(cluster: Cluster) -> None:
    cluster.settle("0a", "1a")
    assert cluster.board.has_receiver(0)
    cluster.board.stop()
    assert cluster.report("0a").stop
    assert cluster.report("1b").stop
