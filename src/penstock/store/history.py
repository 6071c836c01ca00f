"""Who still needs history: pins of subscriptions, leases of readers, and the ts below which nobody does.

A pin says up to where a subscription has got; it holds history back, but no longer than ``gc_ttl_seconds``: after that its reader gets
``STALE_READ``, which is loud, instead of a disk that fills silently. A lease protects the objects of a read that is under way; it ends
when the reader closes its handle, or when its Flight tickets expire. Both live in memory: whoever runs subscriptions pins again after a
restart, and until objects leave the checkpoints too, an early collection takes nothing away. Runs in the log service.
"""

from __future__ import annotations

import threading
from collections import deque

from penstock.model.clock import Clock
from penstock.model.timestamp import TS_MAX, compose_ts
from penstock.store.settings import StoreSettings

EXPIRING_MAX = 64


class HistoryNeeds:
    """The pins and leases of all spans. Thread safe."""

    def __init__(self, settings: StoreSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._pins: dict[int, dict[str, int]] = {}
        self._leases: dict[int, tuple[int, int]] = {}
        self._expiring: dict[int, deque[tuple[int, int]]] = {}
        self._planned: dict[int, deque[tuple[int, int]]] = {}
        self._next_lease = 1

    def pin(self, span_id: int, name: str, ts: int) -> None:
        """Keep the changes of a span above a ts for a subscription; a later call moves the pin."""
        with self._lock:
            self._pins.setdefault(span_id, {})[name] = ts

    def unpin(self, name: str) -> None:
        """Let go of everything that a subscription pinned."""
        with self._lock:
            for pins in self._pins.values():
                pins.pop(name, None)

    def pinned_from_ts(self) -> int:
        """Return the pin furthest back of all spans, no further than ``gc_ttl_seconds`` allows; ``TS_MAX`` where nothing is pinned."""
        with self._lock:
            oldest_ts = min((ts for pins in self._pins.values() for ts in pins.values()), default=TS_MAX)
        return max(oldest_ts, self._now_less(self._settings.gc_ttl_seconds))

    def lease(self, span_id: int, from_ts: int) -> int:
        """Protect what a read of a span from a ts on needs until ``release``; return the lease's number."""
        with self._lock:
            number = self._next_lease
            self._next_lease += 1
            self._leases[number] = (span_id, from_ts)
            return number

    def lease_until(self, span_id: int, from_ts: int, expires_ms: int) -> None:
        """Protect what a read of a span from a ts on needs until a time of day, for readers who do not say when they end."""
        with self._lock:
            self._hold(self._expiring.setdefault(span_id, deque()), from_ts, expires_ms)

    def pin_until(self, span_id: int, ts: int, expires_ms: int) -> None:
        """Pin the changes of a span above a ts until a time of day, for whoever plans its windows again and again while it lives."""
        with self._lock:
            self._hold(self._planned.setdefault(span_id, deque()), ts, expires_ms)

    def _hold(self, held: deque[tuple[int, int]], ts: int, expires_ms: int) -> None:
        """Add to what is held, by expiry. At most ``EXPIRING_MAX`` are told apart; beyond, the oldest are held together."""
        _drop_expired(held, self._clock.now_ms())
        while held and held[-1][1] >= ts:
            held.pop()  # The new one holds as much, and longer.
        held.append((expires_ms, ts))
        if len(held) > EXPIRING_MAX:
            (_, oldest_ts), (later_ms, _) = held.popleft(), held.popleft()
            held.appendleft((later_ms, oldest_ts))

    def release(self, number: int) -> None:
        """End a lease; one that has ended is no error."""
        with self._lock:
            self._leases.pop(number, None)

    def _now_less(self, seconds: int) -> int:
        return compose_ts(max(0, self._clock.now_ms() - seconds * 1000))

    def _leased_ts(self, span_id: int) -> int:
        now_ms = self._clock.now_ms()
        with self._lock:
            leases = self._expiring.get(span_id, deque())
            _drop_expired(leases, now_ms)
            held = [ts for owner, ts in self._leases.values() if owner == span_id]
            return min([*held, *(ts for _, ts in leases)], default=TS_MAX)

    def keep_above(self, span_id: int) -> int:
        """Return the ts at or below which history may leave the manifest of a span."""
        with self._lock:
            planned = self._planned.get(span_id, deque())
            _drop_expired(planned, self._clock.now_ms())
            pinned_ts = min([*self._pins.get(span_id, {}).values(), *(ts for _, ts in planned)], default=TS_MAX)
        pinned_ts = max(pinned_ts, self._now_less(self._settings.gc_ttl_seconds))
        return min(pinned_ts, self._now_less(self._settings.history_seconds), self._leased_ts(span_id))

    def checkpoints_above(self, span_id: int) -> int:
        """Return the ts at or below which history may leave the checkpoints of a span, and its objects the storage."""
        kept_seconds = max(self._settings.checkpoint_seconds, self._settings.history_seconds)
        return min(self.keep_above(span_id), self._now_less(kept_seconds))


def _drop_expired(leases: deque[tuple[int, int]], now_ms: int) -> None:
    while leases and leases[0][0] < now_ms:
        leases.popleft()
