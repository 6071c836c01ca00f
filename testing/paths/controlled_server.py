"""A server's supervisor and handler with real runs, over the services of a whole path, without Spark: windows go on by themselves.

Runs in tests.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from penstock.config.server_tree import SupervisorSettings
from penstock.config.tree import SinkConfig
from penstock.model.clock import SystemClock
from penstock.model.span import Span
from penstock.server.feeds.control import FeedControl
from penstock.server.feeds.creation import FeedCreator
from penstock.server.feeds.runs import SparkFeedRunFactory
from penstock.server.feeds.supervisor import Supervisor
from penstock.server.sources.captured_source import changes_kept_from_ts
from penstock.sink.catalog import open_maintainer
from penstock.sink.contract import SinkMaintainer
from penstock.source.contract import Upstream
from penstock.store.flight.address import FlightAddress
from penstock.target.kind import NO_RUN, SinkRun
from penstock.target.storage import Guard
from testing.paths.feed_path import FeedPath
from testing.servers.waiting import wait_until
from testing.twins.local_jobs import LocalJobs

_SETTINGS = SupervisorSettings(scan_interval_s=0.1, backoff_s=0.1, backoff_max_s=1.0)
_WAIT_S = 120


class ControlledServer:
    """One feed ``g``, which delivers to ``out``; the path's own feed is gone."""

    def __init__(self, path: FeedPath, upstream: Upstream, source: str) -> None:
        self.path = path
        self.upstream = upstream
        self._source = source
        self.meta = path.meta
        self.meta.remove_feed("f")
        self.out = path.root / "out"
        self.out.mkdir()
        self._creator = FeedCreator(self.meta, self, _open_target)
        self.start()

    def start(self) -> None:
        """Begin to look after feeds."""
        path = self.path
        address = FlightAddress(path.flight.location, path.flight.token)
        parts = (LocalJobs(), path.meta, path.meta_url, self.upstream, self._source, path.log, path.store, address, _open_target)
        self.supervisor = Supervisor("test", path.meta, SparkFeedRunFactory(*parts), _SETTINGS, SystemClock(), random.Random(0))
        self.supervisor.start()
        self.control = FeedControl(self.meta, self._creator, self.supervisor)

    def stop(self) -> None:
        """Stop as a server does."""
        self.supervisor.stop()

    def close(self) -> None:
        """Stop, and close the services."""
        self.stop()
        self.path.close()

    def choose(self, given: str | None) -> str:
        """Return the one source."""
        return given or self._source

    @contextlib.contextmanager
    def using(self, _uri: str) -> Iterator[Any]:
        """Give the upstream."""
        yield SimpleNamespace(
            upstream=self.upstream, begin=lambda: None, kept_from_ts=lambda spans: changes_kept_from_ts(self.path.store, spans)
        )

    def create(self, *tables: str, name: str = "g", sink: str = "") -> None:
        """Create the feed, or one of another name with a target of its own."""
        uri = sink or self.out.as_uri()
        self._creator.create({"name": name, "tables": list(tables), "sink": {"uri": uri}, "flush-interval": "100ms"})
        self.supervisor.wake()

    def do(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """Do a verb as the API does."""
        return self.control.do(verb, "g", arguments, "operator")

    def reaches(self, state: str) -> None:
        """Wait for a state."""
        wait_until(lambda: self.meta.get_feed("g").reached_state.value == state, f"the feed is {state}", _WAIT_S)

    def delivers(self, ts: int, name: str = "g") -> None:
        """Wait until everything up to a ts is delivered."""
        wait_until(lambda: self.meta.checkpoint_ts(name) >= ts, f"{ts} is delivered", _WAIT_S)

    def has_tables(self, *names: str) -> Callable[[], bool]:
        """Return what says whether the feed has exactly these tables, each with its state in the target."""

        def has() -> bool:
            live = self.meta.dispatchers("g") or []
            joined = {f"{d.db_name}.{d.table_name}" for d in live if '"with_state":true' not in d.document}
            return joined == set(names) and len(live) == len(names)

        return has

    def captures(self, table_id: int) -> bool:
        """Return whether a table is captured."""
        return Span(table_id).span_id in {s.span_id for s in self.path.log.status()}


def _open_target(sink: SinkConfig, guard: Guard, run: SinkRun = NO_RUN) -> SinkMaintainer:
    return open_maintainer(sink.uri, sink.options, guard, run=run)
