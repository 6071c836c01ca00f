"""The request cache of a region worker: which regions wait to be requested, and which are fed.

Flow control for region requests: at most so many regions are in their incremental scan at once, so a restart with ten thousand
regions does not ask a store for all of them in one breath. Stop-span tasks go first and hold no slot. Each feed state is in exactly
one of: pending, requested, or out. Waiting is per stream: closing a stream wakes its send loop. Runs in the log service.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from penstock.puller.ranged.region_feed_state import FeedStatus, RegionFeedState


class RequestCache:
    """Pending and requested regions of one store. Thread safe."""

    def __init__(self, pending_max: int, uninitialized_max: int) -> None:
        self._pending_max = pending_max
        self._uninitialized_max = uninitialized_max
        self._pending: deque[RegionFeedState] = deque()
        self._requested: dict[int, dict[int, RegionFeedState]] = {}
        self._stop_tasks: deque[int] = deque()
        self._slots_held = 0
        self._stream = 0
        self._stream_open = False
        self._closed = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def add(self, state: RegionFeedState) -> bool:
        """Queue a region; False if there is no room."""
        with self._changed:
            if self._closed or len(self._pending) >= self._pending_max:
                return False
            self._pending.append(state)
            self._changed.notify_all()
            return True

    def wait_for_work(self) -> bool:
        """Wait until a region is pending; False once closed."""
        with self._changed:
            while not self._pending and not self._closed:
                self._changed.wait()
            return not self._closed

    def open_stream(self) -> int:
        """Begin a stream: tasks for feeds of an older one are void."""
        with self._changed:
            self._stream += 1
            self._stream_open = True
            self._stop_tasks.clear()
            return self._stream

    def close_stream(self, stream: int) -> None:
        """End a stream, unless a newer one took its place; its send loop gets None."""
        with self._changed:
            if stream == self._stream:
                self._stream_open = False
            self._changed.notify_all()

    def is_open(self, stream: int) -> bool:
        """Return whether a stream is the open one."""
        with self._lock:
            return self._stream_open and stream == self._stream

    @property
    def stream(self) -> int:
        """Return the number of the newest stream."""
        return self._stream

    def take(self, stream: int) -> RegionFeedState | int | None:
        """Return the next thing to send: a region to register, the request id of a span to stop, or None at the stream's end."""
        with self._changed:
            while not self._closed and self._stream_open and stream == self._stream:
                if self._stop_tasks:
                    return self._stop_tasks.popleft()
                if self._pending and self._slots_held < self._uninitialized_max:
                    state = self._pending.popleft()
                    if not state.live:
                        continue
                    state.holds_slot = True
                    state.stream = stream
                    self._slots_held += 1
                    self._requested.setdefault(state.span.request_id, {})[state.region_id] = state
                    return state
                self._changed.wait()
            return None

    def release_slot(self, state: RegionFeedState) -> None:
        """Give back the slot of a feed that is initialised or over. Idempotent."""
        with self._changed:
            if state.holds_slot:
                state.holds_slot = False
                self._slots_held -= 1
                self._changed.notify_all()

    def find(self, request_id: int, region_id: int) -> RegionFeedState | None:
        """Return the feed that a message belongs to, None if it is stale."""
        with self._lock:
            feeds = self._requested.get(request_id)
            return feeds.get(region_id) if feeds is not None else None

    def find_many(self, request_id: int, region_ids: Sequence[int]) -> tuple[list[RegionFeedState], int]:
        """Return the feeds of several regions of a subscription, and how many are not there."""
        with self._lock:
            feeds = self._requested.get(request_id, {})
            states = [feeds[r] for r in region_ids if r in feeds]
            return states, len(region_ids) - len(states)

    def remove(self, state: RegionFeedState) -> None:
        """Forget a feed that the store ended."""
        with self._changed:
            feeds = self._requested.get(state.span.request_id, {})
            if feeds.get(state.region_id) is state:
                del feeds[state.region_id]
                if not feeds:
                    del self._requested[state.span.request_id]

    def stop_span(self, request_id: int) -> list[RegionFeedState]:
        """Forget all feeds of a subscription and return them; queue the stop-span task if the store knows of it."""
        with self._changed:
            stopped = [s for s in self._pending if s.span.request_id == request_id]
            self._pending = deque(s for s in self._pending if s.span.request_id != request_id)
            requested = self._requested.pop(request_id, None)
            if requested:
                stopped.extend(requested.values())
            if requested and self._stream_open:
                self._stop_tasks.append(request_id)
                self._changed.notify_all()
            return stopped

    def take_all(self) -> list[RegionFeedState]:
        """Remove and return every feed, pending ones too: the store is lost, their ranges may be elsewhere."""
        with self._changed:
            states = [s for feeds in self._requested.values() for s in feeds.values()]
            states.extend(self._pending)
            self._requested.clear()
            self._pending.clear()
            return states

    def regions(self) -> int:
        """Return how many regions are requested or fed."""
        with self._changed:
            return sum(len(feeds) for feeds in self._requested.values())

    def count_by_state(self) -> dict[str, int]:
        """Return how many regions wait to be requested, are in their incremental scan, and send live changes."""
        with self._changed:
            initialized = sum(s.status is FeedStatus.INITIALIZED for feeds in self._requested.values() for s in feeds.values())
            requested = sum(len(feeds) for feeds in self._requested.values())
            return {"pending": len(self._pending), "requested": requested - initialized, "initialized": initialized}

    def close(self) -> None:
        """Wake everybody; nothing more is taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
