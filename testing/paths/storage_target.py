"""A storage target in memory whose faults are scripted.

``ScriptedTarget`` does what rules say to operations that match (``create``, ``write``, ``read``, ``list``, ``look at``, ``delete``, by the
words of ``ObjectTarget``): fail, fail after the write was done, wait until a test lets go. It remembers every operation in order, and how
many were under way at once. Runs in tests.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TypeVar

from obstore.store import MemoryStore

from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.target.storage import ObjectTarget, RetrySettings
from testing.twins.object_store import HOLD_S_MAX, Fault, FaultRule

_T = TypeVar("_T")


class ScriptedTarget(ObjectTarget):
    """An ``ObjectTarget`` that obeys rules. Thread safe."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        super().__init__(self.store, "memory://scripted", RetrySettings(attempts_max=1), SystemClock(), random.Random(1))
        self._rules: list[FaultRule] = []
        self._script_lock = threading.Lock()
        self._under_way = 0
        self.under_way_max = 0
        self.calls: list[tuple[str, str]] = []
        """Operations that took effect, in the order in which they ended."""

    def script(self, rule: FaultRule) -> FaultRule:
        """Add a rule; rules are tried in the order in which they were added."""
        with self._script_lock:
            self._rules.append(rule)
        return rule

    def contents(self) -> dict[str, bytes]:
        """Return every object."""
        return {path: self.get(path) for path in self.paths()}

    def _run(self, verb: str, path: str, call: Callable[[], _T], request_s_max: float | None = None) -> _T:
        with self._script_lock:
            self._under_way += 1
            self.under_way_max = max(self.under_way_max, self._under_way)
            rule = next((r for r in self._rules if r.operation == verb and r.path_part in path and r.times > 0), None)
            if rule is not None:
                rule.times -= 1
        try:
            if rule is not None and rule.fault is Fault.HOLD:
                rule.held.set()
                rule.release.wait(HOLD_S_MAX)
            if rule is not None and rule.fault is Fault.FAIL:
                raise PenstockError("SINK_UNAVAILABLE", f"{path}: scripted failure")
            result = super()._run(verb, path, call, request_s_max)
            if rule is not None and rule.fault is Fault.FAIL_AFTER_WRITE:
                raise PenstockError("SINK_UNAVAILABLE", f"{path}: scripted loss of the answer")
        finally:
            with self._script_lock:
                self._under_way -= 1
        with self._script_lock:
            self.calls.append((verb, path))
        return result
