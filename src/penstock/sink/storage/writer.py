"""The writers: threads that take finished files from the dispatchers' channels and bring them to the target.

A channel is the end of a dispatcher's ordered way: files and drain markers, FIFO. Files of different dispatchers are written at once, up to
``flush_concurrency`` and to a bound of bytes; of larger files two are under way. Of one dispatcher the next files are prepared
(joined, compressed, made Parquet) while one is written, but data goes to the target in order: two attempts of a window that cut it at
different rows then meet at the first file that differs, and the one that loses has left nothing behind it. Indexes and callbacks follow
in order too, beside the data of the next file; a marker comes out when nothing before it is under way. Only channels that have something
to do are looked at. Threads start when there is work for them. Runs on executors.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from penstock.format.data_file import finish_file
from penstock.model.clock import Clock
from penstock.sink.failure_latch import FailureLatch
from penstock.sink.storage.encode.file_filler import FlushTask
from penstock.sink.storage.encode.flush_policy import FlushReason
from penstock.sink.storage.metrics import SinkCounters
from penstock.sink.storage.publisher import FilePublisher, Publication
from penstock.sink.storage.spool.file_buffer import BufferPool
from penstock.sink.storage.spool.spool import DrainMarkerItem, Spool
from penstock.target.settings import StorageSinkSettings

UNDER_WAY_BYTES_MAX = 256 << 20
FILES_UNDER_WAY_MIN = 2
"""However large files are, one is prepared while one is written, or the line would stand still between them."""
JOIN_S_MAX = 30.0
PREPARED_MAX = 2
"""Files of one dispatcher that threads have in hand and that are not written: one is written, one prepared."""


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """How much is under way to the target at once."""

    flush_concurrency: int = 128
    under_way_bytes_max: int = UNDER_WAY_BYTES_MAX


class WriterChannel:
    """One dispatcher's files and markers on the way. Its fields change under the latch's lock."""

    def __init__(self, publisher: FilePublisher) -> None:
        self.publisher = publisher
        self.waiting: deque[FlushTask | DrainMarkerItem] = deque()
        self.written: deque[Publication] = deque()
        """Files whose index is still to come."""
        self.taken = 0
        """How many files threads took so far."""
        self.turn = 0
        """Which of them is written to the target next."""
        self.completed = 0
        self.listed = False
        """Whether it is in the line of channels with something to do."""
        self.marking = False
        """A thread carries out a marker; nothing else may begin."""
        self.completing = False
        """A thread writes an index; others leave theirs to it."""

    @property
    def ready(self) -> bool:
        """Return whether its next item can begin."""
        if self.marking or not self.waiting:
            return False
        if isinstance(self.waiting[0], DrainMarkerItem):
            return self.taken == self.completed
        return self.taken - self.turn < PREPARED_MAX


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
        self._turns = latch.condition()
        self._drained = latch.condition()
        self._line: deque[WriterChannel] = deque()
        self.under_way_bytes = 0
        self.under_way_files = 0
        """What is on its way to the target; both change under the latch's lock."""
        self._idle = 0
        self._threads: list[threading.Thread] = []

    @property
    def busy(self) -> bool:
        """Return whether any file is under way or waits for it."""
        return bool(self.under_way_files or self._line)

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
        """Wait for the threads' end, after the latch tripped; not for ever for one that hangs in a request.

        What such a request still does is harmless: it puts a file under the name that it has in every attempt, or nothing.
        """
        with self._latch.lock:
            # None starts after the trip.
            threads = list(self._threads)
        until_s = self._clock.monotonic_s() + JOIN_S_MAX
        for thread in threads:
            # All together: a target that hangs may have every thread in a request.
            thread.join(max(0.0, until_s - self._clock.monotonic_s()))

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
                channel, item, number = taken
                if isinstance(item, DrainMarkerItem):
                    self._carry_out(channel, item)
                else:
                    self._flush(channel, item, number)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that calls the sink
            self._counters.count_flush(FlushReason.ERROR)
            self._latch.trip(error)

    def _take(self) -> tuple[WriterChannel, FlushTask | DrainMarkerItem, int] | None:
        with self._latch.lock:
            while self._latch.error is None:
                if self._line and self._has_room(self._line[0].waiting[0]):
                    channel = self._line.popleft()
                    channel.listed = False
                    item = channel.waiting.popleft()
                    if isinstance(item, FlushTask):
                        channel.taken += 1
                        self.under_way_files += 1
                        self.under_way_bytes += item.nbytes
                    else:
                        channel.marking = True
                    self._list(channel)
                    if self._line and self._idle:
                        self._work.notify()
                    return channel, item, channel.taken - 1
                self._idle += 1
                self._work.wait()
                self._idle -= 1
        return None

    def _has_room(self, item: FlushTask | DrainMarkerItem) -> bool:
        if isinstance(item, DrainMarkerItem) or self.under_way_files < FILES_UNDER_WAY_MIN:
            return True
        return self.under_way_bytes + item.nbytes <= self._limits.under_way_bytes_max

    def _flush(self, channel: WriterChannel, task: FlushTask, number: int) -> None:
        start_s = self._clock.monotonic_s()
        buffer = self._spool.assemble(task.items)
        content = finish_file(self._format, task.table, buffer.content(), task.runs)
        with self._latch.lock:
            self._latch.wait_for(self._turns, lambda: channel.turn == number)
            self._latch.check()
        publication = channel.publisher.begin(task)
        publication.start_s = start_s
        channel.publisher.write_data(publication, content)
        self._buffers.give_back(buffer)
        self._spool.release(task.items)
        with self._latch.lock:
            # Its index is still to come, but it holds no memory and the line is free for the next file.
            self.under_way_files -= 1
            self.under_way_bytes -= task.nbytes
            channel.turn += 1
            channel.written.append(publication)
            self._turns.notify_all()
            self._list(channel)
            if self._line:
                # Bytes became free: the first file in line may have waited for them.
                self._work.notify()
        self._complete(channel)

    def _complete(self, channel: WriterChannel) -> None:
        """Write the indexes of all files whose data is there, unless another thread is at it; it then finds this one's too."""
        while written := self._next_written(channel):
            channel.publisher.complete(written)
            for publication in written:
                for callback in publication.task.callbacks:
                    callback()
            for publication in written:
                task = publication.task
                self._counters.flushed(task.reason, self._clock.monotonic_s() - publication.start_s, task.nbytes)
            with self._latch.lock:
                channel.completed += len(written)
                channel.completing = False
                self._list(channel)

    def _next_written(self, channel: WriterChannel) -> list[Publication]:
        with self._latch.lock:
            self._latch.check()
            if channel.completing or not channel.written:
                return []
            written = list(channel.written)
            channel.written.clear()
            channel.completing = True
            return written

    def _carry_out(self, channel: WriterChannel, marker: DrainMarkerItem) -> None:
        if marker.action is not None:
            marker.action()
        for callback in marker.callbacks:
            callback()
        with self._latch.lock:
            marker.done = True
            channel.marking = False
            self._list(channel)
            self._drained.notify_all()
