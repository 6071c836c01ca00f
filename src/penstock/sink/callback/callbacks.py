"""The callables of this process, by the names that stand in the URIs of targets, and what each has been given already.

A window whose commit is tried again comes with the same rows, so what its callable took is not offered to it twice: within one process
each change is given once, in order. What a callable has taken is not durable, so another process gives again what was not committed.
Invariants: a callable is called by one thread at a time; its error stops the feed, and what it took before counts as given. Runs in the
server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.model.errors import PenstockError
from penstock.sink.callback.changes import Callback, Changes


@dataclass(slots=True)
class Registered:
    """One callable: what it raised last, how much of which window it took, up to where it took all, and the checkpoint since."""

    callback: Callback
    error: BaseException | None = None
    window: tuple[int, int] = (0, 0)
    given: int = 0
    whole_ts: int = 0
    checkpoint_ts: int = 0
    ddls: tuple[int, frozenset[tuple[str, str]]] = (0, frozenset())
    lock: threading.Lock = field(default_factory=threading.Lock)

    def give(self, window: tuple[int, int], changes: Iterable[Callable[[], Changes]]) -> None:
        """Call it with what it has not had of a window; its parts are the same, in the same order, whenever the window comes."""
        with self.lock:
            if window[1] <= self.whole_ts:
                return
            if window != self.window:
                self.window, self.given = window, 0
            for at, make in enumerate(changes):
                if at >= self.given:
                    self._call(make())
                    self.given = at + 1
            self.whole_ts = window[1]

    def give_ddl(self, change: Changes) -> None:
        """Call it with a DDL that it has not had; DDLs come in the order of their commits."""
        with self.lock:
            last_ts, had = self.ddls
            name = (change.table, change.ddl)
            if change.commit_ts < last_ts or (change.commit_ts == last_ts and name in had):
                return
            self._call(change)
            self.ddls = change.commit_ts, frozenset({name}) | (had if change.commit_ts == last_ts else frozenset())

    def _call(self, changes: Changes) -> None:
        try:
            self.callback(changes)
        except Exception as error:
            self.error = error
            # No values of rows: what it says of itself is for the process that wrote it.
            raise PenstockError("CALLBACK_FAILED", f"the callable raised {type(error).__name__} for changes of {changes.table}") from error


_registered: dict[str, Registered] = {}


@contextmanager
def registered(name: str, callback: Callback) -> Iterator[Registered]:
    """Let a callable be found by its name while the body runs."""
    if name in _registered:
        raise PenstockError("CONFIG_INVALID", f"a capture with the name {name} runs in this process", "Stop it, or give another name.")
    _registered[name] = found = Registered(callback)
    try:
        yield found
    finally:
        del _registered[name]


def find(name: str) -> Registered:
    """Return a callable of this process."""
    if name not in _registered:
        raise PenstockError("CALLBACK_FAILED", f"no callable {name!r} is registered in this process")
    return _registered[name]
