"""A whole server in the foreground of a verb: started, watched and ended, whatever signal comes when.

Invariants: SIGTERM and SIGINT end it in any phase within a bounded time and without a traceback; a second one, or the end of its terminal,
ends it at once. The server is started and ended in a thread of its own, so that the main thread is always free to hear a signal, and so
that Spark does not put a handler of its own in the place of ours. Ending a process in the middle is safe: everything that matters is
durable before it counts. Runs in the server.
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
_TELL_S = 5.0
"""Nobody waits longer than this without a word."""


class Foreground:
    """Hears signals for one process, from its making on. Made by the main thread."""

    def __init__(self, clock: Clock | None = None, leave: Callable[[int], None] = os._exit) -> None:
        self.stop = threading.Event()
        self._clock = clock or SystemClock()
        self._leave = leave
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)
        # A terminal that is closed; one that was started to outlive its terminal does.
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, self._hear)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        # Where the terminal is gone, nothing can be said any more, and whoever tries fails.
        if self.stop.is_set() or number == signal.SIGHUP:
            self._end(EXIT_INTERRUPTED)
        self.stop.set()

    @contextlib.contextmanager
    def running(self, process: ServerProcess, tell: Callable[[str], None] = lambda _: None) -> Iterator[None]:
        """Start a server, and end it when the body has; exits with 130 where a signal comes before it is started.

        ``tell`` hears each step of the start, and at times that it is not silent because it hangs.
        """
        error = self._started(process, tell)
        if self.stop.is_set():
            raise click.exceptions.Exit(EXIT_INTERRUPTED)
        if error is not None:
            raise error
        try:
            yield
        finally:
            self._stopped(process)

    def _started(self, process: ServerProcess, tell: Callable[[str], None]) -> BaseException | None:
        """Start a server; return why that failed. A signal meanwhile ends it again."""
        failed: list[BaseException] = []
        thread = _begin("start", process.start, failed)
        began_s = told_s = self._clock.monotonic_s()
        step = ""
        while thread.is_alive() and not self.stop.is_set():
            thread.join(_LOOK_S)
            now_s = self._clock.monotonic_s()
            if process.step != step:
                step, told_s = process.step, now_s
                tell(f"{now_s - began_s:5.1f} s  {step}")
            elif now_s - told_s >= _TELL_S:
                told_s = now_s
                tell(f"{now_s - began_s:5.1f} s  … still {step or 'starting'}")
        if self.stop.is_set():
            tell("stopping")
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
        # Those that Spark's JVM started write files until they notice that it is gone.
        for pid in _offspring():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._leave(code)


def _offspring(process: str = "self") -> list[int]:
    """Return what a process started, and what that started; empty where the system does not tell, and where pipes that break end it."""
    found: list[int] = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in file.read_text(encoding="ascii").split()]
    return found + [pid for child in found for pid in _offspring(str(child))]


def _begin(name: str, work: Callable[[], None], failed: list[BaseException]) -> threading.Thread:
    def do() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised by the thread that waits
            failed.append(error)

    thread = threading.Thread(target=do, name=f"server-{name}", daemon=True)
    thread.start()
    return thread
