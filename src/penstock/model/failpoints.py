"""Named points before and after each durable step, at which a test makes a process die, fail or wait.

Off unless the environment variable ``PENSTOCK_FAILPOINTS`` is set when the process starts (or a test calls ``arm``): points divided by
commas, each ``name=action`` or ``name=action@pass``. A name is a step and a side, such as ``data-put:before``. Actions: ``kill`` (the
process ends as by ``kill -9``), ``raise`` (the error FAILPOINT), ``delay:SECONDS``. With ``@3`` the point acts at its third pass only,
otherwise at every one. Invariant: a point that is not armed costs one look at a variable. Runs anywhere.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError

VARIABLE = "PENSTOCK_FAILPOINTS"
FEED_STEPS = (
    *("spool-write", "cut-record", "data-put", "index-put", "schema-file"),
    *("window-record", "checksums", "transactions", "progress", "metadata"),
)
"""Those of a feed that writes files."""
STEPS = (*FEED_STEPS, "http-post", "dead-letter", "kafka-commit", "lake-commit", "share-schemas", "share-manifest", "share-marks")
POINTS, FEED_POINTS = (frozenset(f"{step}:{side}" for step in steps for side in ("before", "after")) for steps in (STEPS, FEED_STEPS))


@dataclass
class _Point:
    action: str
    only_pass: int | None
    passes: int = 0
    call: Callable[[], None] | None = None


class Failpoints:
    """The armed points of a process. Thread safe."""

    def __init__(self, script: str = "", clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._points: dict[str, _Point] = {}
        self.arm(script)

    def arm(self, script: str) -> None:
        """Arm the points of a script and disarm all others."""
        self._points = dict(_parse(part) for part in script.split(",") if part.strip())

    def call(self, name: str, act: Callable[[], None]) -> None:
        """Have a function called the next time that a point is reached, and disarm all others: a test acts in the middle of a step."""
        self._points = {name: _Point("call", 1, call=act)}

    def reach(self, name: str) -> None:
        """Do what the script says of this point, if anything."""
        if self._points:
            self._act(name)

    def _act(self, name: str) -> None:
        if name not in POINTS:
            raise PenstockError("INTERNAL", f"no failpoint {name}")
        point = self._points.get(name)
        if point is None:
            return
        with self._lock:
            point.passes += 1
            if point.only_pass is not None and point.passes != point.only_pass:
                return
        if point.call is not None:
            point.call()
        elif point.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif point.action == "raise":
            raise PenstockError("FAILPOINT", f"{name}, pass {point.passes}")
        else:
            self._clock.wait(threading.Event(), float(point.action.removeprefix("delay:")))


def _parse(part: str) -> tuple[str, _Point]:
    name, _, rest = part.strip().partition("=")
    action, _, at = rest.partition("@")
    known = action in {"kill", "raise"} or (action.startswith("delay:") and action[6:].replace(".", "", 1).isdigit())
    if name not in POINTS or not known or (at and not at.isdigit()):
        raise PenstockError("CONFIG_INVALID", f"{VARIABLE}: {part.strip()!r} is not name=action or name=action@pass")
    return name, _Point(action, int(at) if at else None)


FAILPOINTS = Failpoints(os.environ.get(VARIABLE, ""))
"""Those of this process."""
reach = FAILPOINTS.reach
arm = FAILPOINTS.arm
