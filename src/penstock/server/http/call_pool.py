"""Threads for calls that take their time: so many at once, so many waiting, and further ones are told to come back.

Each kind of slow call has a pool of its own, so a target that never answers holds up neither health and metrics nor any other kind of
call. A call whose answer is the same for everybody is made once for all who wait for it. Called by event loops alone. Runs in the server.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from penstock.model.errors import PenstockError

_T = TypeVar("_T")


class CallPool:
    """Runs calls of one kind in threads."""

    def __init__(self, name: str, at_once: int, waiting_max: int) -> None:
        self._name = name
        self._limiter = anyio.CapacityLimiter(at_once)
        self._calls_max = at_once + waiting_max
        self._calls = 0

    async def run(self, call: Callable[[], _T]) -> _T:
        """Return what a call gives; raise ``API_BUSY`` where too many wait already. A call that has begun goes on to its end."""
        if self._calls >= self._calls_max:
            raise PenstockError("API_BUSY", f"{self._calls} calls to {self._name} are under way or wait")
        self._calls += 1
        try:
            return await anyio.to_thread.run_sync(call, limiter=self._limiter)
        finally:
            self._calls -= 1


class SharedCall(Generic[_T]):
    """Runs one call for all who ask for it: however many ask, one is under way and one waits.

    Invariant: whoever asks gets an answer that was begun after that, so it shows what was changed before.
    """

    def __init__(self, name: str, call: Callable[[], _T]) -> None:
        self._call = call
        self._thread = ThreadPoolExecutor(1, name)
        self._lock = threading.Lock()
        self._waiting: Future[_T] | None = None

    async def get(self) -> _T:
        """Return what the call gives, or raise what it raises."""
        with self._lock:
            if self._waiting is None:
                self._waiting = self._thread.submit(self._begin)
            shared = self._waiting
        # Who gives up does so alone.
        return await asyncio.shield(asyncio.wrap_future(shared))

    def _begin(self) -> _T:
        with self._lock:
            self._waiting = None
        return self._call()
