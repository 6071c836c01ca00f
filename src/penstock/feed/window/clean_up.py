"""Lets old files of a feed's target expire, as long as the feed runs.

A window's maintainer lives for seconds, so the clock of the clean-up cannot be its own. Invariants: every deletion asks the fence first;
the thread is nobody's to wait for: no window, and a run that stops for a moment only; a target that does not let go is no reason to stop
a feed, because old files that stay harm nobody. Runs in the driver.
"""

from __future__ import annotations

import logging
import threading

from penstock.feed.window.assignment import FeedContext
from penstock.feed.window.fence import OwnerFence, task_fence
from penstock.model.clock import Clock
from penstock.model.errors import ErrorKind, PenstockError
from penstock.sink.catalog import open_clean_up
from penstock.target.expiry import CleanUp

log = logging.getLogger(__name__)
_LOOK_S_MAX = 60.0
"""The time of day may be set meanwhile, so it is looked at now and then."""
_JOIN_S_MAX = 5.0


class FeedCleanUp:
    """The clean-up of one run. ``start`` and ``stop`` are called by one thread."""

    def __init__(self, context: FeedContext, clock: Clock) -> None:
        self._context = context
        self._clock = clock
        self._fence: OwnerFence | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, where the feed's target has files that expire."""
        self._fence = task_fence(self._context)
        clean_up = open_clean_up(self._context.sink_uri, self._context.sink_options, self._guard, self._clock)
        if clean_up is not None:
            self._thread = threading.Thread(target=self._keep, args=(clean_up,), name=f"clean-up-{self._context.feed}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End before the next deletion."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S_MAX)

    def _guard(self) -> None:
        if self._stop.is_set() or self._fence is None:
            raise PenstockError("CANCELLED", f"feed {self._context.feed}: the run ends")
        self._fence()

    def _keep(self, clean_up: CleanUp) -> None:
        while not self._stop.is_set():
            try:
                gone = clean_up.run_if_due()
                if gone:
                    log.info("clean-up", extra={"feed": self._context.feed, "files": len(gone)})
            except PenstockError as error:
                if error.kind is ErrorKind.FENCED:
                    return
                log.warning("clean-up failed", extra={"feed": self._context.feed, "code": error.code})
            self._clock.wait(self._stop, min(_LOOK_S_MAX, clean_up.wait_s() or _LOOK_S_MAX))
