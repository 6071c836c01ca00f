"""Scripted runs of feeds: twins of ``penstock.server.feeds.ports`` that do what a test says, when it says it.

A run starts, fails, ends or goes on as its script tells, and records every call. Runs in tests.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from penstock.meta.records import FeedRecord
from penstock.model.errors import PenstockError
from penstock.server.feeds.ports import RunStatus

REAL_WAIT_S_MAX = 120.0


class ScriptedFeedRun:
    """A run that goes on until it is stopped or told to end. With ``start_error`` it fails to start."""

    def __init__(
        self,
        feed: FeedRecord,
        epoch: int,
        start_error: Exception | None = None,
        resolved_ts: int = 0,
        tell: Callable[[ScriptedFeedRun], None] = lambda _: None,
    ) -> None:
        """``tell`` is called with the run when it starts."""
        self._tell = tell
        self.feed = feed
        self.epoch = epoch
        self.started = threading.Event()
        self.stopped = threading.Event()
        self._start_error = start_error
        self._resolved_ts = resolved_ts
        self.capture_problems: tuple[str, ...] = ()
        self.starting = False
        self.stopped_at_once = False
        self._ended = threading.Event()
        self._error: PenstockError | None = None

    def end(self, error: PenstockError | None = None) -> None:
        """Let the run end by itself."""
        self._error = error
        self._ended.set()

    def start(self) -> None:
        """Start, or raise what the script says."""
        self._tell(self)
        self.started.set()
        if self._start_error is not None:
            raise self._start_error

    def stop(self, *, at_once: bool = False) -> None:
        """Take note."""
        self.stopped_at_once = at_once
        self.stopped.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for ``end``."""
        return self._ended.wait(timeout_s)

    def error(self) -> PenstockError | None:
        """Return what ``end`` was told."""
        return self._error

    def status(self) -> RunStatus:
        """Return whether the run is between start and end."""
        active = self.started.is_set() and not self.stopped.is_set() and not self._ended.is_set()
        return RunStatus(active, self._resolved_ts, self.capture_problems, starting=self.starting)


class ScriptedFeedRunFactory:
    """Makes scripted runs; ``start_errors`` are used up by the first runs, one each. A test waits for runs with ``next_run``."""

    def __init__(self, start_errors: Iterable[Exception | None] = ()) -> None:
        self.forgotten: list[str] = []
        self.starting = False
        """Whether runs that are made are starting until a test says otherwise."""
        self._start_errors = deque(start_errors)
        self._started: deque[ScriptedFeedRun] = deque()
        self._changed = threading.Condition()

    def prepare(self, feed: FeedRecord, epoch: int) -> FeedRecord:
        """Return it as it is."""
        return feed

    def create(self, feed: FeedRecord, epoch: int) -> ScriptedFeedRun:
        """Make the next run."""
        with self._changed:
            run = ScriptedFeedRun(feed, epoch, self._start_errors.popleft() if self._start_errors else None, tell=self._began)
            run.starting = self.starting
        return run

    def _began(self, run: ScriptedFeedRun) -> None:
        with self._changed:
            self._started.append(run)
            self._changed.notify_all()

    def forget(self, feed: FeedRecord) -> None:
        """Take note."""
        with self._changed:
            self.forgotten.append(feed.name)

    def next_run(self, timeout_s: float = REAL_WAIT_S_MAX) -> ScriptedFeedRun:
        """Return the oldest run not returned yet, waiting for it; it is started when this returns."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._started), timeout_s):
                raise TimeoutError("no run was started")
            run = self._started.popleft()
        if not run.started.wait(timeout_s):
            raise TimeoutError("the run was not started")
        return run

    def waiting(self) -> int:
        """Return how many runs were started and not yet returned by ``next_run``."""
        with self._changed:
            return len(self._started)
