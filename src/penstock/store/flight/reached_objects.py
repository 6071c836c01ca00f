"""How a reader on another machine reaches the objects of an event store: directly, or through its service.

Files are read where they are, if this user may. Objects of a bucket are read directly, each process keeping blocks of them within a bound.
An object that is gone is asked for at the service, which knows whether it was collected or is lost; so is all of a bucket that does not
answer here. So a read that loses its objects is begun again, and an executor without a way to the storage works. Runs on executors.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from penstock.model.clock import Clock, SystemClock
from penstock.store.objects.block_cache import BlockCache
from penstock.store.objects.objects import ObjectBackend, ObjectSpace

log = logging.getLogger(__name__)
LEFT_ALONE_S = 60.0
"""A storage that did not answer here is not tried again for so long: each try takes its time."""

Stream = Callable[[bytes], Iterator[pa.RecordBatch]]


def reached_space(uri: str, options: Mapping[str, str] | None, streamed: StreamedObjects) -> ObjectSpace:
    """Return a space from which the objects of one read can be read."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        first = next(iter(streamed.list_names("")), None)
        if first is not None and not os.access(Path(unquote(parts.path), first), os.R_OK):
            return ObjectSpace(uri, backend=streamed)
        space = _shared_space(uri, {})
        return space.through(DirectObjects(space.backend, streamed))
    if options is None:
        return ObjectSpace(uri, streamed, cache=_cache)
    space = _shared_space(uri, options)
    return space.through(DirectObjects(space.backend, streamed, _reach[uri]))


class Reach:
    """Whether a storage answers this process. Thread safe: at worst it is tried once more."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._failed_s = float("-inf")

    @property
    def is_open(self) -> bool:
        """Return whether it is worth a try."""
        return self._clock.monotonic_s() - self._failed_s >= LEFT_ALONE_S

    def failed(self, error: OSError) -> None:
        """Note that it did not answer."""
        self._failed_s = self._clock.monotonic_s()
        log.warning("objects are read through the service", extra={"error": str(error)})


_spaces: dict[tuple[str, tuple[tuple[str, str], ...]], ObjectSpace] = {}
_reach: defaultdict[str, Reach] = defaultdict(Reach)
_spaces_lock = threading.Lock()
_cache = BlockCache()


def _shared_space(uri: str, options: Mapping[str, str]) -> ObjectSpace:
    """Return the process's space for a URI, so that footers, blocks and connections are kept between handles."""
    key = (uri, tuple(sorted(options.items())))
    with _spaces_lock:
        space = _spaces.get(key)
        if space is None:
            far = urlsplit(uri).scheme != "file"
            space = _spaces[key] = ObjectSpace(uri, options=options, cache=_cache if far else None)
        return space


class StreamedObjects:
    """Objects that the service reads for a reader: each is fetched whole and kept until the next one is."""

    def __init__(self, tickets: Mapping[str, bytes], stream: Stream) -> None:
        self._tickets = tickets
        self._stream = stream
        self._last: tuple[str, pa.Buffer] | None = None

    def put_new(self, path: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        """Refuse: readers do not write."""
        raise OSError(f"{path}: read only")

    def get(self, path: str) -> pa.Buffer:
        """Return a whole object."""
        if self._last is None or self._last[0] != path:
            if path not in self._tickets:
                raise FileNotFoundError(path)
            parts = [chunk.column(0)[0].as_buffer() for chunk in self._stream(self._tickets[path])]
            self._last = (path, pa.py_buffer(b"".join(parts)))
        return self._last[1]

    def get_range(self, path: str, start: int, length: int) -> pa.Buffer:
        """Return a part of an object."""
        payload = self.get(path)
        return payload.slice(start, max(0, min(length, payload.size - start)))

    def size(self, path: str) -> int:
        """Return how many bytes an object has."""
        return int(self.get(path).size)

    def list_names(self, prefix: str) -> Sequence[str]:
        """Return the objects that there are tickets for."""
        return sorted(p for p in self._tickets if p.startswith(prefix))

    def list_modified(self, prefix: str) -> Mapping[str, int]:
        """Return 0 for each object: a reader does not know how old they are."""
        return dict.fromkeys(self.list_names(prefix), 0)

    def delete(self, path: str) -> None:
        """Refuse: readers do not delete."""
        raise OSError(f"{path}: read only")

    def local_path(self, path: str) -> Path | None:
        """Return None: nothing is local."""
        return None


class DirectObjects(StreamedObjects):
    """Objects that are read from their storage, and through the service where they are gone from there, or it is out of ``reach``."""

    def __init__(self, storage: ObjectBackend, streamed: StreamedObjects, reach: Reach | None = None) -> None:
        super().__init__(streamed._tickets, streamed._stream)
        self._storage = storage
        self._reach = reach

    def get_range(self, path: str, start: int, length: int) -> pa.Buffer:
        """Return a part of an object."""
        if self._reach is None or self._reach.is_open:
            try:
                return self._storage.get_range(path, start, length)
            except FileNotFoundError:
                log.info("an object is gone from the storage", extra={"path": path})
            except OSError as error:
                if self._reach is None:
                    raise
                self._reach.failed(error)
        return super().get_range(path, start, length)

    def size(self, path: str) -> int:
        """Return how many bytes an object has in its storage."""
        return self._storage.size(path)

    def local_path(self, path: str) -> Path | None:
        """Return the file that holds an object, where it is one."""
        return self._storage.local_path(path)
