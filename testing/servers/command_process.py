"""The command ``penstock`` in a process of its own: data servers and servers that a test starts, talks to, and kills. Runs in tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from types import TracebackType

_STOP_S = 120.0


class CommandProcess:
    """One verb, running. Its process group is its own, so that it ends with all its children."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "penstock", *arguments]
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | (environment or {}),
        )
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._ended = False
        self._reader = threading.Thread(target=self._read, name=f"output-of-{self._process.pid}", daemon=True)
        self._reader.start()

    def __enter__(self) -> CommandProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Return the process's id, which is also its group's."""
        return self._process.pid

    @property
    def output(self) -> str:
        """Return everything that it wrote so far."""
        with self._changed:
            return "".join(self._lines)

    def wait_for(self, text: str, timeout_s: float) -> str:
        """Wait for a line that contains a text; return what follows the text in it."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or any(text in line for line in self._lines), timeout_s)
            for line in self._lines:
                if text in line:
                    return line.split(text, 1)[1].strip()
            written = "".join(self._lines)
        raise AssertionError(f"{text!r} did not come; the process wrote:\n{written}")

    @property
    def ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def wait(self, timeout_s: float) -> int:
        """Wait for the end; return the exit code."""
        code = self._process.wait(timeout_s)
        self._close()
        return code

    def kill(self, *, children: bool) -> None:
        """Send SIGKILL to the process, or to it and all its children at once; return when it is gone."""
        if children:
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait(_STOP_S)

    def stop(self) -> None:
        """Ask the process to end; kill what is left of its group."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        # The leader may be gone while children live: after a kill, or where a child outlived its parent.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_STOP_S)
        self._close()

    def _close(self) -> None:
        self._reader.join(_STOP_S)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
