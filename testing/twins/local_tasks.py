"""The parts of a bootstrap or of a re-read in this process, one thread each, with a script of what goes wrong. Runs in tests."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.feed.bootstrap.part import BootstrapPart, pull_part
from penstock.feed.bootstrap.reread_part import ComparedPart, RereadPart, compare_part
from penstock.model.errors import PenstockError
from penstock.store.log.bootstrap_log import PulledPart


class LocalTasks:
    """A ``TaskRunner`` without Spark. ``before`` is called before each part is read and may raise; ``pulled`` lists what was pulled."""

    def __init__(
        self, before: Callable[[BootstrapPart], None] = lambda _: None, before_compare: Callable[[RereadPart], None] = lambda _: None
    ) -> None:
        self._before = before
        self._before_compare = before_compare
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self.pulled: list[int] = []

    def run(self, part: BootstrapPart) -> PulledPart:
        """Pull a part."""
        if self._stopped.is_set():
            raise PenstockError("CANCELLED", "the bootstrap was stopped")
        self._before(part)
        done = pull_part(part)
        with self._lock:
            self.pulled.append(part.number)
        return done

    def compare(self, part: RereadPart) -> ComparedPart:
        """Compare a part."""
        if self._stopped.is_set():
            raise PenstockError("CANCELLED", "the re-read was stopped")
        self._before_compare(part)
        return compare_part(part)

    def cancel(self) -> None:
        """Refuse what is asked for later."""
        self._stopped.set()
