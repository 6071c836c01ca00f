"""A server in the foreground ends in any phase when it is told to, and with the right exit code."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator

import click
import pytest

from penstock.cli.foreground import EXIT_INTERRUPTED, Foreground
from penstock.model.errors import PenstockError
from testing.twins.clock import SimulatedClock


class ScriptedProcess:
    """Starts and stops when the test lets it; abandoning ends a start only where it hears of it."""

    step = ""

    def __init__(self, *, hears: bool = True, error: Exception | None = None) -> None:
        self.starting, self.go_on, self.abandoned = threading.Event(), threading.Event(), threading.Event()
        self.stops = 0
        self._hears, self._error = hears, error

    def start(self) -> None:
        self.starting.set()
        assert self.go_on.wait(60)
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        self.abandoned.set()
        if self._hears:
            self._error = PenstockError("CANCELLED", "stopped")
            self.go_on.set()

    def stop(self) -> None:
        self.stops += 1


class Left(Exception):  # noqa: N818 - not an error: the process has ended
    """Where a process would have ended."""


def leave(code: int) -> None:
    raise Left(code)


@pytest.fixture
def foreground() -> Iterator[Foreground]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield Foreground(leave=leave)
    for number, handler in before.items():
        signal.signal(number, handler)


def run(foreground: Foreground, process: ScriptedProcess) -> str:
    with foreground.running(process):  # type: ignore[arg-type]
        return "ran"
    return "never"


def when_starting(process: ScriptedProcess, number: int) -> threading.Thread:
    def send() -> None:
        assert process.starting.wait(60)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_server_is_started_and_stopped(foreground: Foreground) -> None:
    process = ScriptedProcess()
    process.go_on.set()
    assert run(foreground, process) == "ran"
    assert process.stops == 1


def test_a_server_that_does_not_start_says_why(foreground: Foreground) -> None:
    process = ScriptedProcess(error=PenstockError("SPARK_UNAVAILABLE", "no Java"))
    process.go_on.set()
    with pytest.raises(PenstockError, match="no Java"):
        run(foreground, process)
    assert process.stops == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start(foreground: Foreground, number: int) -> None:
    process = ScriptedProcess()
    sender = when_starting(process, number)
    with pytest.raises(click.exceptions.Exit) as caught:
        run(foreground, process)
    assert caught.value.exit_code == EXIT_INTERRUPTED
    sender.join()


def test_the_end_of_the_terminal_ends_the_process_at_once(foreground: Foreground) -> None:
    process = ScriptedProcess(hears=False)
    sender = when_starting(process, signal.SIGHUP)
    with pytest.raises(Left) as caught:
        run(foreground, process)
    assert caught.value.args == (EXIT_INTERRUPTED,)
    process.go_on.set()
    sender.join()


def test_a_server_that_outlives_its_terminal_goes_on(foreground: Foreground) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    Foreground(leave=leave)
    os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert not foreground.stop.is_set()


def test_a_second_signal_ends_the_process_at_once(foreground: Foreground) -> None:
    process = ScriptedProcess(hears=False)
    first = when_starting(process, signal.SIGTERM)

    def again() -> None:
        assert process.abandoned.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    second = threading.Thread(target=again)
    second.start()
    with pytest.raises(Left) as caught:
        run(foreground, process)
    assert caught.value.args == (EXIT_INTERRUPTED,)
    process.go_on.set()
    first.join()
    second.join()


@pytest.mark.usefixtures("foreground")
def test_a_start_that_hangs_is_left() -> None:
    clock, process = SimulatedClock(), ScriptedProcess(hears=False)
    foreground = Foreground(clock, leave)
    sender = when_starting(process, signal.SIGTERM)

    def pass_time() -> None:
        while not process.go_on.wait(0.05):
            clock.advance(1)

    time = threading.Thread(target=pass_time)
    time.start()
    # What a child started goes with it: it says when the one that holds its output open is gone too.
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"], stdout=subprocess.PIPE) as child:
        with pytest.raises(Left):
            run(foreground, process)
        assert child.wait(60) == -signal.SIGKILL
        assert child.stdout is not None
        assert select.select([child.stdout], [], [], 60)[0], "the end of the output"
    process.go_on.set()
    sender.join()
    time.join()


@pytest.mark.usefixtures("foreground")
def test_each_step_of_a_start_is_told_and_that_it_does_not_hang() -> None:
    process, told, clock = ScriptedProcess(), [], SimulatedClock()
    foreground = Foreground(clock, leave)

    def tell(line: str) -> None:
        told.append(line.split(maxsplit=2)[2])
        if len(told) == 1:
            process.step = "second"
        elif len(told) == 2:
            clock.advance(60)
        else:
            process.go_on.set()

    process.step = "first"
    with foreground.running(process, tell):  # type: ignore[arg-type]
        assert told == ["first", "second", "… still second"]
