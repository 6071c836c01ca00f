"""The spool's disk tier: segment files in a directory that one sink owns.

A segment begins with magic and version; an entry is its length, its checksum and its bytes. A segment is closed for writing when it is
full and deleted with its last entry. Invariants: bytes come back as they went in, or the read raises OBJECT_CORRUPT; a directory belongs
to the process that holds the lock on its lock file, and what a dead process left behind is wiped when the next one starts; it lies where
no other user can put anything in its place, or nothing is written. Nothing here outlives its sink: after a crash everything in a spool
comes again from the event store. Runs on executors.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import struct
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import xxhash

from penstock.files.large_writes import write_at
from penstock.files.private_files import is_ours
from penstock.model.errors import PenstockError

SEGMENT_BYTES = 64 << 20
MAGIC = b"PENSPOOL"
VERSION = 1
FILE_HEADER = struct.Struct("<8sII")
ENTRY_HEADER = struct.Struct("<QQ")
DIRECTORY_PREFIX = "sink-"
_LOCK_NAME = "lock"


class SpoolDisk:
    """Plain file operations, apart so that a test can have a disk that is full or fails."""

    def create(self, path: Path) -> int:
        """Create a file; return its descriptor."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, file: int, data: bytes | memoryview, at: int) -> None:
        """Write all bytes at a place."""
        write_at(file, data, at)

    def read_into(self, file: int, space: memoryview, at: int) -> int:
        """Fill a space with the bytes from a place; return how many there were, fewer only where the file ends."""
        done = 0
        while done < len(space) and (found := os.preadv(file, [space[done:]], at + done)):
            done += found
        return done

    def remove(self, path: Path, file: int) -> None:
        """Close and delete a file."""
        os.close(file)
        path.unlink(missing_ok=True)


@dataclass(slots=True)
class _Segment:
    path: Path
    file: int
    end: int
    refs: int = 0
    sealed: bool = False


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """Where an entry lies."""

    segment: _Segment
    at: int
    nbytes: int
    checksum: int


class SpoolSegments:
    """The segments of one sink. ``append`` is called by one thread, the rest by any."""

    def __init__(self, parent: Path | None = None, segment_bytes: int = SEGMENT_BYTES, disk: SpoolDisk | None = None) -> None:
        self._parent = parent or Path(tempfile.gettempdir()) / f"penstock-spool-{os.getuid()}"
        self._segment_bytes = segment_bytes
        self._disk = disk or SpoolDisk()
        self._directory: Path | None = None
        self._lock_file = -1
        self._current: _Segment | None = None
        self._segments: list[_Segment] = []
        self._made = 0
        self._lock = threading.Lock()
        if is_own_place(self._parent):
            wipe_left_behind(self._parent)

    @property
    def files(self) -> int:
        """Return how many segments there are."""
        return len(self._segments)

    def append(self, data: memoryview) -> SegmentPlace:
        """Write an entry; return where it is. Raises OSError where the disk is full or fails."""
        checksum = xxhash.xxh3_64_intdigest(data)
        segment = self._writable(len(data))
        at = segment.end
        self._disk.write(segment.file, ENTRY_HEADER.pack(len(data), checksum), at)
        self._disk.write(segment.file, data, at + ENTRY_HEADER.size)
        with self._lock:
            segment.end = at + ENTRY_HEADER.size + len(data)
            segment.refs += 1
        return SegmentPlace(segment, at, len(data), checksum)

    def read_into(self, place: SegmentPlace, space: memoryview) -> None:
        """Put an entry's bytes into a space of its size: a copy on the way would be as large as a file."""
        header = bytearray(ENTRY_HEADER.size)
        self._disk.read_into(place.segment.file, memoryview(header), place.at)
        found = self._disk.read_into(place.segment.file, space, place.at + ENTRY_HEADER.size)
        whole = found == place.nbytes and ENTRY_HEADER.unpack(header) == (place.nbytes, place.checksum)
        if not whole or xxhash.xxh3_64_intdigest(space) != place.checksum:
            raise PenstockError("OBJECT_CORRUPT", f"{place.segment.path.name}: the entry at byte {place.at} fails its checksum")

    def release(self, place: SegmentPlace) -> None:
        """Forget an entry; its segment is deleted with the last one."""
        with self._lock:
            place.segment.refs -= 1
            gone = place.segment.sealed and place.segment.refs == 0
            if gone:
                self._segments.remove(place.segment)
        if gone:
            self._disk.remove(place.segment.path, place.segment.file)

    def close(self) -> None:
        """Delete everything."""
        with self._lock:
            segments, self._segments, self._current = self._segments, [], None
        for segment in segments:
            self._disk.remove(segment.path, segment.file)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            os.close(self._lock_file)
            self._directory = None

    def _writable(self, nbytes: int) -> _Segment:
        current = self._current
        if current is not None and current.end + nbytes > self._segment_bytes and current.end > FILE_HEADER.size:
            with self._lock:
                current.sealed = True
                gone = current.refs == 0
                if gone:
                    self._segments.remove(current)
            if gone:
                self._disk.remove(current.path, current.file)
            current = None
        if current is None:
            path = self._own_directory() / f"{self._made:06d}.segment"
            file = self._disk.create(path)
            current = _Segment(path, file, FILE_HEADER.size)
            with self._lock:
                self._segments.append(current)
            self._made += 1
            self._disk.write(file, FILE_HEADER.pack(MAGIC, VERSION, 0), 0)
            self._current = current
        return current

    def _own_directory(self) -> Path:
        if self._directory is None:
            self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_own_place(self._parent):
                raise PermissionError(errno.EPERM, f"{self._parent} belongs to another user, or others can write there; see spool-dir")
            made = Path(tempfile.mkdtemp(prefix="new-", dir=self._parent))
            self._lock_file = os.open(made / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock_file, fcntl.LOCK_EX)
            # Only under its final name can another sink wipe it, and then the lock is held already.
            self._directory = made.rename(self._parent / (DIRECTORY_PREFIX + made.name.removeprefix("new-")))
        return self._directory


def is_own_place(directory: Path) -> bool:
    """Return whether no other user can move or replace what this one puts into a directory; root may do as it likes anyway."""
    try:
        found, ours = directory.stat(), is_ours(directory)
    except OSError:
        return False
    alone = not found.st_mode & 0o022 or bool(found.st_mode & stat.S_ISVTX)
    return alone and ours and stat.S_ISDIR(found.st_mode)


def wipe_left_behind(parent: Path) -> int:
    """Delete the directories of processes that are gone; return how many."""
    wiped = 0
    if not parent.is_dir():
        return wiped
    for directory in parent.glob(DIRECTORY_PREFIX + "*"):
        with contextlib.suppress(OSError):
            file = os.open(directory / _LOCK_NAME, os.O_RDWR)
            try:
                # Whoever lives holds the lock.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
                wiped += 1
            finally:
                os.close(file)
    return wiped
