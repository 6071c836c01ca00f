"""A whole server in the foreground of a verb: started, watched and ended, whatever signal comes when.

Invariants: SIGTERM and SIGINT end it in any phase within a bounded time and without a traceback; a second one ends it at once. The server
is started and ended in a thread of its own, so that the main thread is always free to hear a signal, and so that Spark does not put a
handler of its own in the place of ours. Ending a process in the middle is safe: everything that matters is durable before it counts. Runs
in the server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from penstock.model.clock import Clock, SystemClock

if TYPE_CHECKING:
    from penstock.server.process import ServerProcess

log = logging.getLogger(__name__)

EXIT_INTERRUPTED = 130
_LOOK_S = 0.1
_ABANDON_S_MAX = 5.0
"""A start that was interrupted and has not ended by then is left as it is."""
_STOP_S_MAX = 30.0


class Foreground:
    """Hears signals for one process, from its making on. Made by the main thread."""

    def __init__(self, clock: Clock | None = None, leave: Callable[[int], None] = os._exit) -> None:
        self.stop = threading.Event()
        self._clock = clock or SystemClock()
        self._leave = leave
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        if self.stop.is_set():
            self._end(EXIT_INTERRUPTED)
        self.stop.set()

    @contextlib.contextmanager
    def running(self, process: ServerProcess) -> Iterator[None]:
        """Start a server, and end it when the body has; exits with 130 where a signal comes before it is started."""
        error = self._started(process)
        if self.stop.is_set():
            raise click.exceptions.Exit(EXIT_INTERRUPTED)
        if error is not None:
            raise error
        try:
            yield
        finally:
            self._stopped(process)

    def _started(self, process: ServerProcess) -> BaseException | None:
        """Start a server; return why that failed. A signal meanwhile ends it again."""
        failed: list[BaseException] = []
        thread = _begin("start", process.start, failed)
        while thread.is_alive() and not self.stop.is_set():
            thread.join(_LOOK_S)
        if self.stop.is_set():
            click.echo("stopping", err=True)
            process.abandon()
            if not self._wait(thread, _ABANDON_S_MAX):
                self._end(EXIT_INTERRUPTED)
            if not failed:
                self._stopped(process)
        return failed[0] if failed else None

    def _stopped(self, process: ServerProcess) -> None:
        failed: list[BaseException] = []
        thread = _begin("stop", process.stop, failed)
        if not self._wait(thread, _STOP_S_MAX):
            log.error("the server did not stop in time and is left as it is; nothing is lost by that")
            self._end(EXIT_INTERRUPTED)
        if failed:
            log.error("stopping", extra={"error": str(failed[0])})

    def _wait(self, thread: threading.Thread, wait_s: float) -> bool:
        deadline_s = self._clock.monotonic_s() + wait_s
        while thread.is_alive() and self._clock.monotonic_s() < deadline_s:
            thread.join(_LOOK_S)
        return not thread.is_alive()

    def _end(self, code: int) -> None:
        """End the process and those that it started, without waiting for any thread."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._leave(code)


def _children() -> list[int]:
    """Return the processes that this one started; empty where the system does not tell, and where they end when their pipes break."""
    files = Path("/proc/self/task").glob("*/children") if Path("/proc/self/task").exists() else ()
    return [int(pid) for file in files for pid in file.read_text(encoding="ascii").split()]


def _begin(name: str, work: Callable[[], None], failed: list[BaseException]) -> threading.Thread:
    def do() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised by the thread that waits
            failed.append(error)

    thread = threading.Thread(target=do, name=f"server-{name}", daemon=True)
    thread.start()
    return thread
