"""A target that hangs, refuses, is full or lets nobody write: its feed backs off and says why, all others go on, and nothing is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from penstock.config.server_tree import SupervisorSettings
from penstock.model.clock import SystemClock
from penstock.model.span import Span
from penstock.server.health.feed_watch import FeedWatch
from penstock.server.http.views import feed_summary
from penstock.server.metrics import FeedCollector, render
from penstock.server.verify.verification import open_reader, verify_target
from testing.checks.target_audit import DeliveredChanges
from testing.paths.controlled_server import ControlledServer
from testing.paths.whole_path import WholePath
from testing.servers.buckets.moody_bucket import Mood, MoodyBucket, moody_bucket
from testing.servers.waiting import wait_until

SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "ab")]
WAIT_S = 120


@pytest.fixture
def bucket() -> Iterator[MoodyBucket]:
    with moody_bucket() as opened:
        yield opened


@pytest.fixture
def server(tmp_path: Path, bucket: MoodyBucket) -> Iterator[ControlledServer]:
    """Feed ``g`` delivers to files, feed ``bad`` to the bucket; both have the same tables."""
    path = WholePath(tmp_path, SETUP)
    with contextlib.closing(ControlledServer(path, path.upstream, "dataserver://127.0.0.1:1")) as opened:
        opened.create("d.*")
        opened.create("d.*", name="bad", sink=bucket.uri("feed"))
        # What hangs is to be known for it soon; creating the feed may take as long as it takes.
        opened.control.do("alter", "bad", {"changes": {"sink": {"request-timeout": "2s"}}}, "operator")
        opened.delivers(path.write({"d.a": {0: "x"}, "d.b": {0: "x"}}), "bad")
        try:
            yield opened
        finally:
            bucket.mood = Mood.WELL


def path_of(server: ControlledServer) -> WholePath:
    assert isinstance(server.path, WholePath)
    return server.path


def check_delivered(server: ControlledServer, bucket: MoodyBucket) -> None:
    """Compare both targets with the source; each change is in each of them once."""
    path = path_of(server)
    for uri in (server.out.as_uri(), bucket.uri("feed")):
        reader = open_reader(uri, {})
        verify_target(reader, path.upstream, sorted(path.table(f"d.{t}").table_id for t in "ab")).check()
        assert DeliveredChanges(reader).problems() == []


def shown(server: ControlledServer) -> str:
    """What an operator sees of the feed, in `feed show`, in health and in metrics, where all three say it."""
    clock, registry = SystemClock(), CollectorRegistry()
    watch = FeedWatch("test", server.meta, server.supervisor.status, lambda: "", lambda _: True, SupervisorSettings(), clock)
    watch.look()
    registry.register(FeedCollector(server.meta, clock))
    feed, retry, problem = server.meta.get_feed("bad"), server.meta.retries().get("bad"), watch.problem("bad")
    view = feed_summary(feed, None, clock, retry, problem)
    metrics = render([registry]).decode()
    said = [view["error"] and view["problem"] and view["problem"]["stage"] == view["state"]]
    said.append('penstock_feed_retrying_seconds{feed="bad"}' in metrics if view["retry"] else 'state="failed"} 1.0' in metrics)
    assert watch.problem("g") is None
    return view["error"]["code"] if all(said) else ""


@pytest.mark.parametrize(("mood", "code"), [(Mood.HANGS, "SINK_UNAVAILABLE"), (Mood.REFUSES, "SINK_UNAVAILABLE"), (Mood.FULL, "SINK_FULL")])
def test_a_down_target_harms_nothing_else(server: ControlledServer, bucket: MoodyBucket, mood: Mood, code: str) -> None:
    path = path_of(server)
    bucket.mood = mood
    stood_ts = server.meta.checkpoint_ts("bad")
    written_ts = path.write({"d.a": {1: "while it is down"}, "d.b": {1: "y"}})
    wait_until(lambda: server.meta.retries().get("bad") is not None, "the feed is tried again", WAIT_S)
    wait_until(lambda: shown(server) == code, f"{code} is shown", WAIT_S)
    retries = server.meta.retries()
    wait_until(lambda: server.meta.retries()["bad"].failures > max(2, retries["bad"].failures), "it is tried more than once", WAIT_S)
    # What failed last is what the server itself asked of the target: no task was begun, which would hold an executor.
    assert " .penstock/" in server.meta.get_feed("bad").error_text
    # The other feed and capture go on meanwhile, also with what is written now.
    later_ts = path.write({"d.a": {1: "later", 2: "z"}}, {"d.b": [0]})
    server.delivers(later_ts)
    assert later_ts > written_ts
    for name in ("d.a", "d.b"):
        span_id = Span(path.table(name).table_id).span_id
        path.wait_until("capture goes on", lambda span_id=span_id: path.store.resolved_ts(span_id) >= later_ts)  # type: ignore[misc]
    assert server.meta.checkpoint_ts("bad") < written_ts
    assert server.meta.checkpoint_ts("bad") >= stood_ts
    assert server.meta.get_feed("g").reached_state.value == "running"
    bucket.mood = Mood.WELL
    server.delivers(later_ts, "bad")
    wait_until(lambda: server.meta.get_feed("bad").reached_state.value == "running", "it runs again", WAIT_S)
    assert server.meta.retries() == {}
    check_delivered(server, bucket)


def test_a_target_that_forbids_stops_its_feed_until_somebody_acts(server: ControlledServer, bucket: MoodyBucket) -> None:
    path = path_of(server)
    bucket.mood = Mood.FORBIDS
    written_ts = path.write({"d.a": {1: "while it forbids"}})
    wait_until(lambda: server.meta.get_feed("bad").reached_state.value == "failed", "the feed has failed", WAIT_S)
    assert shown(server) == "SINK_UNWRITABLE"
    server.delivers(written_ts)
    bucket.mood = Mood.WELL
    server.control.do("resume", "bad", {}, "operator")
    server.delivers(written_ts, "bad")
    check_delivered(server, bucket)
