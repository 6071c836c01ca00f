"""A real headless browser that tests drive: it opens an address, runs scripts in the page, presses keys, and keeps every error it met.

It speaks the browser's own protocol over two pipes, so no port is open. Runs in tests.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.model.clock import SystemClock

WAIT_S_MAX = 120.0
_START = """
import os, sys
import fcntl
there = [fcntl.fcntl(int(sys.argv[at]), fcntl.F_DUPFD, 10) for at in (1, 2)]
for at, one in enumerate(there, 3):
    os.dup2(one, at)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Gives the browser the pipes as its descriptors 3 and 4, and becomes it."""


class PageBrowser:
    """One tab. Not thread safe."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._rest = b""
        self._numbers = itertools.count(1)
        self._session = ""
        self._clock = SystemClock()
        self.errors: list[str] = []
        """What the console and the network complained about."""

    def start(self) -> None:
        """Attach to the first tab."""
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Go to an address, and wait until its document is there."""
        self._call("Page.navigate", {"url": url})
        self.wait_for("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is waited for."""
        told = self._call("Runtime.evaluate", {"expression": script, "awaitPromise": True, "returnByValue": True, "userGesture": True})
        if "exceptionDetails" in told:
            raise AssertionError(f"{script[:200]}: {json.dumps(told['exceptionDetails'])[:2_000]}")
        return told["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Return the first value of an expression that is true."""
        return self.wait_until(lambda: self.run(script), script)

    def wait_until(self, look: Callable[[], Any], what: str) -> Any:
        """Return the first thing found that is true."""
        deadline_s = self._clock.monotonic_s() + WAIT_S_MAX
        while not (found := look()):
            if self._clock.monotonic_s() > deadline_s:
                raise AssertionError(f"never: {what}\nerrors: {self.errors}\n{self.run('document.body.innerText')[:4_000]}")
            self._clock.wait(threading.Event(), 0.1)
        return found

    def press(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", {"type": kind, "key": key, **(text if kind == "keyDown" else {})})

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Be a screen of this size, with light or dark colours."""
        self._call("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
        media = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", {"features": media})

    def picture(self, path: Path) -> None:
        """Keep what the page looks like."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", {"format": "png"})["data"]))

    def script_seconds(self) -> float:
        """Return for how long the page has been at work: scripts, styles and layout.

        The browser's own count of scripts leaves out what follows a promise, which is all that this page does: 0.02 s of 0.6 s.
        """
        metrics = self._call("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")

    def _call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters or {}}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            told = self._message()
            if told.get("id") == number:
                if "error" in told:
                    raise AssertionError(f"{method}: {told['error']}")
                return dict(told["result"])
            self._note(told)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._read, 1 << 16)
            if not data:
                raise AssertionError("the browser ended")
            self._rest += data
        one, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(one))

    def _note(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(told["exceptionDetails"])[:1_000])
        elif method == "Runtime.consoleAPICalled" and told["type"] in {"error", "warning"}:
            self.errors.append(json.dumps(told["args"])[:1_000])
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent" and not told["request"]["url"].startswith(("http://127.0.0.1", "data:")):
            self.errors.append(f"the page asked {told['request']['url']}")


@contextmanager
def page_browser(program: str, directory: Path) -> Iterator[PageBrowser]:
    """Start a browser; end it with the block."""
    directory.mkdir(parents=True, exist_ok=True)
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = [
        *(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server"),
        *(f"--user-data-dir={directory}", "--remote-debugging-pipe"),
    ]
    environment = os.environ | {"HOME": str(directory), "XDG_CONFIG_HOME": str(directory), "XDG_CACHE_HOME": str(directory)}
    start = [sys.executable, "-S", "-c", _START, str(theirs_in), str(theirs_out), *command]
    with (directory / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            start,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
            cwd=directory,
            pass_fds=(theirs_in, theirs_out),
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            browser = PageBrowser(ours_in, ours_out)
            browser.start()
            yield browser
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(ours_in)
            os.close(ours_out)
