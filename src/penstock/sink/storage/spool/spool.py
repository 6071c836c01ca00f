"""The spool: encoded data between the encoders and the target, in memory and on disk.

A data item is a run of encoded chunks of one file. It grows in the memory tier, in the buffer that is later uploaded as it stands; when
the tier is nearly full, a background thread moves the items that are needed last to the disk tier, and the file goes on in a new item.
Encoders wait for room in memory, the caller of the sink never does. What the spool holds decides about wakes (``watermarks``). A drain
marker has no bytes: it goes through its dispatcher's channel like the data and comes out behind it.

Invariants: a byte counts from ``put`` to ``release``, in exactly one tier; the memory tier is exceeded by one chunk of each encoder and by
files that are read back from disk to be written; spilling never stops for the quota, because the wakes that are held back bound what
still comes. A disk that is full or fails trips the latch with SPOOL_FAILED. Runs on executors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.model.errors import PenstockError
from penstock.model.failpoints import reach
from penstock.sink.contract import DispatcherId
from penstock.sink.failure_latch import FailureLatch
from penstock.sink.storage.metrics import SinkCounters
from penstock.sink.storage.spool.file_buffer import BufferPool, FileBuffer
from penstock.sink.storage.spool.segment import SegmentPlace, SpoolSegments
from penstock.sink.storage.spool.watermarks import WakeLine, Watermarks

_SPILL_ABOVE = 0.8
_SPILL_DOWN_TO = 0.6


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """How much a spool holds."""

    quota_bytes: int = 2 << 30
    memory_ratio: float = 0.2

    @property
    def memory_bytes_max(self) -> int:
        """Return the size of the memory tier."""
        return int(self.quota_bytes * self.memory_ratio)


@dataclass(slots=True)
class SpoolLevel:
    """How full a spool is. Changes under the latch's lock."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    items: int = 0

    @property
    def nbytes(self) -> int:
        """Return how many bytes are in, memory and disk."""
        return self.memory_bytes + self.disk_bytes


class Tier(Enum):
    """Where an item's bytes are."""

    MEMORY = "memory"
    SPILLING = "on the way to disk"
    DISK = "disk"
    LOADED = "in a file that is written"


class DataItem:
    """A run of encoded chunks of a dispatcher's file. Fields change under the spool's lock, the content while it is claimed."""

    __slots__ = ("claimed", "content", "dispatcher", "nbytes", "place", "tier")

    def __init__(self, dispatcher: DispatcherId, content: FileBuffer) -> None:
        self.dispatcher = dispatcher
        self.nbytes = 0
        """What counts: the bytes that were put."""
        self.content: FileBuffer | None = content
        self.place: SegmentPlace | None = None
        self.tier = Tier.MEMORY
        self.claimed = True
        """An encoder appends to it."""


class DrainMarkerItem:
    """Goes behind a dispatcher's data; done when everything before it is in the target. ``callbacks`` fire then."""

    __slots__ = ("action", "callbacks", "done", "encoded_s")

    def __init__(self, action: Callable[[], None] | None = None, callbacks: tuple[Callable[[], None], ...] = ()) -> None:
        self.action = action
        """What a writer does when the marker comes out, before it is done."""
        self.callbacks = callbacks
        self.encoded_s = 0.0
        self.done = False


