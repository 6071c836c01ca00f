"""Executors that get a part of a core each, so that a small machine has room for two of them beside database, driver and server.

A process of its own stops and continues them in turns, each on a core of its own: ``python -m benchmarks.rigs.slow_executors PID`` slows
the executors below a process until its input ends. Runs in benchmarks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

_TURN_S = 0.008
"""Three turns make a round, of which an executor has one."""
_LOOK_S = 0.2
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


@contextlib.contextmanager
def slow_executors() -> Iterator[None]:
    """Slow the executors below this process for the length of the block."""
    command = [sys.executable, "-m", __spec__.name, str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def _executors(root: int) -> list[list[int]]:
    """Return the processes of each executor."""
    found: list[list[int]] = []
    for process in psutil.Process(root).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if _EXECUTOR in process.cmdline() and process.name() == "java":
                found.append([process.pid, *(child.pid for child in process.children(recursive=True))])
    return sorted(found)


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _pin(pids: list[int], core: int) -> None:
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(task.name), {core})


def main() -> None:
    """Slow the executors below a process until the input ends."""
    root, ended = int(sys.argv[1]), threading.Event()
    cores = sorted(os.sched_getaffinity(0))

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    executors: list[list[int]] = []
    looked_s = float("-inf")
    while not ended.is_set():
        if time.monotonic() - looked_s > _LOOK_S:
            _send([pid for pids in executors for pid in pids], signal.SIGCONT)
            executors, looked_s = _executors(root), time.monotonic()
            for at, pids in enumerate(executors):
                _pin(pids, cores[at % len(cores)])
        for turn in range(3):
            if turn:
                _send(executors[turn - 1] if len(executors) >= turn else [], signal.SIGSTOP)
            if turn < 2 and len(executors) > turn:
                _send(executors[turn], signal.SIGCONT)
            ended.wait(_TURN_S)
    for pids in _executors(root):
        _send(pids, signal.SIGCONT)


if __name__ == "__main__":
    main()
