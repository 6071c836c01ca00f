"""Buffers in which files are filled, used again and again.

A file of 64 MiB in fresh memory costs sixteen thousand page faults, a good part of the work of writing it on a virtual
machine; a buffer that was a file before costs none. A buffer belongs to one writer from ``take`` until its content is in the
target, then to the pool. Runs on executors.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

_SLACK_BYTES = 8 << 20
_KEPT_MAX = 2


class FileBuffer:
    """A growing run of bytes. One thread at a time."""

    def __init__(self, capacity: int) -> None:
        self._space: npt.NDArray[np.uint8] = np.empty(capacity, np.uint8)
        self._used = 0

    def tell(self) -> int:
        """Return how many bytes are in."""
        return self._used

    def reserve(self, size: int) -> npt.NDArray[np.uint8]:
        """Return the free space behind the content, at least this large; ``advance`` makes what was written there content."""
        if self._used + size > len(self._space):
            grown = np.empty(max(self._used + size, len(self._space) * 3 // 2), np.uint8)
            grown[: self._used] = self._space[: self._used]
            self._space = grown
        return self._space[self._used :]

    def advance(self, size: int) -> None:
        """Take over bytes that were written into the reserved space."""
        self._used += size

    def write(self, data: bytes) -> int:
        """Append bytes; return how many."""
        self.reserve(len(data))[: len(data)] = np.frombuffer(data, np.uint8)
        self.advance(len(data))
        return len(data)

    def content(self) -> memoryview:
        """Return what is in, without a copy."""
        return self._space[: self._used].data

    def clear(self) -> None:
        """Forget the content; the memory stays."""
        self._used = 0


class BufferPool:
    """Keeps buffers that are free. Thread safe."""

    def __init__(self, file_size: int) -> None:
        self._capacity = file_size + min(file_size, _SLACK_BYTES)
        self._free: list[FileBuffer] = []
        self._lock = threading.Lock()

    def take(self) -> FileBuffer:
        """Return an empty buffer."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return FileBuffer(self._capacity)

    def give_back(self, buffer: FileBuffer) -> None:
        """Return a buffer whose content nobody needs any more."""
        buffer.clear()
        with self._lock:
            if len(self._free) < _KEPT_MAX:
                self._free.append(buffer)
