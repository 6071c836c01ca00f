"""What other threads ask the reader of a log to do between two of its steps.

An errand runs in the reader's thread, where no transaction is open, and may say that its time has not come yet. Whoever asked waits for
it, within a bound; one that is being run is waited for to its end. Runs in the log service.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.model.errors import PenstockError
from penstock.puller.logged.span_routes import RefusedError

T = TypeVar("T")


class _Errand:
    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None


class Errands:
    """The errands of one reader. Thread safe."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._waiting: list[_Errand] = []
        self._ended = False

    def ask(self, work: Callable[[], T | None], timeout_s: float) -> T:
        """Have something done and return what it gives; None means that it is to be asked again after the next step."""
        errand = _Errand(work)
        with self._changed:
            self._waiting.append(errand)
        self._wake()
        with self._changed:
            in_time = self._changed.wait_for(lambda: errand.done or self._ended, timeout_s)
            if not in_time and errand in self._waiting:
                self._waiting.remove(errand)
                raise PenstockError("CONGESTED", "the reader of the log is not where it could do this")
            self._changed.wait_for(lambda: errand.done or self._ended)
        if errand.error is not None:
            raise errand.error
        if not errand.done:
            raise PenstockError("CANCELLED", "the log puller is closed")
        result: T = errand.result
        return result

    def run(self) -> None:
        """Do what is asked for, as far as its time has come; the reader's thread, between two steps."""
        if not self._waiting:
            return
        with self._changed:
            errands, self._waiting = self._waiting, []
        for at, errand in enumerate(errands):
            try:
                errand.result = errand.work()
                errand.done = errand.result is not None
            except RefusedError:
                # The reader ends: whoever asked is told by ``end``.
                with self._changed:
                    self._waiting += errands[at:]
                raise
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked, not to the reader
                errand.error, errand.done = error, True
            with self._changed:
                if not errand.done:
                    self._waiting.append(errand)
                self._changed.notify_all()

    def end(self) -> None:
        """Let everyone who waits go: the reader does nothing any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
