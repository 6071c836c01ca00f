"""A busy machine: processes that do nothing but compute, less important than everybody else. Runs in tests."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

LOAD = 30


@contextlib.contextmanager
def burners(count: int = LOAD) -> Iterator[None]:
    """Keep the machine busy for the length of the block."""
    with contextlib.ExitStack() as started:
        for _ in range(count):
            # It ends with its input, also where the test is killed.
            command = ["nice", "-n", "5", "sh", "-c", "yes > /dev/null & cat; kill $!"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
            started.enter_context(process)
        yield