class Spool:
    """Holds items of all dispatchers of a task. Thread safe."""

    def __init__(
        self, settings: SpoolSettings, latch: FailureLatch, buffers: BufferPool, counters: SinkCounters, segments: SpoolSegments
    ) -> None:
        self._memory_max = settings.memory_bytes_max
        self._latch = latch
        self._buffers = buffers
        self._counters = counters
        self._segments = segments
        self._room = latch.condition()
        self._spill_wanted = latch.condition()
        self._in_memory: dict[DataItem, None] = {}
        self.level = SpoolLevel()
        self._spilling = False
        self._thread: threading.Thread | None = None
        self.wakes = WakeLine(Watermarks.of_quota(settings.quota_bytes), latch, counters, lambda: self.level.nbytes)

    def claim(self, item: DataItem) -> FileBuffer | None:
        """Return an item's buffer for another chunk, until the next ``put``; None where it grows no more. Called by encoders."""
        with self._latch.lock:
            if item.tier is not Tier.MEMORY:
                return None
            item.claimed = True
            return item.content

    def put(self, item: DataItem) -> None:
        """Take over what was appended to an item; waits while the memory tier is full. Called by encoders."""
        assert item.content is not None
        with self._latch.lock:
            self._latch.check()
            added = item.content.tell() - item.nbytes
            if item.nbytes == 0:
                self._in_memory[item] = None
                self.level.items += 1
            item.nbytes += added
            item.claimed = False
            self.level.memory_bytes += added
            self._counters.spool_items_peak = max(self._counters.spool_items_peak, self.level.items)
            self._counters.spool_bytes_peak = max(self._counters.spool_bytes_peak, self.level.nbytes)
            if self.level.memory_bytes > self._memory_max * _SPILL_ABOVE:
                self._start_spilling()
            self._latch.wait_for(self._room, lambda: self.level.memory_bytes <= self._memory_max)

    def assemble(self, items: Sequence[DataItem]) -> FileBuffer:
        """Return a file's bytes in one buffer, for the caller; they count until ``release``. One item in memory is not copied."""
        if len(items) == 1:
            whole = self._detach(items[0])
            if whole is not None:
                return whole
        into = self._buffers.take(sum(item.nbytes for item in items))
        for item in items:
            self._load(item, into)
        return into

    def release(self, items: Sequence[DataItem]) -> None:
        """Forget items that are in the target; wakes fire if the level allows it now."""
        with self._latch.lock:
            self.level.memory_bytes -= sum(item.nbytes for item in items)
            self.level.items -= len(items)
            self._room.notify_all()
        self.wakes.fire()

    def close(self) -> None:
        """Wait for the spilling thread and delete the disk tier, after the latch tripped."""
        with self._latch.lock:
            thread = self._thread
        if thread is not None:
            thread.join()
        self._in_memory.clear()
        self._segments.close()

    def _detach(self, item: DataItem) -> FileBuffer | None:
        """Return an item's own buffer, or None where it is on disk."""
        with self._latch.lock:
            self._in_memory.pop(item, None)
            item.tier, content, item.content = Tier.LOADED, item.content, None
        return content

    def _load(self, item: DataItem, into: FileBuffer) -> None:
        content = self._detach(item)
        if content is not None:
            into.write(content.content())
            # The spilling thread may still read the buffer; what it makes of it is dropped.
            self._buffers.give_back(content)
            return
        place = item.place
        assert place is not None
        try:
            self._segments.read_into(place, into.reserve(place.nbytes)[: place.nbytes].data)
            into.advance(place.nbytes)
        except OSError as error:
            raise PenstockError("SPOOL_FAILED", f"cannot read from the spool: {error.strerror or error}") from error
        self._segments.release(place)
        with self._latch.lock:
            item.place = None
            self.level.disk_bytes -= item.nbytes
            self.level.memory_bytes += item.nbytes

    def _start_spilling(self) -> None:
        self._spilling = True
        if self._thread is None and self._latch.error is None:
            self._thread = threading.Thread(target=self._run, name="storage-spill", daemon=True)
            self._thread.start()
        self._spill_wanted.notify_all()

    def _run(self) -> None:
        try:
            while (found := self._next_to_spill()) is not None:
                self._spill(*found)
        except OSError as error:
            self._latch.trip(PenstockError("SPOOL_FAILED", f"cannot write to the spool: {error.strerror or error}"))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that calls the sink
            self._latch.trip(error)

    def _next_to_spill(self) -> tuple[DataItem, FileBuffer] | None:
        with self._latch.lock:
            while self._latch.error is None:
                if self.level.memory_bytes <= self._memory_max * _SPILL_DOWN_TO:
                    self._spilling = False
                # The newest item is the one that is needed last.
                item = next((i for i in reversed(self._in_memory) if not i.claimed), None) if self._spilling else None
                if item is not None and item.content is not None:
                    del self._in_memory[item]
                    item.tier = Tier.SPILLING
                    return item, item.content
                self._spill_wanted.wait()
        return None

    def _spill(self, item: DataItem, content: FileBuffer) -> None:
        reach("spool-write:before")
        place = self._segments.append(content.content())
        reach("spool-write:after")
        with self._latch.lock:
            kept = item.tier is Tier.SPILLING and place.nbytes == item.nbytes
            if kept:
                item.tier, item.place, item.content = Tier.DISK, place, None
                self.level.memory_bytes -= item.nbytes
                self.level.disk_bytes += item.nbytes
                self._counters.spilled_bytes += item.nbytes
                self._room.notify_all()
        if kept:
            self._buffers.give_back(content)
        else:
            self._segments.release(place)
