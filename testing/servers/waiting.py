"""Waiting for what others do in their own time, and doing something beside it. Runs in tests and benchmarks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WAIT_S_MAX = 120.0
_LOOK_S = 0.05


def wait_until(done: Callable[[], bool], what: str, wait_s: float = WAIT_S_MAX) -> None:
    """Wait until a condition holds; fail with ``what`` where it does not in time."""
    never = threading.Event()
    for _ in range(int(wait_s / _LOOK_S)):
        if done():
            return
        never.wait(_LOOK_S)
    raise AssertionError(what)


@contextmanager
def meanwhile(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Do some work in another thread until the block ends, which sets its event."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
