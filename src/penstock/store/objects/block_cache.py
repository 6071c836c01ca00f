"""Blocks of objects that are far away, kept by a process that reads them.

Objects never change, so a block is right for as long as it is kept; whoever reads it checks its checksum. Blocks are aligned, the least
recently used go first, and a read that would take half of the room passes by. Invariant: what is kept is never more than ``bytes_max``.
Thread safe; two threads that miss the same block both fetch it. Runs on executors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

BLOCK_BYTES = 4 * 1024 * 1024
CACHE_BYTES_MAX = 64 * 1024 * 1024
"""Of each Python worker: Spark has as many as cores."""

Fetch = Callable[[int, int], pa.Buffer]


class BlockCache:
    """Blocks by object and number."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX, block_bytes: int = BLOCK_BYTES) -> None:
        self._bytes_max = bytes_max
        self._block_bytes = block_bytes
        self._blocks: dict[tuple[tuple[str, str], int], pa.Buffer] = {}
        """In the order of use, the latest last."""
        self._lock = threading.Lock()
        self.nbytes = 0

    def read(self, name: tuple[str, str], start: int, length: int, size: int, fetch: Fetch) -> pa.Buffer:
        """Return a part of an object of ``size`` bytes; what is missing is fetched in one go, as ``fetch(start, length)``."""
        if length <= 0:
            return pa.py_buffer(b"")
        if length > self._bytes_max // 2:
            return fetch(start, length)
        first, last = start // self._block_bytes, (start + length - 1) // self._block_bytes
        known = {number: block for number in range(first, last + 1) if (block := self._get((name, number))) is not None}
        missing = [number for number in range(first, last + 1) if number not in known]
        if missing:
            known |= self._fetched(name, missing[0], missing[-1], size, fetch)
        offset = start - first * self._block_bytes
        if first == last:
            return known[first].slice(offset, min(length, known[first].size - offset))
        return pa.py_buffer(b"".join(memoryview(known[number]) for number in range(first, last + 1))).slice(offset, length)

    def _fetched(self, name: tuple[str, str], first: int, last: int, size: int, fetch: Fetch) -> dict[int, pa.Buffer]:
        start = first * self._block_bytes
        payload = fetch(start, min((last + 1) * self._block_bytes, size) - start)
        if payload.size != min((last + 1) * self._block_bytes, size) - start:
            raise OSError(f"{name[1]}: {payload.size} bytes came, which are too few")
        found = {}
        for number in range(first, last + 1):
            offset = (number - first) * self._block_bytes
            # A copy of its own, so that a block that is let go gives its bytes back.
            block = pa.py_buffer(memoryview(payload)[offset : offset + self._block_bytes].tobytes())
            found[number] = block
            self._put((name, number), block)
        return found

    def _get(self, key: tuple[tuple[str, str], int]) -> pa.Buffer | None:
        with self._lock:
            block = self._blocks.pop(key, None)
            if block is not None:
                self._blocks[key] = block
            return block

    def _put(self, key: tuple[tuple[str, str], int], block: pa.Buffer) -> None:
        with self._lock:
            old = self._blocks.pop(key, None)
            self.nbytes += block.size - (old.size if old is not None else 0)
            self._blocks[key] = block
            while self.nbytes > self._bytes_max:
                self.nbytes -= self._blocks.pop(next(iter(self._blocks))).size
