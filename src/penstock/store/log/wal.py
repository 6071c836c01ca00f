"""The write-ahead log: many threads submit, one thread writes, one fsync makes a whole group durable.

A group is whatever is waiting when the writer is free, so it grows with load. After the fsync the writer calls each submission's
``on_durable``, in the order of submission, once, outside every lock. Resolved ts ride along with the next group; alone they wait a
moment so that idle spans cost no fsync each. A failed write or fsync stops the log for good: nothing is acknowledged after it. Runs
in the log service.
"""

from __future__ import annotations

import itertools
import logging
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from penstock.files.durable_names import sync_directory
from penstock.files.private_files import open_private
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.timestamp import TS_MAX
from penstock.store.log.forgotten import Forgotten, note_forgotten, read_forgotten
from penstock.store.log.wal_segment import RecordKind, Replayed, SegmentEncoder, SegmentScan, WalRecord, segment_files
from penstock.store.settings import StoreSettings

log = logging.getLogger(__name__)
RESOLVED = struct.Struct("<QQ")
IDLE_WAIT_S = 60.0


@dataclass(frozen=True)
class _Submission:
    records: Sequence[WalRecord]
    on_durable: Callable[[], None]
    nbytes: int


@dataclass
class _Segment:
    path: Path
    max_ts: dict[int, int]
    size: int

    def is_in(self, flushed_ts: Mapping[int, int]) -> bool:
        """Return whether everything of it is in objects; of a span that is unknown nobody needs it."""
        return all(ts <= flushed_ts.get(span_id, TS_MAX) for span_id, ts in self.max_ts.items())


