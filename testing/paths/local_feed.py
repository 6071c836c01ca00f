"""A feed without Spark: the same planner, reader, sink and commit, called one after the other in this process.

For tests of the whole path that need no JVM. A crash is a window that is not committed, or a feed that is opened again. Runs in tests.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa

from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.barrier import commit_recorded_window
from penstock.feed.window.delivery import deliver
from penstock.feed.window.fence import task_fence
from penstock.feed.window.planner import WindowPlanner
from penstock.feed.window.work_reader import read_item
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.sink.catalog import before_rule, open_sink
from penstock.sink.contract import DispatcherResult
from penstock.store.flight.client import FlightStoreClient

_PAUSE_S = 0.02


class LocalFeed:
    """Runs one window at a time."""

    def __init__(self, context: FeedContext, before_window: Callable[[], None] = lambda: None) -> None:
        """``before_window`` is called before each window is planned: there a test captures the spans of tables that came."""
        self._context = context
        self._before_window = before_window
        self._fence = task_fence(context)
        # Windows are run by hand, so one is always due.
        self._planned = msgspec.structs.replace(context, settings=dataclasses.replace(context.settings, flush_interval_s=0.0))

    def checkpoint_ts(self) -> int:
        """Return the committed checkpoint."""
        planner = WindowPlanner.open(self._planned)
        try:
            return planner.checkpoint_ts()
        finally:
            planner.close()

    def drain(self, until_ts: int, timeout_s: float) -> None:
        """Run windows until the checkpoint is at or beyond a ts."""
        clock, pause = SystemClock(), threading.Event()
        deadline_s = clock.monotonic_s() + timeout_s
        while self.checkpoint_ts() < until_ts:
            if clock.monotonic_s() > deadline_s:
                raise PenstockError("FEED_FAILED", f"the checkpoint did not reach {until_ts} within {timeout_s} s")
            if not self.run_window():
                pause.wait(_PAUSE_S)

    def run_window(self, *, commit: bool = True) -> bool:
        """Plan, read and write one window, and commit it unless told to crash before that; return whether there was one."""
        self._before_window()
        planner = WindowPlanner.open(self._planned)
        try:
            from_ts = planner.checkpoint_ts()
            to_ts = planner.next_window_end(from_ts)
            if to_ts == from_ts:
                return False
            partitions = planner.partitions(from_ts, to_ts)
        finally:
            planner.close()
        results: list[DispatcherResult] = []
        needs_before = before_rule(self._context.sink_uri, self._context.sink_options)
        client = FlightStoreClient(self._context.flight_location, self._context.flight_token)
        try:
            for partition in partitions:
                sink = open_sink(self._context.sink_uri, self._context.sink_options, self._fence)

                def rows(items: tuple = partition.items) -> Iterator[pa.RecordBatch]:  # type: ignore[type-arg]
                    for item in items:
                        yield from read_item(self._context, client, item, needs_before)

                try:
                    results.extend(deliver(sink, rows()))
                finally:
                    sink.close()
        finally:
            client.close()
        if commit:
            commit_recorded_window(self._context, to_ts, results)
        return True
