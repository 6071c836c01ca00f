"""One run of a feed: its windows, one after the other, each a job.

The run owns the thread that plans, delivers and commits, and the clean-up of its target; progress and the window under way live in the
meta database. It ends by ``stop``, which cancels its job, or by itself when a window fails: ``error`` then says why. Invariant: no two
windows of a run overlap, and when ``stop`` has returned nothing of the run works any more. Runs in the driver.
"""

from __future__ import annotations

import logging
import threading
from contextlib import closing

from penstock.feed.spark.jobs import Jobs
from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.clean_up import FeedCleanUp
from penstock.feed.window.coverage import publish_committed
from penstock.feed.window.fence import OwnerFence, driver_meta
from penstock.feed.window.planner import WindowPlanner
from penstock.feed.window.window_job import WindowJobs
from penstock.meta.engine import adopt_command
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import InvariantError, PenstockError
from penstock.sink.catalog import open_maintainer
from penstock.store.flight.client import FlightStoreClient

log = logging.getLogger(__name__)
GRACE_S = 5.0
"""For how long a window under way may end when its run is stopped."""
_CANCEL_AGAIN_S = 0.2
"""A job that was just being submitted is not among those that are cancelled, so they are cancelled until the run has ended."""


class FeedWindows:
    """The windows of a feed, from start to stop. ``start`` and ``stop`` are called by one thread; the rest may be called by any."""

    def __init__(self, jobs: Jobs, context: FeedContext, clock: Clock | None = None) -> None:
        self._jobs = jobs
        self._context = context
        self._clock = clock or SystemClock()
        self._clean_up = FeedCleanUp(context, self._clock)
        self._stop = threading.Event()
        self._error: PenstockError | None = None
        self._planner: WindowPlanner | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Publish the last committed checkpoint (a crash may have come before it) and begin."""
        if self._thread is not None:
            raise InvariantError("a feed run starts once")
        self._repair_published_checkpoint()
        self._thread = threading.Thread(target=self._work, name=f"windows-{self._context.feed}", daemon=True)
        self._thread.start()
        self._clean_up.start()
        log.info("feed run started", extra={"feed": self._context.feed, "epoch": self._context.epoch})

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End the run.

        A window under way may end within the grace time; otherwise its job is cancelled, and the next run does it again, with the same
        files.
        """
        self._stop.set()
        self._clean_up.stop()
        if self._thread is None:
            return
        self._thread.join(grace_s)
        while self._thread.is_alive():
            self._jobs.cancel(WindowJobs.group(self._context))
            self._thread.join(_CANCEL_AGAIN_S)

    @property
    def active(self) -> bool:
        """Return whether the run goes on."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the run has ended, at most the given seconds; return whether it has."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.active

    def error(self) -> PenstockError | None:
        """Return why the run ended by itself, or None."""
        return self._error

    def dispatcher_changes(self) -> int:
        """Return how often the run changed which dispatchers there are. Nobody else does while it runs."""
        return self._planner.dispatcher_changes if self._planner is not None else 0

    def _work(self) -> None:
        try:
            context = self._context
            with closing(FlightStoreClient(context.flight_location, context.flight_token)) as store:
                self._planner = WindowPlanner(context, driver_meta(context.meta_url), store, self._clock)
                self._do_windows(WindowJobs(context, self._planner, self._jobs))
        except PenstockError as error:
            self._error = None if self._stop.is_set() and error.code == "CANCELLED" else error
        except Exception as error:
            log.exception("feed run raised", extra={"feed": self._context.feed})
            self._error = PenstockError.from_text(f"{type(error).__name__}: {error}")

    def _do_windows(self, windows: WindowJobs) -> None:
        while not self._stop.is_set():
            window = windows.plan()
            if window is None:
                self._clock.wait(self._stop, self._context.settings.trigger_interval_s)
            else:
                windows.commit(window, windows.deliver(window))

    def _repair_published_checkpoint(self) -> None:
        context, meta = self._context, driver_meta(self._context.meta_url)
        fence = OwnerFence(context.feed, context.epoch, meta.check_owner, fresh_s=0.0)
        maintainer = open_maintainer(context.sink_uri, context.sink_options, fence, run=context.sink_run)
        checkpoint_ts, published_ts = meta.checkpoint_ts(context.feed), maintainer.published_ts()
        if published_ts > max(checkpoint_ts, context.rewound_from_ts):
            # What is published was committed before, by an owner that is fenced by now: so the database has lost that.
            detail = f"feed {context.feed}: the target is at {published_ts}, the meta database at {checkpoint_ts}"
            raise PenstockError("META_BEHIND_TARGET", f"{detail}; `{adopt_command(context.feed, context.meta_url)}` lets the target count")
        if checkpoint_ts > context.target_from_ts:
            publish_committed(context, meta, maintainer)
