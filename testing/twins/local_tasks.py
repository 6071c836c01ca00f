"""The parts of a bootstrap or of a re-read in this process, one thread each, with a script of what goes wrong. Runs in tests."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.feed.bootstrap.bootstrap import JobTasks
from penstock.feed.bootstrap.part import BootstrapPart
from penstock.feed.bootstrap.reread_part import ComparedPart, RereadPart
from penstock.store.log.bootstrap_log import PulledPart
from testing.twins.local_jobs import LocalJobs


class LocalTasks(JobTasks):
    """A ``TaskRunner`` without Spark. ``before`` is called before each part is read and may raise; ``pulled`` lists what was pulled."""

    def __init__(
        self, before: Callable[[BootstrapPart], None] = lambda _: None, before_compare: Callable[[RereadPart], None] = lambda _: None
    ) -> None:
        super().__init__(LocalJobs())
        self._before = before
        self._before_compare = before_compare
        self._lock = threading.Lock()
        self.pulled: list[int] = []

    def run(self, part: BootstrapPart) -> PulledPart:
        """Pull a part."""
        if not self._stopped.is_set():
            self._before(part)
        done = super().run(part)
        with self._lock:
            self.pulled.append(part.number)
        return done

    def compare(self, part: RereadPart) -> ComparedPart:
        """Compare a part."""
        if not self._stopped.is_set():
            self._before_compare(part)
        return super().compare(part)
