"""Keeps a terminal clean: what this process, its JVM and its children print goes to a log file, and only the demo itself to the terminal.

The JVM and libraries write to file descriptors 1 and 2 whatever Python thinks of them, so these are turned. Invariant: when the block has
ended they are what they were, however it ended. Runs in the demo.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[TextIO]:
    """Send everything to a log file; yield what writes to where standard output went before."""
    _flush()
    encoding = sys.stdout.encoding or "utf-8"
    kept_out, kept_err = os.dup(1), os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # What cannot be said in the terminal's encoding is shown as a question mark, rather than ending the demo.
    shown = os.fdopen(os.dup(kept_out), "w", encoding=encoding, errors="replace", buffering=1)
    try:
        yield shown
    finally:
        _flush()
        # The reader at the other end of a pipe may be gone.
        with contextlib.suppress(OSError):
            shown.close()
        for kept, number in ((kept_out, 1), (kept_err, 2)):
            os.dup2(kept, number)
            os.close(kept)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
