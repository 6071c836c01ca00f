"""A whole path whose feed is controlled as an operator does: the verbs of the server's handler, and what a server does between two runs.

Everything but Spark is real: the handler, the meta database, the adoption of an alteration, planner, sink and commit. Runs in tests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from penstock.config.tree import SinkConfig
from penstock.feed.filters.row_queries import RowQueries
from penstock.feed.settings import FeedSettings
from penstock.feed.window.assignment import FeedContext
from penstock.meta.records import NOBODY, FeedRecord, RequestedState, ServerRecord
from penstock.model.errors import PenstockError
from penstock.server.doubts.table_control import TableControl
from penstock.server.feeds.alteration import Adoption
from penstock.server.feeds.control import FeedControl
from penstock.server.feeds.creation import FeedCreator, FeedDocument
from penstock.server.feeds.ports import RunStatus
from penstock.server.sources.captured_source import changes_kept_from_ts
from penstock.sink.catalog import open_maintainer
from penstock.sink.contract import SinkMaintainer
from penstock.target.kind import SinkRun
from penstock.target.storage import Guard, unfenced
from testing.paths.local_feed import LocalFeed
from testing.paths.whole_path import WholePath
from testing.twins.local_jobs import LocalJobs

_HALTS = frozenset({"FEED_PAUSED", "FEED_FINISHED"})
_ANOTHER_RUN = frozenset({"FEED_ALTERED", "FENCED"})
_RUNS_MAX = 10


class Attentive:
    """A supervisor that is told to look and need not. Implements ``Liveness``."""

    owner = "test"
    draining = False

    def __init__(self) -> None:
        self.servers: list[ServerRecord] = []

    def wake(self) -> None:
        """Do nothing: the path looks when it is fenced."""

    def retry_now(self, name: str) -> None:
        """Do nothing."""

    def drain(self, draining: bool) -> None:
        """Do nothing."""

    def companions(self, feed: FeedRecord) -> list[str]:
        """Return the feed alone."""
        return [feed.name]

    def status(self, name: str) -> RunStatus | None:
        """Return that nothing is known."""
        return None


class ControlledPath(WholePath):
    """One feed ``f`` with a document. ``do`` is the server's handler."""

    def __init__(
        self,
        root: Path,
        ddls: Sequence[str],
        *,
        tables: Sequence[str] = ("d.*",),
        settings: FeedSettings | None = None,
        splits: Mapping[str, Sequence[int]] | None = None,
        queries: RowQueries | None = None,
        target_uri: str = "",
        **more: Any,
    ) -> None:
        """Create it; ``queries`` evaluate the feed's expressions, ``more`` is of its configuration."""
        self._queries = queries
        spans = 2 if splits else 1
        super().__init__(root, ddls, tables=tables, settings=settings, splits=splits, spans_per_table=spans, target_uri=target_uri)
        config = {"name": "f", "tables": list(tables), "sink": {"uri": self.target_uri}} | more
        config |= {"spans-per-table": spans} if splits else {}
        document = FeedDocument(config, "dataserver://127.0.0.1:1", self.dispatchers, self.snapshot_ts)
        self.meta.change_config(self.meta.get_feed("f"), document.to_json(), "create", NOBODY, "", "")
        self.control = FeedControl(self.meta, FeedCreator(self.meta, _OneSource(self), _open_target, viewer=queries), Attentive())
        self.table_control = TableControl(self.meta, lambda _: None, self.control)
        self.begin_run()

    def do(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """Do a verb as the API does."""
        return self.control.do(verb, "f", arguments, "operator")

    def do_table(self, verb: str, table: str) -> dict[str, Any]:
        """Do a verb on a table as the API does."""
        return self.table_control.do(verb, "f", table, {}, "operator")

    def begin_run(self, owner: str = "test") -> None:
        """Do what a server does that claims the feed: let an alteration hold if it can, and make a run of what holds."""
        self.epoch = self.meta.claim("f", owner, 3_600_000) or 0
        adoption = Adoption(self.meta, self.upstream, lambda feed, config, epoch: _open_for(SinkRun(feed.name, epoch), config.target))
        feed = self.meta.get_feed("f")
        # No server takes a feed that shall rest.
        self.context = self._context_of(adoption.adopt(feed, self.epoch) if feed.requested_state is RequestedState.RUNNING else feed)
        self.feed = LocalFeed(self.context, before_window=self._capture, jobs=LocalJobs(queries=self._queries))

    def _context_of(self, feed: FeedRecord) -> FeedContext:
        document = FeedDocument.of(feed)
        config = document.feed_config()
        return msgspec.structs.replace(
            self.context,
            epoch=self.epoch,
            settings=config.settings,
            tables=tuple(config.tables),
            sink_uri=config.target.uri,
            sink_options=dict(config.target.options),
            skip_until_ts=document.skip_until_ts,
            resnapshot_from_ts=document.resnapshot_from_ts,
            rewound_from_ts=document.rewound_from_ts,
            target_from_ts=document.target_from_ts,
            altered=document.altered,
        )

    def drain(self) -> None:
        """Run until everything that was written is delivered, beginning runs as a server would; raises ``FEED_PAUSED`` and the like."""
        for _ in range(_RUNS_MAX):
            try:
                super().drain()
            except PenstockError as error:
                if error.code not in _ANOTHER_RUN:
                    raise
                self.begin_run()
            else:
                return
        raise PenstockError("FEED_FAILED", f"{_RUNS_MAX} runs were not enough")

    def run_window(self, *, commit: bool = True) -> str:
        """Run one window, or none; return why the run ended where it did, or nothing."""
        try:
            self.feed.run_window(commit=commit)
        except PenstockError as error:
            if error.code not in _HALTS | _ANOTHER_RUN:
                raise
            if error.code in _ANOTHER_RUN:
                self.begin_run()
            return error.code
        return ""

    def restart(self, *, lose_store: bool = False) -> None:
        """Close the services and open them again, as another process of the server."""
        super().restart(lose_store=lose_store)
        self.begin_run()


class _OneSource:
    """The one source. Implements ``FeedSources``."""

    def __init__(self, path: WholePath) -> None:
        self._path = path

    def choose(self, given: str | None) -> str:
        """Return what is given."""
        return given or ""

    @contextlib.contextmanager
    def using(self, _uri: str) -> Iterator[Any]:
        """Give the path's upstream."""
        yield SimpleNamespace(
            upstream=self._path.upstream, begin=lambda: None, kept_from_ts=lambda spans: changes_kept_from_ts(self._path.store, spans)
        )


def _open_target(sink: SinkConfig, guard: Guard) -> SinkMaintainer:
    return open_maintainer(sink.uri, sink.options, guard)


def _open_for(run: SinkRun, sink: SinkConfig) -> SinkMaintainer:
    return open_maintainer(sink.uri, sink.options, unfenced, run=run)
