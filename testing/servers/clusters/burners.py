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
            process = subprocess.Popen(["nice", "-n", "5", "yes"], stdout=subprocess.DEVNULL, start_new_session=True)
            started.callback(process.wait)
            started.callback(process.kill)
        yield
