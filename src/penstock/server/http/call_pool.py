"""Threads for calls that take their time: so many at once, so many waiting, and further ones are told to come back.

Each kind of slow call has a pool of its own, so a target that never answers holds up neither health and metrics nor any other kind of
call. Called by the event loop alone. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

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