class WriteAheadLog:
    """A directory of segments and the thread that writes them."""

    def __init__(self, directory: Path, settings: StoreSettings, clock: Clock, head: Callable[[], Sequence[WalRecord]]) -> None:
        """``head`` gives the records that every new segment begins with; it is called by the writer between groups."""
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._head = head
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._queue: deque[_Submission] = deque()
        self._queued_bytes = 0
        self._resolved: dict[int, int] = {}
        self._closing = False
        self._failure: PenstockError | None = None
        self._closed_segments: list[_Segment] = []
        self._segment: _Segment | None = None
        self._file: BinaryIO | None = None
        self._encoder = SegmentEncoder(0)
        self._group = 0
        self.group_count = 0
        """How many groups became durable, one fsync each."""
        self.forgotten = Forgotten()
        """What it no longer holds, once it was replayed; objects must."""
        self._next_number = 1
        self._thread = threading.Thread(target=self._run, name="wal-writer", daemon=True)

    def replay(self) -> Iterator[Replayed]:
        """Yield everything that the log holds, oldest first. Called once, to its end, before ``start``."""
        self._directory.mkdir(parents=True, exist_ok=True)
        files = segment_files(self._directory)
        self.forgotten = read_forgotten(self._directory)
        if files:
            self.forgotten.check_segments(int(files[0].stem))
        for path in files:
            scan = SegmentScan(path, last=path is files[-1])
            yield from scan.read()
            if scan.size == 0:  # The crash came before the new segment's first sync; its number is used again.
                path.unlink()
                self._next_number = scan.number
                continue
            self._next_number = scan.number + 1
            self._closed_segments.append(_Segment(path, scan.max_ts, scan.size))

    def start(self) -> None:
        """Begin a new segment and accept submissions. An old segment is never appended to."""
        self._rotate()
        self._thread.start()

    def write(self, records: Sequence[WalRecord]) -> None:
        """Make records durable and return; raises as ``submit``."""
        durable = threading.Event()
        self.submit(records, durable.set)
        while not self._clock.wait(durable, 1.0):
            self.check_open()

    def submit(self, records: Sequence[WalRecord], on_durable: Callable[[], None]) -> None:
        """Queue records; waits while the queue is full. Raises ``STORE_FAILED`` once the log has failed or is closed."""
        nbytes = sum(r.nbytes for r in records)
        with self._lock:
            while self._queue and self._queued_bytes + nbytes > self._settings.queue_bytes_max and self._failure is None:
                self._room.wait()
            self.check_open()
            self._queue.append(_Submission(records, on_durable, nbytes))
            self._queued_bytes += nbytes
        self._wake.set()

    def advance_resolved_ts(self, span_id: int, ts: int) -> None:
        """Make a resolved ts durable with the next group."""
        with self._lock:
            self.check_open()
            first = not self._resolved
            self._resolved[span_id] = ts
        if first:
            self._wake.set()

    def forget(self, flushed_ts: Mapping[int, int]) -> int:
        """Remove the oldest segments of which everything is in objects; return how many."""
        with self._lock:
            going = list(itertools.takewhile(lambda segment: segment.is_in(flushed_ts), self._closed_segments))
            if not going:
                return 0
            forgotten = self.forgotten
            for segment in going:
                known = {span_id: ts for span_id, ts in segment.max_ts.items() if span_id in flushed_ts}
                forgotten = forgotten.with_segment(int(segment.path.stem), known)
            try:
                note_forgotten(self._directory, forgotten)
            except OSError as error:
                log.warning("write-ahead log is kept", extra={"segments": len(going), "error": error.strerror})
                return 0
            self.forgotten = forgotten
            for segment in going:
                segment.path.unlink(missing_ok=True)
                self._closed_segments.pop(0)
        return len(going)

    def holders(self) -> frozenset[int]:
        """Return the spans that have rows in the oldest closed segment."""
        with self._lock:
            return frozenset(self._closed_segments[0].max_ts) if self._closed_segments else frozenset()

    @property
    def nbytes(self) -> int:
        """Return the bytes of all segments."""
        with self._lock:
            return sum(s.size for s in self._closed_segments) + (self._segment.size if self._segment else 0)

    @property
    def queue_fill(self) -> float:
        """Return how full the queue is, 0 to 1 (more while a single larger submission passes)."""
        return self._queued_bytes / self._settings.queue_bytes_max

    def close(self) -> None:
        """Write and sync what is queued, call back, and stop. May be called twice."""
        with self._lock:
            self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._file is not None:
            self._file.close()
            self._file = None

    def check_open(self) -> None:
        """Raise what stopped the log, if something did."""
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise PenstockError("STORE_FAILED", "the event store is closed")

    def _run(self) -> None:
        try:
            while self._write_next_group():
                pass
        except OSError as error:
            self._fail(PenstockError("STORE_FAILED", f"the write-ahead log could not be written: {error}"))
        except BaseException as error:
            self._fail(PenstockError("STORE_FAILED", f"the write-ahead log stopped: {type(error).__name__}: {error}"))
            raise

    def _fail(self, failure: PenstockError) -> None:
        log.error("write-ahead log failed", extra={"code": failure.code, "detail": failure.detail})
        with self._lock:
            self._failure = failure
            self._queue.clear()
            self._queued_bytes = 0
            self._room.notify_all()

    def _write_next_group(self) -> bool:
        """Wait for work and write it; return False when the log is closed and empty."""
        if not self._queue and not self._closing:
            self._clock.wait(self._wake, IDLE_WAIT_S)
            self._wake.clear()
            if not self._queue and not self._closing:
                # Only resolved ts are waiting: give data a moment to come along.
                self._clock.wait(self._wake, self._settings.resolved_max_delay_s)
        if self._settings.group_commit_max_delay_s > 0 and not self._closing:
            self._wake.clear()
            self._clock.wait(self._wake, self._settings.group_commit_max_delay_s)
        with self._lock:
            self._wake.clear()
            group = list(self._queue)
            self._queue.clear()
            resolved, self._resolved = self._resolved, {}
            last = self._closing
        if group or resolved:
            self._write_group(group, resolved)
        with self._lock:
            self._queued_bytes -= sum(s.nbytes for s in group)
            self._room.notify_all()
        for submission in group:
            submission.on_durable()
        return not last or bool(self._queue)

    def _write_group(self, group: Sequence[_Submission], resolved: Mapping[int, int]) -> None:
        if self._segment is not None and self._segment.size >= self._settings.wal_segment_bytes:
            self._rotate()
        records = [r for s in group for r in s.records]
        if resolved:
            records.append(resolved_record(resolved))
        if records:
            self._write(records)

    def _write(self, records: Sequence[WalRecord]) -> None:
        file, segment = self._file, self._segment
        if file is None or segment is None:
            raise PenstockError("INTERNAL", "the write-ahead log has no open segment")
        self._group += 1
        for record in records:
            for part in self._encoder.encode(record, self._group):
                file.write(part)
            if record.batch is not None:
                segment.max_ts[record.span_id] = max(segment.max_ts.get(record.span_id, 0), record.batch.max_ts)
        file.write(self._encoder.group_end(self._group))
        file.flush()
        os.fdatasync(file.fileno())
        segment.size = file.tell()
        self.group_count += 1

    def _rotate(self) -> None:
        """Close the segment and begin the next one with the state that holds now."""
        head = self._head()
        if self._file is not None and self._segment is not None:
            self._file.close()
            with self._lock:
                self._closed_segments.append(self._segment)
        path = self._directory / f"{self._next_number:012d}.wal"
        self._encoder = SegmentEncoder(self._next_number)
        self._next_number += 1
        self._group = 0
        self._file = open(path, "xb", buffering=1 << 20, opener=open_private)  # noqa: SIM115 - closed by the next rotation
        self._file.write(self._encoder.header())
        self._segment = _Segment(path, {}, 0)
        self._write(head)
        sync_directory(self._directory)


def resolved_record(resolved: Mapping[int, int]) -> WalRecord:
    """Return one record for the resolved ts of many spans."""
    return WalRecord.of(RecordKind.RESOLVED, 0, b"".join(RESOLVED.pack(span_id, ts) for span_id, ts in resolved.items()))


def read_resolved(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield span id and resolved ts of such a record."""
    yield from RESOLVED.iter_unpack(payload)


class SpanEntry(msgspec.Struct, frozen=True):
    """The payload of a SPAN record."""

    span: Span
    start_ts: int


def span_record(span_id: int, span: Span, start_ts: int) -> WalRecord:
    """Return the record of a registered span."""
    return WalRecord.of(RecordKind.SPAN, span_id, msgspec.json.encode(SpanEntry(span, start_ts)))
