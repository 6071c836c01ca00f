"""Looks at every component of a server all the time, and knows what was found last.

Invariants: asking for health never waits for a component: each is looked at by a thread of its own, and one that has not answered for a
while is not well, whatever it said before. What changes is logged once. Runs in the server.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.settings.masking import mask_text

log = logging.getLogger(__name__)

LOOK_S = 2.0
PATIENCE_S = 15.0
"""A component that has not answered for so long is not well."""


class ComponentHealth(msgspec.Struct, frozen=True):
    """What was found of one component; ``facts`` are numbers and short words that may be shown."""

    ok: bool
    detail: str = ""
    hint: str = ""
    facts: dict[str, Any] = {}


Look = Callable[[], ComponentHealth]


class HealthWatch:
    """Runs looks again and again, from ``start`` to ``stop``."""

    def __init__(self, looks: Mapping[str, Look], clock: Clock, interval_s: float = LOOK_S) -> None:
        self._looks = dict(looks)
        self._clock = clock
        self._interval_s = interval_s
        self._found: dict[str, tuple[float, ComponentHealth]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(name,), name=f"health-{name}", daemon=True) for name in self._looks]

    def start(self) -> None:
        """Look once at everything, so that the first answer is right; then begin to look again and again."""
        for name in self._looks:
            self.look(name)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Look no more; a look that hangs is not waited for."""
        self._stop.set()

    def components(self) -> dict[str, ComponentHealth]:
        """Return what is known of every component."""
        now_s, found = self._clock.monotonic_s(), {}
        with self._lock:
            known = dict(self._found)
        for name in self._looks:
            if name not in known:
                found[name] = ComponentHealth(ok=False, detail="it was not looked at yet")
                continue
            looked_s, health = known[name]
            silent_s = now_s - looked_s
            if silent_s > self._interval_s + PATIENCE_S:
                health = ComponentHealth(ok=False, detail=f"no answer for {silent_s:.0f} s", hint=health.hint, facts=health.facts)
            found[name] = health
        return found

    def look(self, name: str) -> None:
        """Look at one component now. Called by its thread, or by a test that did not start it."""
        try:
            health = self._looks[name]()
        except PenstockError as error:
            health = ComponentHealth(ok=False, detail=mask_text(str(error)), hint=error.hint)
        except Exception as error:  # noqa: BLE001 - a component is foreign code; whatever it raises, it is not well
            health = ComponentHealth(ok=False, detail=mask_text(f"{type(error).__name__}: {error}".splitlines()[0]))
        with self._lock:
            before = self._found.get(name)
            self._found[name] = (self._clock.monotonic_s(), health)
        if not health.ok and (before is None or before[1].ok):
            log.warning("component is not well", extra={"component": name, "detail": health.detail, "hint": health.hint})
        elif health.ok and before is not None and not before[1].ok:
            log.info("component is well again", extra={"component": name})

    def _watch(self, name: str) -> None:
        while not self._clock.wait(self._stop, self._interval_s):
            self.look(name)
