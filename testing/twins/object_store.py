"""An object store whose faults are scripted.

``FaultyObjects`` stands between the event store and a real backend and does what the script says to calls that match: fail, fail
after the write was done (the answer is lost), wait until a test lets go, answer that the object is gone, or flip a bit. It hides
local files, so that reads go through it. Runs in tests.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pyarrow as pa

from penstock.store.objects.objects import ObjectBackend

HOLD_S_MAX = 120.0


class Fault(Enum):
    """What happens to a call."""

    FAIL = "fail"
    FAIL_AFTER_WRITE = "fail after write"
    MISSING = "missing"
    FLIP_BIT = "flip bit"
    SHORTEN = "shorten"
    HOLD = "hold"


@dataclass
class FaultRule:
    """Applies a fault to calls of an operation (``put``, ``get``, ``list``, ``delete``) on paths that contain a text, a number of times."""

    operation: str
    fault: Fault
    path_part: str = ""
    times: int = 1
    held: threading.Event = field(default_factory=threading.Event)
    """Set when a held call has arrived."""
    release: threading.Event = field(default_factory=threading.Event)
    """Set by the test to let a held call go on."""


class FaultyObjects:
    """An ``ObjectBackend`` that obeys rules. Thread safe."""

    def __init__(self, inner: ObjectBackend) -> None:
        self._inner = inner
        self._rules: list[FaultRule] = []
        self._lock = threading.Lock()
        self.calls: list[tuple[str, str]] = []

    def script(self, rule: FaultRule) -> FaultRule:
        """Add a rule; rules are tried in the order in which they were added."""
        with self._lock:
            self._rules.append(rule)
        return rule

    def put_new(self, path: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        """Create an object, or do what the script says."""
        fault = self._fault("put", path)
        if fault is Fault.FAIL:
            raise OSError(f"{path}: scripted failure")
        self._inner.put_new(path, parts)
        if fault is Fault.FAIL_AFTER_WRITE:
            raise OSError(f"{path}: scripted loss of the answer")

    def get(self, path: str) -> pa.Buffer:
        """Return an object, or do what the script says."""
        fault = self._fault("get", path)
        return _spoil(fault, path, self._inner.get(path))

    def get_range(self, path: str, start: int, length: int) -> pa.Buffer:
        """Return a part of an object, or do what the script says."""
        fault = self._fault("get", path)
        return _spoil(fault, path, self._inner.get_range(path, start, length))

    def size(self, path: str) -> int:
        """Return how many bytes an object has."""
        return self._inner.size(path)

    def list_names(self, prefix: str) -> Sequence[str]:
        """List, or do what the script says."""
        if self._fault("list", prefix) is Fault.FAIL:
            raise OSError(f"{prefix}: scripted failure")
        return self._inner.list_names(prefix)

    def list_modified(self, prefix: str) -> Mapping[str, int]:
        """List with times, or do what the script says."""
        if self._fault("list", prefix) is Fault.FAIL:
            raise OSError(f"{prefix}: scripted failure")
        return self._inner.list_modified(prefix)

    def delete(self, path: str) -> None:
        """Delete, or do what the script says."""
        if self._fault("delete", path) is Fault.FAIL:
            raise OSError(f"{path}: scripted failure")
        self._inner.delete(path)

    def local_path(self, path: str) -> Path | None:
        """Return None, so that reads come through here."""
        return None

    def _fault(self, operation: str, path: str) -> Fault | None:
        with self._lock:
            self.calls.append((operation, path))
            rule = next((r for r in self._rules if r.operation == operation and r.path_part in path and r.times > 0), None)
            if rule is None:
                return None
            rule.times -= 1
        if rule.fault is Fault.HOLD:
            rule.held.set()
            rule.release.wait(HOLD_S_MAX)
        return rule.fault


def _spoil(fault: Fault | None, path: str, payload: pa.Buffer) -> pa.Buffer:
    if fault is Fault.FAIL:
        raise OSError(f"{path}: scripted failure")
    if fault is Fault.MISSING:
        raise FileNotFoundError(path)
    if fault is Fault.SHORTEN:
        return payload.slice(0, payload.size // 2)
    if fault is Fault.FLIP_BIT:
        changed = bytearray(payload)
        changed[len(changed) // 2] ^= 0x10
        return pa.py_buffer(bytes(changed))
    return payload
