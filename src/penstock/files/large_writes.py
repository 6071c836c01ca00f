"""Writes of large contents in pieces.

One write of a whole file can take ten times as long, once Linux has its free memory in small pieces only and looks for large ones.
Invariant: nothing is copied. Runs anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

WRITE_BYTES = 1 << 20


def pieces(content: bytes | memoryview) -> Iterator[memoryview]:
    """Yield a content piece by piece."""
    view = memoryview(content)
    return (view[at : at + WRITE_BYTES] for at in range(0, len(view), WRITE_BYTES))


def write_at(file: int, content: bytes | memoryview, at: int) -> int:
    """Write all of a content to a place of a file; return the place behind it."""
    left = memoryview(content)
    while left:
        written = os.pwrite(file, left[:WRITE_BYTES], at)
        left, at = left[written:], at + written
    return at
