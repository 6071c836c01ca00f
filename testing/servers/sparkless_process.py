"""A server without Spark in a process of its own, which a test may stop, continue and kill.

``python -m testing.servers.sparkless_process FOLDER NAME SOURCE META_URL OBJECTS [FEED]``: ``SparklessServer`` with the source ``shop``,
and, where one is given, a feed as JSON that it creates. It says ``ready``, and ends when its input ends. Runs in tests.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.model.failpoints import VARIABLE
from testing.servers.sparkless_server import SparklessServer

_END_S = 120.0


class SparklessProcess:
    """The process, from the call to ``close``. It leads a group of its own."""

    def __init__(
        self,
        folder: Path,
        name: str,
        source: str,
        meta_url: str,
        objects: str = "",
        feed: dict[str, Any] | None = None,
        failpoints: str = "",
    ) -> None:
        """Start; return when it is ready, or has ended at a failpoint."""
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._log = folder / "process.log"
        command = [sys.executable, "-m", __spec__.name, str(folder), name, source, meta_url, objects]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *([json.dumps(feed)] if feed is not None else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=os.environ | {VARIABLE: failpoints},
            )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n" and not failpoints:
            raise AssertionError(self.output())

    @property
    def ended(self) -> bool:
        """Return whether it has ended."""
        return self._process.poll() is not None

    def output(self) -> str:
        """Return what it logged."""
        return self._log.read_text(errors="replace")

    def pause(self) -> None:
        """Stop it where it stands."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on. Does nothing where it was not stopped, or has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it as a loss of power would."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it in order."""
        self.go_on()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(_END_S)
        finally:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Run a server until the input ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    folder, name, source, meta_url, objects, *feeds = sys.argv[1:]
    with SparklessServer(Path(folder), name, {"shop": source}, meta_url, objects) as server:
        for feed in feeds:
            server.create_feed(json.loads(feed))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
