"""Which commit ts the transactions of the log have.

``chain_ts`` gives them out: growing, not before a transaction's own time, and with room below each for the schema changes that it may hold.
``CommitLog`` remembers those of recent places, so that a snapshot that begins at some place knows the ts there. Runs in the log service.
"""

from __future__ import annotations

import threading

import numpy as np

from penstock.kernels.jit import I64, U64
from penstock.model.timestamp import LOGICAL_BITS
from penstock.source.postgres.slot import format_lsn, parse_lsn
from penstock.source.postgres.tables.histories import DDL_SLOTS
from penstock.source.single_log import LogPosition

TS_STEP = DDL_SLOTS + 1


class CommitLog:
    """Which ts the chain had at recent places of the log. Thread safe."""

    def __init__(self, entries_max: int = 256) -> None:
        self._entries_max = entries_max
        self._entries: list[tuple[I64, U64]] = []
        self._start = LogPosition(0, "0/0")
        self._reached = 0
        self._changed = threading.Condition()
        self._keep = 0
        self._reading = False

    def begin(self, start: LogPosition) -> None:
        """Forget everything: a reader begins here."""
        with self._changed:
            self._entries = []
            self._start = start
            self._reached = parse_lsn(start.text)
            self._reading = True
            self._changed.notify_all()

    def add(self, lsns: I64, ts: U64) -> None:
        """Note transactions or a mark, in log order."""
        with self._changed:
            self._entries.append((lsns, ts))
            if len(self._entries) > self._entries_max and self._keep == 0:
                dropped = self._entries.pop(0)
                self._start = LogPosition(int(dropped[1][-1]), format_lsn(int(dropped[0][-1])))
            self._reached = int(lsns[-1])
            self._changed.notify_all()

    def end(self) -> None:
        """Say that nobody reads any more."""
        with self._changed:
            self._reading = False
            self._changed.notify_all()

    def last_ts(self) -> int:
        """Return the newest ts; 0 before anything was read."""
        with self._changed:
            return int(self._entries[-1][1][-1]) if self._entries else self._start.ts

    def hold(self) -> None:
        """Keep everything from now on until ``release``."""
        with self._changed:
            self._keep += 1

    def release(self) -> None:
        """End a ``hold``."""
        with self._changed:
            self._keep -= 1

    def wait_reading(self, timeout_s: float) -> bool:
        """Wait until somebody reads the log; return whether somebody does."""
        with self._changed:
            return self._changed.wait_for(lambda: self._reading, timeout_s)

    def ts_at(self, lsn: int, timeout_s: float) -> int | None:
        """Return the chain's ts at a place, waiting until a reader is there; None where it is not known."""
        with self._changed:
            self._changed.wait_for(lambda: self._reading and self._reached >= lsn, timeout_s)
            if not self._reading or self._reached < lsn or lsn < parse_lsn(self._start.text):
                return None
            ts = self._start.ts
            for lsns, stamps in self._entries:
                at = int(np.searchsorted(lsns, lsn, side="right"))
                if at == 0:
                    break
                ts = int(stamps[at - 1])
            return ts


def chain_ts(last_ts: int, commit_ms: I64) -> U64:
    """Return growing ts for transactions in log order, each at least ``TS_STEP`` above the one before and not before its own time."""
    place = np.arange(len(commit_ms), dtype=np.int64) * TS_STEP
    floor = np.maximum(commit_ms, 0) << LOGICAL_BITS
    return (np.maximum(np.maximum.accumulate(floor - place), last_ts + TS_STEP) + place).astype(np.uint64)
