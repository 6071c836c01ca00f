"""One range: a contiguous part of a table's keys with its versions, locks, log, and those who listen to it.

Everything is in memory and mutated only under the engine's lock. Invariants: commit ts and log index grow along ``log``; a record's index
is unique in the whole server, so a log survives splits (both halves keep the common past) and merges (two logs interleave); a lock's key
has no newer version than the lock's start ts; ``resolved_ts`` never falls. Runs in the data server.
"""

from __future__ import annotations

import bisect
import heapq
from collections import OrderedDict
from collections.abc import Iterable
from enum import IntEnum
from typing import Protocol, TypeAlias

import msgspec

from penstock.source.ranged import RangeEpoch

Version: TypeAlias = "tuple[int, bytes | None, Version | None]"
"""Commit ts, value (None: deleted), and the version before. A chain costs one tuple per write and shares its past."""
Lock: TypeAlias = tuple[int, bytes | None, bytes | None]
"""Start ts, value (None: delete), and the value that the commit will replace."""

ITERATORS_MAX = 64
_RECORD_OVERHEAD_BYTES = 128


class LogKind(IntEnum):
    """What a record says; the numbers are those of the change stream's log types."""

    PREWRITE = 1
    COMMIT = 2
    ROLLBACK = 3


class LogRecord(msgspec.Struct, frozen=True):
    """What one transaction did in one range. Only COMMIT records stay in the log; the others are events for listeners."""

    kind: LogKind
    index: int
    start_ts: int
    commit_ts: int
    keys: list[bytes]
    values: list[bytes | None]
    olds: list[bytes | None]
    nbytes: int


def make_record(
    kind: LogKind, index: int, start_ts: int, commit_ts: int, keys: list[bytes], values: list[bytes | None], olds: list[bytes | None]
) -> LogRecord:
    """Build a record and its weight."""
    weight = sum(map(len, keys)) + sum(map(len, filter(None, values))) + sum(map(len, filter(None, olds)))
    return LogRecord(kind, index, start_ts, commit_ts, keys, values, olds, weight + _RECORD_OVERHEAD_BYTES)


class EndReason(IntEnum):
    """Why a range stops serving its listeners."""

    EPOCH_NOT_MATCH = 1
    NOT_LEADER = 2


class RangeListener(Protocol):
    """Hears what happens in a range, in order. Called under the engine's lock: must not block and must not call the engine."""

    def on_record(self, record: LogRecord) -> None:
        """Take a prewrite, commit or rollback."""

    def on_end(self, reason: EndReason, successors: list[RangeState]) -> None:
        """Take the end of the registration; the successors now hold the keys. Called once, last."""


