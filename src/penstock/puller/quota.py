"""A weighted byte quota: the memory bound of everything in flight.

Invariants: waiters are served first come, first served, so a heavy batch is never starved by light ones; the sum of what is held
never exceeds the limit, except that a batch heavier than the whole limit passes alone, when nothing else is held. Runs in the log service.
"""

from __future__ import annotations

import threading
from collections import deque

from penstock.model.errors import InvariantError

DEFAULT_QUOTA_BYTES = 1 << 30


class ByteQuota:
    """A first-come-first-served weighted semaphore. Thread safe."""

    def __init__(self, limit_bytes: int = DEFAULT_QUOTA_BYTES) -> None:
        if limit_bytes < 1:
            raise InvariantError(f"a quota of {limit_bytes} bytes")
        self.limit_bytes = limit_bytes
        self._held_bytes = 0
        self._holders = 0
        self._waiters: deque[object] = deque()
        self._closed = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    @property
    def held_bytes(self) -> int:
        """Return the bytes that are held now."""
        return self._held_bytes

    @property
    def holders(self) -> int:
        """Return how many grants are held now."""
        return self._holders

    def acquire(self, nbytes: int) -> bool:
        """Hold bytes, waiting until they fit; return False (holding nothing) once the quota is closed."""
        # The lock, not the condition: entering it costs no Python call, and this is the way of nearly all batches.
        with self._lock:
            held_bytes = self._held_bytes
            if not self._waiters and (held_bytes + nbytes <= self.limit_bytes or held_bytes == 0) and not self._closed:
                self._held_bytes = held_bytes + nbytes
                self._holders += 1
                return True
            ticket = object()
            self._waiters.append(ticket)
            self._changed.notify_all()
            while not self._closed and not (self._waiters[0] is ticket and self._fits(nbytes)):
                self._changed.wait()
            self._waiters.remove(ticket)
            self._changed.notify_all()
            if self._closed:
                return False
            self._held_bytes += nbytes
            self._holders += 1
            return True

    def release(self, nbytes: int) -> None:
        """Give back bytes that were held. Never blocks."""
        with self._lock:
            if nbytes > self._held_bytes:
                raise InvariantError(f"{nbytes} bytes released, {self._held_bytes} held")
            self._held_bytes -= nbytes
            self._holders -= 1
            if self._waiters:
                self._changed.notify_all()

    def close(self) -> None:
        """Wake every waiter empty-handed; later calls of ``acquire`` return False at once. ``release`` goes on working."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _fits(self, nbytes: int) -> bool:
        return self._held_bytes + nbytes <= self.limit_bytes or self._held_bytes == 0
