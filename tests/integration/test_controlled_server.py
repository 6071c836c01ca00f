"""A supervisor with real runs, without Spark: feeds are paused, resumed, altered and ended while their windows go on."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.config.server_tree import SupervisorSettings
from penstock.config.tree import SinkConfig
from penstock.model.clock import SystemClock
from penstock.model.span import DDL_SPAN, Span
from penstock.server.feeds.control import FeedControl
from penstock.server.feeds.creation import FeedCreator
from penstock.server.feeds.runs import SparkFeedRunFactory
from penstock.server.feeds.supervisor import Supervisor
from penstock.server.verify.verification import open_reader, verify_target
from penstock.sink.catalog import open_maintainer
from penstock.sink.contract import SinkMaintainer
from penstock.store.flight.address import FlightAddress
from penstock.target.storage import Guard
from testing.checks.target_audit import numbering_problems
from testing.paths.whole_path import WholePath
from testing.servers.waiting import wait_until
from testing.twins.local_jobs import LocalJobs

SETUP = ["CREATE DATABASE d", *(f"CREATE TABLE d.{t} (id INT PRIMARY KEY, v VARCHAR(40))" for t in "abc")]
SETTINGS = SupervisorSettings(scan_interval_s=0.1, backoff_s=0.1)
SOURCE = "dataserver://127.0.0.1:1"


class Lab:
    """One server's supervisor, handler and services; the feed ``g`` delivers to ``out``."""

    def __init__(self, root: Path) -> None:
        self.path = WholePath(root, SETUP)
        self.path.meta.remove_feed("f")
        self.meta = self.path.meta
        self.out = root / "out"
        self.out.mkdir()
        self.supervisor = self._start()
        self.control = FeedControl(self.meta, FeedCreator(self.meta, self, open_target), self.supervisor)

    def _start(self) -> Supervisor:
        path = self.path
        address = FlightAddress(path.flight.location, path.flight.token)
        runs = SparkFeedRunFactory(LocalJobs(), path.meta, path.meta_url, path.upstream, SOURCE, path.log, path.store, address, open_target)
        supervisor = Supervisor("test", path.meta, runs, SETTINGS, SystemClock(), random.Random(0))
        supervisor.start()
        return supervisor

    def restart(self) -> None:
        """End the supervisor, as a server that stops, and start another one."""
        self.supervisor.stop()
        self.supervisor = self._start()

    def close(self) -> None:
        self.supervisor.stop()
        self.path.close()

    def choose(self, given: str | None) -> str:
        return given or SOURCE

    @contextlib.contextmanager
    def using(self, _uri: str) -> Iterator[Any]:
        yield SimpleNamespace(upstream=self.path.upstream)

    def create(self, *tables: str) -> None:
        tree = {"name": "g", "tables": list(tables), "sink": {"uri": self.out.as_uri()}, "flush-interval": "100ms"}
        FeedCreator(self.meta, self, open_target).create(tree)
        self.supervisor.wake()

    def do(self, verb: str, **arguments: Any) -> dict[str, Any]:
        return self.control.do(verb, "g", arguments, "operator")

    def reaches(self, state: str) -> None:
        wait_until(lambda: self.meta.get_feed("g").reached_state.value == state, f"the feed is {state}", 60)

    def delivered(self, ts: int) -> None:
        wait_until(lambda: self.meta.checkpoint_ts("g") >= ts, f"{ts} is delivered", 60)

    def verify(self, *names: str) -> None:
        ids = sorted(self.path.table(name).table_id for name in names)
        verify_target(open_reader(self.out.as_uri(), {}), self.path.upstream, ids).check()
        assert numbering_problems(self.out) == []

    def joined(self, *names: str) -> Callable[[], bool]:
        def all_there() -> bool:
            live = self.meta.dispatchers("g") or []
            return {f"{d.db_name}.{d.table_name}" for d in live if '"with_state":true' not in d.document} == set(names)

        return all_there


def open_target(sink: SinkConfig, guard: Guard) -> SinkMaintainer:
    return open_maintainer(sink.uri, sink.options, guard)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with contextlib.closing(Lab(tmp_path)) as opened:
        yield opened


def test_a_feed_is_paused_resumed_and_ended(lab: Lab) -> None:
    lab.create("d.a", "d.b")
    lab.delivered(lab.path.write({"d.a": {1: "x"}}))
    assert lab.do("pause")["changed"]
    stood_ts = lab.meta.checkpoint_ts("g")
    written_ts = lab.path.write({"d.a": {2: "y"}, "d.b": {2: "y"}})
    lab.reaches("paused")
    wait_until(lambda: lab.meta.get_feed("g").owner == "", "it is given free", 60)
    lab.restart()
    lab.path.wait_until("it is captured meanwhile", lambda: lab.path.store.resolved_ts(span_id(lab, "d.a")) >= written_ts)
    assert (lab.meta.checkpoint_ts("g"), lab.supervisor.keeps("g")) == (stood_ts, False)
    lab.control = FeedControl(lab.meta, FeedCreator(lab.meta, lab, open_target), lab.supervisor)
    lab.do("resume")
    lab.delivered(written_ts)
    lab.reaches("running")
    lab.verify("d.a", "d.b")
    # While it runs its checkpoint may be beyond any ts that is taken now.
    lab.do("pause")
    lab.reaches("paused")
    end_ts = lab.path.upstream.current_ts()
    lab.do("alter", changes={"until-ts": end_ts})
    lab.do("resume")
    lab.reaches("finished")
    assert lab.meta.checkpoint_ts("g") == end_ts
    wait_until(lambda: {s.span_id for s in lab.path.log.status()} <= {DDL_SPAN.span_id}, "nothing is captured for it", 60)
    lab.do("cancel")
    lab.reaches("cancelled")


def span_id(lab: Lab, name: str) -> int:
    return Span(lab.path.table(name).table_id).span_id


def test_tables_come_and_go_while_the_feed_runs(lab: Lab) -> None:
    lab.create("d.a", "d.b")
    lab.path.write({"d.a": {1: "x"}, "d.b": {1: "goes", 2: "stays"}, "d.c": {1: "before"}})
    lab.delivered(lab.path.upstream.current_ts())
    lab.do("alter", changes={"tables": ["d.a", "d.c"]})
    wait_until(lab.joined("d.a", "d.c"), "c is in, and b is out", 60)
    wait_until(lambda: span_id(lab, "d.b") not in {s.span_id for s in lab.path.log.status()}, "b is not captured any more", 60)
    lab.path.write({"d.b": {3: "while out"}}, {"d.b": [1]})
    lab.do("alter", changes={"tables": ["d.*"]})
    wait_until(lab.joined("d.a", "d.b", "d.c"), "all are in", 60)
    lab.delivered(lab.path.write({"d.b": {4: "after"}}))
    lab.verify("d.a", "d.b", "d.c")
    assert [e.what for e in lab.meta.lives.history("g") if e.what.startswith("alter")] == ["alter", "altered", "alter", "altered"]
