"""A target behind a narrow, slow line, for benchmarks: so many bytes per second for everybody together, and a latency for each request.

What is written is counted and thrown away, apart from small objects such as indexes, so that the benchmark's memory is the sink's. Runs in
the benchmark's process.
"""

from __future__ import annotations

import random
import threading

from obstore.store import MemoryStore

from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.target.storage import ObjectTarget, RetrySettings

_KEPT_BYTES_MAX = 4096


class ThrottledTarget(ObjectTarget):
    """Counts what comes in over the line. Thread safe."""

    def __init__(self, clock: Clock, bytes_per_s: float | None, latency_s: float) -> None:
        super().__init__(MemoryStore(), "memory://throttled", RetrySettings(), clock, random.Random(1))
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._free_at_s = 0.0
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self.nbytes = 0
        """Bytes of large objects that are in."""

    def put_new(self, path: str, content: bytes | memoryview) -> bool:
        """Create an object; its content is kept only where it is small."""
        if len(content) <= _KEPT_BYTES_MAX:
            self._transfer(len(content))
            return super().put_new(path, content)
        self._transfer(len(content))
        with self._lock:
            if path in self._sizes:
                raise PenstockError("SINK_CONFLICT", f"{path} is written twice")
            self._sizes[path] = len(content)
            self.nbytes += len(content)
        return True

    def put_over(self, path: str, content: bytes, tag: str | None) -> str | None:
        """Write an index."""
        self._transfer(len(content))
        return super().put_over(path, content, tag)

    def find_tagged(self, path: str) -> tuple[bytes, str | None] | None:
        """Read an index."""
        self._transfer(0)
        return super().find_tagged(path)

    def paths(self, prefix: str = "") -> list[str]:  # type: ignore[override]
        """List."""
        self._transfer(0)
        return list(super().paths(prefix))

    def _transfer(self, nbytes: int) -> None:
        """Wait as long as the line takes: behind what others send, then the request's own latency."""
        if self._bytes_per_s is None:
            return
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._free_at_s = max(self._free_at_s, now_s) + nbytes / self._bytes_per_s
            wait_s = self._free_at_s - now_s + self._latency_s
        self._clock.wait(threading.Event(), wait_s)
