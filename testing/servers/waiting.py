"""Waiting for what others do in their own time. Runs in tests."""

from __future__ import annotations

import threading
from collections.abc import Callable

WAIT_S_MAX = 30.0
_LOOK_S = 0.05


def wait_until(done: Callable[[], bool], what: str, wait_s: float = WAIT_S_MAX) -> None:
    """Wait until a condition holds; fail with ``what`` where it does not in time."""
    never = threading.Event()
    for _ in range(int(wait_s / _LOOK_S)):
        if done():
            return
        never.wait(_LOOK_S)
    raise AssertionError(what)
