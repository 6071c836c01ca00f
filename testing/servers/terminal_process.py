"""The command ``penstock`` in a terminal: a pseudo-terminal of a size, what is written to it, and keys. Runs in tests."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from types import TracebackType

from rich.cells import cell_len

_STOP_S = 120.0
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]")
CTRL_C = b"\x03"


class TerminalProcess:
    """One verb, whose terminal is ours. Its session is its own, so that keys reach it alone, and it ends with all its children."""

    def __init__(self, *arguments: str, columns: int, rows: int = 40, environment: Mapping[str, str] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(columns, rows)
        env = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES", "NO_COLOR"}} | {"TERM": "xterm-256color"}
        command = [sys.executable, "-m", "testing.servers.terminal_process", "-m", "penstock", *arguments]
        self._process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=env | dict(environment or {})
        )
        os.close(theirs)
        self._changed = threading.Condition()
        self._written = b""
        self._ended = False
        self._reader = threading.Thread(target=self._read, name=f"terminal-of-{self._process.pid}", daemon=True)
        self._reader.start()

    def __enter__(self) -> TerminalProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_STOP_S)
        self._reader.join(_STOP_S)
        os.close(self._ours)

    @property
    def pid(self) -> int:
        """Return the process's id."""
        return self._process.pid

    @property
    def written(self) -> str:
        """Return everything that it wrote so far, with what a terminal obeys."""
        with self._changed:
            return self._written.decode(errors="replace")

    def widest(self, since: int = 0) -> int:
        """Return how many cells the widest line took that was drawn after so many characters."""
        drawn = _CONTROL.sub(lambda found: "" if found[0].endswith("m") else "\n", self.written[since:])
        return max((cell_len(line) for line in re.split(r"[\r\n]+", drawn)), default=0)

    def text(self) -> str:
        """Return everything that it wrote, without what a terminal obeys."""
        return re.sub(r"\r+\n", "\n", _CONTROL.sub("", self.written))

    def press(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._ours, keys)

    def resize(self, columns: int, rows: int = 40) -> None:
        """Give the terminal another size; the process is told."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, text: str, timeout_s: float) -> None:
        """Wait until a text was drawn."""
        wanted = text.encode()
        with self._changed:
            self._changed.wait_for(lambda: self._ended or wanted in self._written, timeout_s)
            if wanted not in self._written:
                raise AssertionError(f"{text!r} did not come; the terminal shows:\n{self._written.decode(errors='replace')[-4000:]}")

    def wait(self, timeout_s: float) -> int:
        """Wait for the end; return the exit code."""
        code = self._process.wait(timeout_s)
        self._reader.join(_STOP_S)
        return code

    def _read(self) -> None:
        while True:
            try:
                more = os.read(self._ours, 1 << 16)
            except OSError as error:
                # What Linux says when the last one has closed the other side.
                if error.errno != errno.EIO:
                    raise
                more = b""
            with self._changed:
                self._written += more
                self._ended = not more
                self._changed.notify_all()
                if not more:
                    return


if __name__ == "__main__":
    # Whoever leads a session and opens a terminal, or says so, has keys sent to it.
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
