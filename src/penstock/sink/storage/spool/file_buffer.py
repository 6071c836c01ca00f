"""Buffers in which chunks are encoded and files are put together, used again and again.

A file of 64 MiB in fresh memory costs sixteen thousand page faults, a good part of the work of writing it on a virtual
machine; a buffer that was in use before costs none. A buffer belongs to whoever took it until it is given back. Runs on executors.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

_FITS_FACTOR = 4
_SMALL_BYTES = 2 << 20


class FileBuffer:
    """A growing run of bytes. One thread at a time.

    With ``whole_bytes`` it grows to that size in one go once it is no longer small: pages that are not written cost nothing, copies do.
    """

    def __init__(self, capacity: int, whole_bytes: int = 0) -> None:
        self._space: npt.NDArray[np.uint8] = np.empty(capacity, np.uint8)
        self._used = 0
        self._whole_bytes = whole_bytes

    @property
    def capacity(self) -> int:
        """Return how many bytes of memory it holds."""
        return len(self._space)

    def tell(self) -> int:
        """Return how many bytes are in."""
        return self._used

    def reserve(self, size: int) -> npt.NDArray[np.uint8]:
        """Return the free space behind the content, at least this large; ``advance`` makes what was written there content."""
        if self._used + size > len(self._space):
            wanted = max(self._used + size, len(self._space) * 3 // 2)
            grown = np.empty(max(wanted, self._whole_bytes) if wanted >= _SMALL_BYTES else wanted, np.uint8)
            grown[: self._used] = self._space[: self._used]
            self._space = grown
        return self._space[self._used :]

    def advance(self, size: int) -> None:
        """Take over bytes that were written into the reserved space."""
        self._used += size

    def write(self, data: bytes | memoryview) -> int:
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
    """Keeps free buffers, up to so many bytes. Thread safe."""

    def __init__(self, kept_bytes_max: int) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._kept_bytes = 0
        self._free: list[FileBuffer] = []
        self._lock = threading.Lock()

    def take(self, size: int, whole_bytes: int = 0) -> FileBuffer:
        """Return an empty buffer for about so many bytes: one that fits, or a new one, which may grow to a whole file."""
        with self._lock:
            for at in range(len(self._free) - 1, -1, -1):
                if size <= self._free[at].capacity <= max(size, 1) * _FITS_FACTOR:
                    found = self._free.pop(at)
                    self._kept_bytes -= found.capacity
                    return found
        return FileBuffer(size, whole_bytes)

    def give_back(self, buffer: FileBuffer) -> None:
        """Return a buffer whose content nobody needs any more."""
        buffer.clear()
        with self._lock:
            if self._kept_bytes + buffer.capacity <= self._kept_bytes_max:
                self._free.append(buffer)
                self._kept_bytes += buffer.capacity

    def close(self) -> None:
        """Free everything, and keep nothing from now on."""
        with self._lock:
            self._free.clear()
            self._kept_bytes = self._kept_bytes_max = 0