class RangeState:
    """The state of one range."""

    def __init__(self, range_id: int, table_id: int, start_key: bytes, end_key: bytes, epoch: RangeEpoch, store_id: int) -> None:
        self.range_id = range_id
        self.table_id = table_id
        self.start_key = start_key
        self.end_key = end_key
        self.epoch = epoch
        self.store_id = store_id
        self.rows: dict[bytes, Version] = {}
        self.locks: dict[bytes, Lock] = {}
        self.lock_counts: dict[int, int] = {}
        self.log: list[LogRecord] = []
        self.listeners: list[RangeListener] = []
        self.resolved_ts = 0
        self.subscribers: dict[str, int] = {}
        self.iterators: OrderedDict[tuple[str, int], list[bytes]] = OrderedDict()
        self._sorted_keys: list[bytes] | None = None

    def contains(self, key: bytes) -> bool:
        """Return whether a full key lies in the range."""
        return self.start_key <= key < self.end_key

    def lock(self, key: bytes, lock: Lock) -> None:
        """Place a lock; a transaction may replace its own."""
        before = self.locks.get(key)
        if before is None:
            self.lock_counts[lock[0]] = self.lock_counts.get(lock[0], 0) + 1
        self.locks[key] = lock

    def lock_all(self, start_ts: int, keys: list[bytes], values: list[bytes | None], olds: list[bytes | None]) -> list[bytes]:
        """Place the locks of a transaction; return the keys that it did not hold before, each once."""
        locks = self.locks
        fresh = [key for key in keys if key not in locks]
        known = len(locks)
        for key, value, old in zip(keys, values, olds, strict=True):
            locks[key] = (start_ts, value, old)
        if len(locks) - known != len(fresh):
            fresh = list(dict.fromkeys(fresh))
        self.lock_counts[start_ts] = self.lock_counts.get(start_ts, 0) + len(fresh)
        return fresh

    def unlock(self, keys: Iterable[bytes], start_ts: int) -> list[Lock]:
        """Take away a transaction's locks and return them in the order of the keys."""
        taken = [self.locks.pop(key) for key in keys]
        left = self.lock_counts[start_ts] - len(taken)
        if left:
            self.lock_counts[start_ts] = left
        else:
            del self.lock_counts[start_ts]
        return taken

    def append(self, record: LogRecord) -> None:
        """Write a commit record's rows and log it."""
        rows, ts, known = self.rows, record.commit_ts, len(self.rows)
        for key, value in zip(record.keys, record.values, strict=True):
            rows[key] = (ts, value, rows.get(key))
        if len(rows) != known:
            self._sorted_keys = None
        self.log.append(record)

    def notify(self, record: LogRecord) -> None:
        """Tell every listener."""
        for listener in tuple(self.listeners):
            listener.on_record(record)

    def end_listeners(self, reason: EndReason, successors: list[RangeState]) -> None:
        """Tell every listener that the range stops serving it, and forget them."""
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener.on_end(reason, successors)

    def advance_resolved(self, fresh_ts: int) -> int:
        """Return the resolved ts: below the oldest lock, else the fresh ts. A lock older than what was promised commits above it anyway."""
        bound = min(self.lock_counts) - 1 if self.lock_counts else fresh_ts
        self.resolved_ts = max(self.resolved_ts, min(bound, fresh_ts))
        return self.resolved_ts

    def sorted_keys(self) -> list[bytes]:
        """Return all keys in order; the list is never changed afterwards, so a reader may keep it."""
        if self._sorted_keys is None:
            self._sorted_keys = sorted(self.rows)
        return self._sorted_keys

    def commits_after(self, ts: int) -> list[LogRecord]:
        """Return the commit records above a ts, in commit order. Records may hold keys of a sibling that split off: filter by key."""
        return self.log[bisect.bisect_right(self.log, ts, key=lambda r: r.commit_ts) :]

    def records_after(self, index: int) -> list[LogRecord]:
        """Return the log after an index."""
        return self.log[bisect.bisect_right(self.log, index, key=lambda r: r.index) :]

    def read(self, keys: list[bytes], ts: int) -> tuple[list[bytes], list[bytes], list[int]]:
        """Return keys, values and commit ts of those rows that exist as of a ts."""
        out_keys: list[bytes] = []
        out_values: list[bytes] = []
        out_ts: list[int] = []
        for key in keys:
            version: Version | None = self.rows.get(key)
            while version is not None and version[0] > ts:
                version = version[2]
            if version is not None and version[1] is not None:
                out_keys.append(key)
                out_values.append(version[1])
                out_ts.append(version[0])
        return out_keys, out_values, out_ts

    def keep_iterator(self, subscriber: str, version: int) -> list[bytes]:
        """Open a snapshot iterator; the oldest one is lost when there are too many."""
        keys = self.sorted_keys()
        self.iterators[subscriber, version] = keys
        while len(self.iterators) > ITERATORS_MAX:
            self.iterators.popitem(last=False)
        return keys

    def split_off(self, key: bytes, child_id: int) -> RangeState:
        """Cut the keys from ``key`` on off into a new range, which inherits locks, log and subscriptions."""
        self.epoch = RangeEpoch(self.epoch.conf_ver, self.epoch.version + 1)
        child = RangeState(child_id, self.table_id, key, self.end_key, self.epoch, self.store_id)
        child.rows = {k: v for k, v in self.rows.items() if k >= key}
        self.rows = {k: v for k, v in self.rows.items() if k < key}
        locks, self.locks, self.lock_counts = self.locks, {}, {}
        for locked, lock in locks.items():
            (child if locked >= key else self).lock(locked, lock)
        child.log = list(self.log)
        child.resolved_ts = self.resolved_ts
        child.subscribers = dict(self.subscribers)
        self.end_key = key
        self._forget_orders()
        return child

    def absorb(self, right: RangeState) -> None:
        """Take over the right neighbour. Records that both logs hold, from before a split, count once."""
        self.epoch = RangeEpoch(max(self.epoch.conf_ver, right.epoch.conf_ver), max(self.epoch.version, right.epoch.version) + 1)
        self.rows.update(right.rows)
        for key, lock in right.locks.items():
            self.lock(key, lock)
        merged: list[LogRecord] = []
        for record in heapq.merge(self.log, right.log, key=lambda r: r.index):
            if not merged or merged[-1].index != record.index:
                merged.append(record)
        self.log = merged
        self.end_key = right.end_key
        self.resolved_ts = min(self.resolved_ts, right.resolved_ts)
        for name, version in right.subscribers.items():
            self.subscribers[name] = min(version, self.subscribers.get(name, version))
        self._forget_orders()

    def move(self, store_id: int) -> None:
        """Lead the range from another store; snapshot iterators stay behind and are lost."""
        self.epoch = RangeEpoch(self.epoch.conf_ver + 1, self.epoch.version)
        self.store_id = store_id
        self.iterators.clear()

    def _forget_orders(self) -> None:
        self._sorted_keys = None
        self.iterators.clear()
