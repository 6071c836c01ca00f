"""A busy machine: processes that do nothing but compute, less important than everybody else. Runs in tests."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

LOAD = 30


@contextlib.contextmanager
def burners(count: int = LOAD) -> Iterator[None]:
    """Keep the machine busy for the length of the block."""
    # One session for all, because the kernel shares time out among sessions first. They end with the input, also where a test is killed.
    command = ["nice", "-n", "5", "sh", "-c", "for _ in $(seq $0); do yes > /dev/null & done; cat; trap : TERM; kill 0", str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield
