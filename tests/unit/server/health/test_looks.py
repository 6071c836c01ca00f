from __future__ import annotations

from pathlib import Path

import pytest

from penstock.feed.spark.load import SparkLoad
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN
from penstock.puller.log_service import CaptureState, SpanStatus
from penstock.server.health.looks import CaptureLook, SparkLook
from testing.twins.clock import SimulatedClock


def span(number: int, resolved_ts: int, code: str = "", *, waits: bool = False) -> SpanStatus:
    error = PenstockError(code, "x://u:hunter2@h") if code else None
    state = CaptureState.RETRYING if waits else CaptureState.PULLING
    return SpanStatus(number, DDL_SPAN, resolved_ts, 1, 0, state, 1 if code else 0, error)


def test_the_upstream_is_judged_by_what_captures_met(tmp_path: Path) -> None:
    spans = [span(1, 10), span(2, 10)]
    look = CaptureLook(lambda: spans, tmp_path)
    assert look.upstream().ok
    spans[0] = span(1, 10, "UPSTREAM_UNREACHABLE", waits=True)
    found = look.upstream()
    assert (found.ok, found.facts, "hunter2" in found.detail) == (False, {"spans": 2, "failing": 1}, False)
    # The next attempt is under way, which says nothing yet.
    spans[0] = span(1, 10, "UPSTREAM_UNREACHABLE")
    assert not look.upstream().ok
    spans[0] = span(1, 11, "UPSTREAM_UNREACHABLE")
    assert look.upstream().ok


def test_a_log_that_breaks_off_again_and_again_is_noticed_though_its_spans_are_not_given_up(tmp_path: Path) -> None:
    spans = [span(1, 10)]
    look = CaptureLook(lambda: spans, tmp_path)
    assert look.upstream().ok
    spans[0] = span(1, 11, "UPSTREAM_UNREACHABLE")
    assert look.upstream().ok, "it has moved since"
    assert look.upstream().ok, "the same error says nothing new"
    for _ in range(2):
        spans[0] = span(1, 11, "UPSTREAM_UNREACHABLE")
        assert not look.upstream().ok
    old = spans[0]
    spans[0] = span(1, 12)
    assert look.upstream().ok
    spans[0] = SpanStatus(1, DDL_SPAN, 13, 1, 0, CaptureState.PULLING, 1, old.last_error)
    assert [look.upstream().ok for _ in range(3)] == [True] * 3, "an error of long ago"


@pytest.mark.parametrize(("code", "upstream", "store"), [("STORE_FAILED", True, False), ("UPSTREAM_REFUSED", False, True)])
def test_an_error_is_the_upstreams_or_the_stores(tmp_path: Path, code: str, upstream: bool, store: bool) -> None:
    look = CaptureLook(lambda: [span(1, 10, code, waits=True)], tmp_path)
    assert (look.upstream().ok, look.store().ok) == (upstream, store)
    assert look.store().facts["free_bytes"] > 0


def test_a_job_without_an_executor_is_noticed_as_soon_as_spark_warns(tmp_path: Path) -> None:
    clock, load, lost = SimulatedClock(), [SparkLoad(0, 1, (7,))], [None]
    look = SparkLook(lambda: lost[0], lambda: load[0], 60.0, clock)
    assert look.look().ok
    clock.advance(15)
    found = look.look()
    assert (found.ok, found.facts) == (False, {"executors": 0, "jobs": 1, "jobs_waiting": 1})
    assert look.waits() == found.detail == "1 jobs wait for an executor for 15 s, 0 are granted"
    load[0] = SparkLoad(1, 1)
    assert (look.look().ok, look.waits()) == (True, "")


def test_a_job_that_waits_for_others_has_more_time(tmp_path: Path) -> None:
    clock, load = SimulatedClock(), [SparkLoad(2, 3, (1,))]
    look = SparkLook(lambda: None, lambda: load[0], 60.0, clock)
    look.look()
    clock.advance(59)
    assert look.look().ok
    # Another one waits now: it began later.
    load[0] = SparkLoad(2, 3, (2,))
    clock.advance(2)
    assert look.look().ok
    clock.advance(60)
    assert not look.look().ok


def test_executors_elsewhere_that_cannot_read_changes_are_noticed() -> None:
    load = SparkLoad(3, 0, (), ("10.0.0.8", "10.0.0.9"))
    clock = SimulatedClock()
    assert SparkLook(lambda: None, lambda: load, 60.0, clock).look().ok
    assert SparkLook(lambda: None, lambda: SparkLoad(3, 0), 60.0, clock, here_only=True).look().ok
    found = SparkLook(lambda: None, lambda: load, 60.0, clock, here_only=True).look()
    assert not found.ok
    assert "10.0.0.8, 10.0.0.9" in found.detail
    assert "flight-host" in found.hint


def test_spark_that_ended() -> None:
    def asked() -> SparkLoad:
        raise AssertionError("a JVM that has ended is not asked")

    found = SparkLook(lambda: -9, asked, 60.0, SimulatedClock()).look()
    assert (found.ok, found.detail) == (False, "Spark's JVM ended with -9")
