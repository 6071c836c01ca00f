"""Servers of other people on loopback, each in a folder of its own and ended by its process.

Nothing here knows what a server serves. A program that is not on this machine is ``MISSING_DEPENDENCY`` and names its Debian package.
Invariants: a server listens on 127.0.0.1 only and never runs as root; whoever started one ends it, and one that is
started ``with_us`` ends even where its starter was killed. Runs in the demo, in benchmarks and in tests.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError

START_S_MAX = 90.0
STOP_S_MAX = 20.0
Signals = Sequence[tuple[signal.Signals, float]]
"""What a server is told, one after the other, and how many seconds it has to obey each."""
ORDERLY: Signals = ((signal.SIGTERM, STOP_S_MAX),)
POSTGRES_ENDS: Signals = ((signal.SIGINT, STOP_S_MAX), (signal.SIGQUIT, STOP_S_MAX))
"""Its sessions are cut off; where one that reads the log keeps it waiting, it ends them and itself. Killed, it would leave its sessions
behind with its memory, and could not be started again until the last of them noticed."""
_LOOK_S = 0.1


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def answers(port: int) -> Callable[[], bool]:
    """Return a test of whether something listens at a loopback port."""

    def ready() -> bool:
        with socket.socket() as one:
            one.settimeout(1.0)
            return one.connect_ex(("127.0.0.1", port)) == 0

    return ready


@contextmanager
def running(
    command: Sequence[str],
    directory: Path,
    ready: Callable[[], bool],
    user: str | None = None,
    stop: threading.Event | None = None,
    signals: Signals = ORDERLY,
) -> Iterator[None]:
    """Run a server until the block ends; wait until it is ready, or until it is asked to stop, which is ``CANCELLED``.

    It is ended by the signals in turn, and killed after the last.
    """
    log = directory / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(as_user(user, command), stdout=out, stderr=subprocess.STDOUT, cwd=directory, start_new_session=True)
    try:
        clock, pause = SystemClock(), stop or threading.Event()
        deadline = clock.monotonic_s() + START_S_MAX
        while not ready():
            if process.poll() is not None or clock.monotonic_s() > deadline:
                said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise PenstockError("UPSTREAM_UNREACHABLE", f"{command[0]} did not start: {said}")
            if clock.wait(pause, _LOOK_S):
                raise PenstockError("CANCELLED", f"{command[0]} was stopped while it started")
        yield
    finally:
        end(process, signals)


def complete(command: Sequence[str], directory: Path, user: str | None, stop: threading.Event, more: Mapping[str, str]) -> None:
    """Run a program to its end, unless asked to stop; raise what it said where it failed. ``more`` is for its environment."""
    log, clock = directory / "made.log", SystemClock()
    with log.open("wb") as out:
        process = subprocess.Popen(
            as_user(user, command), stdout=out, stderr=subprocess.STDOUT, cwd=directory, start_new_session=True, env=os.environ | more
        )
    try:
        deadline = clock.monotonic_s() + START_S_MAX
        while process.poll() is None:
            if clock.wait(stop, _LOOK_S):
                raise PenstockError("CANCELLED", f"{command[0]} was stopped")
            if clock.monotonic_s() > deadline:
                raise PenstockError("UPSTREAM_UNREACHABLE", f"{command[0]} did not end in time")
    finally:
        end(process)
    if process.returncode:
        said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise PenstockError("UPSTREAM_UNREACHABLE", f"{command[0]} ended with {process.returncode}: {said}")


def end(process: subprocess.Popen[bytes], signals: Signals = ORDERLY) -> None:
    """End a server that leads its process group, and what it started with it."""
    for number, wait_s in (*signals, (signal.SIGKILL, None)):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)


def unprivileged(directory: Path) -> str | None:
    """Make a directory; return the user under which a server runs that refuses to run as root, let into the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        return None
    name = next(u.pw_name for u in pwd.getpwall() if u.pw_name in {"postgres", "mysql", "nobody"})
    shutil.chown(directory, name)
    for parent in (directory, *directory.parents):
        if parent.stat().st_uid == 0 and parent != Path("/") and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    return name


def as_user(user: str | None, command: Sequence[str]) -> list[str]:
    """Return a command that runs under another user.

    Python would fork for it rather than spawn, and gRPC, whose threads may be in this process, aborts a fork now and then.
    """
    return [*(("setpriv", f"--reuid={user}") if user else ()), *command]


def with_us(command: Sequence[str], number: str) -> list[str]:
    """Return a command that gets a signal when the thread that started it ends, however it does; the same where Linux is not."""
    setpriv = shutil.which("setpriv")
    return [*((setpriv, f"--pdeathsig={number}") if setpriv else ()), *command]


def program(name: str, package: str) -> str:
    """Return where a program is; PostgreSQL's newest version first, whose programs are on no path."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name), reverse=True):
        if (folder / name).exists():
            return str(folder / name)
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/bin")
    if found is None:
        raise PenstockError("MISSING_DEPENDENCY", f"{name} is not on this machine", f"Install the Debian package {package}.")
    return found
