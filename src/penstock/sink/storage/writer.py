"""The writers: threads that take finished files from the dispatchers' channels and bring them to the target.

A channel is the end of a dispatcher's ordered way: files and drain markers, FIFO. Several files are written at once, of one dispatcher or
of many, up to ``flush_concurrency`` and to a bound of bytes; a file larger than that bound goes alone. Invariants: files of a dispatcher
are named in order, and their indexes and callbacks come in order, each after all before it; a marker comes out when nothing before it is
under way. Only channels that have something to do are looked at. Threads start when there is work for them. Runs on executors.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from penstock.format.data_file import finish_file
from penstock.model.clock import Clock
from penstock.sink.storage.dispatcher_encoder import FlushTask
from penstock.sink.storage.failure_latch import FailureLatch
from penstock.sink.storage.file_buffer import BufferPool
from penstock.sink.storage.flush_policy import FlushReason
from penstock.sink.storage.metrics import SinkCounters
from penstock.sink.storage.publisher import FilePublisher, Publication
from penstock.sink.storage.settings import StorageSinkSettings
from penstock.sink.storage.spool import DrainMarkerItem, Spool

UNDER_WAY_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """How much is under way to the target at once."""

    flush_concurrency: int = 32
    under_way_bytes_max: int = UNDER_WAY_BYTES_MAX


class WriterChannel:
    """One dispatcher's files and markers on the way. Its fields change under the latch's lock."""

    def __init__(self, publisher: FilePublisher) -> None:
        self.publisher = publisher
        self.waiting: deque[FlushTask | DrainMarkerItem] = deque()
        self.under_way: deque[Publication] = deque()
        self.listed = False
        """Whether it is in the line of channels with something to do."""
        self.starting = False
        """A thread names its next file or carries out a marker; nothing else may begin."""
        self.completing = False
        """A thread writes an index; others leave theirs to it."""

    @property
    def ready(self) -> bool:
        """Return whether its next item can begin."""
        if self.starting or not self.waiting:
            return False
        return not isinstance(self.waiting[0], DrainMarkerItem) or not self.under_way


class StorageWriters:
    """The writers of a task. Thread safe."""

    def __init__(
        self,
        settings: StorageSinkSettings,
        limits: WriterSettings,
        spool: Spool,
        latch: FailureLatch,
        buffers: BufferPool,
        counters: SinkCounters,
        clock: Clock,
    ) -> None:
        self._format = settings.data_format
        self._limits = limits
        self._spool = spool
        self._latch = latch
        self._buffers = buffers
        self._counters = counters
        self._clock = clock
        self._work = latch.condition()
        self._drained = latch.condition()
        self._line: deque[WriterChannel] = deque()
        self._under_way_bytes = 0
        self._idle = 0
        self._threads: list[threading.Thread] = []

    def append(self, channel: WriterChannel, item: FlushTask | DrainMarkerItem) -> None:
        """Put a file or marker at the end of a channel; never waits."""
        with self._latch.lock:
            channel.waiting.append(item)
            self._list(channel)

    def wait_for(self, marker: DrainMarkerItem) -> None:
        """Return when a marker is done; raise if anything failed before that."""
        with self._latch.lock:
            self._latch.wait_for(self._drained, lambda: marker.done)

    def join(self) -> None:
        """Wait for the threads' end, after the latch tripped."""
        with self._latch.lock:
            # None starts after the trip.
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _list(self, channel: WriterChannel) -> None:
        if channel.listed or not channel.ready:
            return
        channel.listed = True
        self._line.append(channel)
        if self._idle >= len(self._line):
            self._work.notify()
        elif self._latch.error is None and len(self._threads) < self._limits.flush_concurrency:
            thread = threading.Thread(target=self._run, name=f"storage-writer-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        try:
            while (taken := self._take()) is not None:
                channel, item = taken
                if isinstance(item, DrainMarkerItem):
                    self._carry_out(channel, item)
                else:
                    self._flush(channel, item)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that calls the sink
            self._counters.count_flush(FlushReason.ERROR)
            self._latch.trip(error)

    def _take(self) -> tuple[WriterChannel, FlushTask | DrainMarkerItem] | None:
        with self._latch.lock:
            while self._latch.error is None:
                if self._line and self._has_room(self._line[0].waiting[0]):
                    channel = self._line.popleft()
                    channel.listed, channel.starting = False, True
                    item = channel.waiting.popleft()
                    if isinstance(item, FlushTask):
                        self._under_way_bytes += item.nbytes
                    if self._line and self._idle:
                        self._work.notify()
                    return channel, item
                self._idle += 1
                self._work.wait()
                self._idle -= 1
        return None

    def _has_room(self, item: FlushTask | DrainMarkerItem) -> bool:
        if isinstance(item, DrainMarkerItem) or not self._under_way_bytes:
            return True
        return self._under_way_bytes + item.nbytes <= self._limits.under_way_bytes_max

    def _flush(self, channel: WriterChannel, task: FlushTask) -> None:
        start_s = self._clock.monotonic_s()
        publication = channel.publisher.begin(task)
        publication.start_s = start_s
        with self._latch.lock:
            channel.under_way.append(publication)
            channel.starting = False
            self._list(channel)
        content = self._spool.assemble(task.items)
        self._latch.check()
        channel.publisher.write_data(publication, finish_file(self._format, task.table, content.content(), task.runs))
        self._buffers.give_back(content)
        with self._latch.lock:
            publication.done = True
        self._complete(channel)

    def _complete(self, channel: WriterChannel) -> None:
        """Write the indexes of all files that are next in order, unless another thread is at it; it then finds this one's too."""
        while done := self._next_done(channel):
            self._latch.check()
            channel.publisher.complete(done)
            for publication in done:
                for callback in publication.task.callbacks:
                    callback()
            for publication in done:
                task = publication.task
                self._spool.release(task.items)
                self._counters.flushed(task.reason, self._clock.monotonic_s() - publication.start_s, task.nbytes)
            with self._latch.lock:
                for publication in done:
                    channel.under_way.popleft()
                    self._under_way_bytes -= publication.task.nbytes
                channel.completing = False
                self._list(channel)
                if self._line:
                    # Bytes became free: the first file in line may have waited for them.
                    self._work.notify()

    def _next_done(self, channel: WriterChannel) -> list[Publication]:
        with self._latch.lock:
            done: list[Publication] = []
            if not channel.completing:
                for publication in channel.under_way:
                    if not publication.done:
                        break
                    done.append(publication)
                channel.completing = bool(done)
            return done

    def _carry_out(self, channel: WriterChannel, marker: DrainMarkerItem) -> None:
        if marker.action is not None:
            marker.action()
        for callback in marker.callbacks:
            callback()
        with self._latch.lock:
            marker.done = True
            channel.starting = False
            self._list(channel)
            self._drained.notify_all()
