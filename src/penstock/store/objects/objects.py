"""Where objects and manifests live, and how they are read.

``ObjectBackend`` is the seam to storage: create-only put, ranged get, list, delete. ``ObstoreBackend`` is the real one (local
directory, S3, GCS, Azure, memory); tests wrap it to script faults. ``ObjectSpace`` is what the store uses: durable writes, footers
kept in memory, batches of an object in order, local files mapped instead of read. A missing object, a damaged one and a storage that
does not answer are three different errors. A reader of objects that are far away keeps blocks of them (``block_cache.py``). Runs in the
log service and on executors.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, from_url

from penstock.files.buckets import BUCKET_SCHEMES, cause_of, open_bucket
from penstock.files.durable_names import sync_directory
from penstock.files.large_writes import write_at
from penstock.files.private_files import open_private
from penstock.model.batch import ChangeBatch
from penstock.model.clock import system_random
from penstock.model.errors import PenstockError
from penstock.store.changes.ordering import rebatch, window_rows
from penstock.store.objects.block_cache import BlockCache
from penstock.store.objects.object_file import ObjectFooter, ObjectMeta, Zone, ZoneReader, read_footer

FOOTERS_MAX = 4_096
"""How many footers a process keeps: some kilobytes each."""
READ_AHEAD_BYTES = 8 * 1024 * 1024


class ObjectExistsError(Exception):
    """A create-only put found the name taken."""


class ObjectBackend(Protocol):
    """Named immutable byte sequences. Thread safe. A missing name raises ``FileNotFoundError``, every other failure ``OSError``."""

    def put_new(self, path: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        """Create an object from its bytes, durable when it returns; raises ``ObjectExistsError`` if the name is taken."""

    def get_range(self, path: str, start: int, length: int) -> pa.Buffer:
        """Return a part of an object; shorter when the object ends before."""

    def get(self, path: str) -> pa.Buffer:
        """Return a whole object."""

    def size(self, path: str) -> int:
        """Return how many bytes an object has."""

    def list_names(self, prefix: str) -> Sequence[str]:
        """Return the names below a prefix, sorted."""

    def list_modified(self, prefix: str) -> Mapping[str, int]:
        """Return when each object below a prefix was written, in milliseconds since the Unix epoch by the storage's clock."""

    def delete(self, path: str) -> None:
        """Remove an object; one that is not there is no error."""

    def local_path(self, path: str) -> Path | None:
        """Return the file that holds an object, where it is one on this machine."""


class ObstoreBackend:
    """Objects through obstore, below a URI: ``file:///dir``, ``s3://bucket/prefix`` and what else obstore knows.

    ``options`` are those of ``penstock.files.buckets``.
    """

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(uri)
        self._root: Path | None = None
        if parts.scheme == "file":
            self._root = Path(unquote(parts.path))
            self._root.mkdir(parents=True, exist_ok=True)
            self._store: ObjectStore = LocalStore(self._root)
        elif parts.scheme in BUCKET_SCHEMES:
            self._store = open_bucket(parts.scheme, parts.netloc, unquote(parts.path).strip("/"), options or {})
        else:
            self._store = from_url(uri)

    def put_new(self, path: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        """Create an object; on a local disk the file and its directory are synced."""
        if self._root is not None:
            _create_file(self._root, self._root / path, parts)
            return
        with _os_errors(path):
            try:
                obstore.put(self._store, path, b"".join(memoryview(p).cast("B") for p in parts), mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                raise ObjectExistsError(path) from error

    def get_range(self, path: str, start: int, length: int) -> pa.Buffer:
        """Return a part of an object."""
        with _os_errors(path):
            return pa.py_buffer(obstore.get_range(self._store, path, start=start, length=length))

    def get(self, path: str) -> pa.Buffer:
        """Return a whole object."""
        with _os_errors(path):
            return pa.py_buffer(obstore.get(self._store, path).bytes())

    def size(self, path: str) -> int:
        """Return how many bytes an object has."""
        with _os_errors(path):
            return int(obstore.head(self._store, path)["size"])

    def list_names(self, prefix: str) -> Sequence[str]:
        """Return the names below a prefix, sorted."""
        with _os_errors(prefix):
            return sorted(str(entry["path"]) for page in obstore.list(self._store, prefix) for entry in page)

    def list_modified(self, prefix: str) -> Mapping[str, int]:
        """Return when each object below a prefix was written."""
        with _os_errors(prefix):
            entries = [entry for page in obstore.list(self._store, prefix) for entry in page]
        return {str(e["path"]): int(e["last_modified"].timestamp() * 1000) for e in entries}

    def delete(self, path: str) -> None:
        """Remove an object."""
        with contextlib.suppress(FileNotFoundError), _os_errors(path):
            obstore.delete(self._store, path)

    def local_path(self, path: str) -> Path | None:
        """Return the file that holds an object."""
        return self._root / path if self._root is not None else None


@contextlib.contextmanager
def _os_errors(path: str) -> Iterator[None]:
    """Turn obstore's errors into ``FileNotFoundError`` and ``OSError``."""
    try:
        yield
    except NotFoundError as error:
        raise FileNotFoundError(path) from error
    except BaseError as error:
        raise OSError(f"{path}: {type(error).__name__}: {cause_of(error)}") from error


def _create_file(root: Path, file: Path, parts: Iterable[bytes | pa.Buffer]) -> None:
    """Write a file under another name, sync it, and give it its name unless that is taken.

    obstore neither syncs nor takes bytes a piece at a time. The directories up to the root are synced, so that the name survives a
    power cut.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    # Two owners may put one name at the same time: each writes a file of its own.
    unfinished = file.with_name(f".{file.name}.{system_random().getrandbits(64):016x}.unfinished")
    try:
        with open(unfinished, "wb", buffering=0, opener=open_private) as sink:
            end = 0
            for part in parts:
                end = write_at(sink.fileno(), memoryview(part).cast("B"), end)
            os.fsync(sink.fileno())
        os.link(unfinished, file)
    except FileExistsError as error:
        raise ObjectExistsError(str(file)) from error
    finally:
        unfinished.unlink(missing_ok=True)
    for directory in (p for p in file.parents if p == root or root in p.parents):
        sync_directory(directory)


class ObjectSpace:
    """The objects of one event store. Thread safe. ``options`` hold secrets: they go to tasks inside what those are told."""

    def __init__(
        self,
        uri: str,
        backend: ObjectBackend | None = None,
        options: Mapping[str, str] | None = None,
        cache: BlockCache | None = None,
    ) -> None:
        self.uri = uri
        self.options = dict(options or {})
        self._backend: ObjectBackend = backend or ObstoreBackend(uri, options)
        self._cache = cache
        self._footers: dict[str, ObjectFooter] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ObjectSpace({self.uri!r})"

    def through(self, backend: ObjectBackend) -> ObjectSpace:
        """Return the same space, its footers and blocks included, read through another backend."""
        space = ObjectSpace(self.uri, backend, self.options, self._cache)
        space._footers, space._lock = self._footers, self._lock
        return space

    @property
    def backend(self) -> ObjectBackend:
        """Return what holds the objects."""
        return self._backend

    def put_new(self, path: str, parts: Iterable[bytes | pa.Buffer]) -> bool:
        """Create an object; return False when the name is taken."""
        try:
            self._backend.put_new(path, parts)
        except ObjectExistsError:
            return False
        except OSError as error:
            raise PenstockError("STORE_FAILED", f"object {path} could not be written: {error}") from error
        return True

    def get(self, path: str) -> pa.Buffer:
        """Return a whole object."""
        with _read_errors(path):
            return self._backend.get(path)

    def exists(self, path: str) -> bool:
        """Return whether there is an object of a name."""
        with _read_errors(path):
            try:
                return self._backend.size(path) >= 0
            except FileNotFoundError:
                return False

    def list_names(self, prefix: str) -> Sequence[str]:
        """Return the names below a prefix, sorted."""
        with _read_errors(prefix):
            return self._backend.list_names(prefix)

    def list_modified(self, prefix: str) -> Mapping[str, int]:
        """Return when each object below a prefix was written, in milliseconds."""
        with _read_errors(prefix):
            return self._backend.list_modified(prefix)

    def delete(self, path: str) -> None:
        """Remove an object that no manifest names any more."""
        with self._lock:
            self._footers.pop(path, None)
        with _read_errors(path):
            self._backend.delete(path)

    def footer(self, meta: ObjectMeta) -> ObjectFooter:
        """Return an object's footer, read once."""
        with self._lock:
            known = self._footers.get(meta.path)
        if known is not None:
            return known
        tail = self._range(meta, meta.size - meta.footer_size, meta.footer_size)
        footer = read_footer(meta, memoryview(tail))
        with self._lock:
            while len(self._footers) >= FOOTERS_MAX:
                del self._footers[next(iter(self._footers))]
            return self._footers.setdefault(meta.path, footer)

    def _range(self, meta: ObjectMeta, start: int, length: int) -> pa.Buffer:
        """Read a part of an object; one that has lost bytes is corrupt, not unavailable."""
        with _read_errors(meta.path):
            try:
                if self._cache is None:
                    return self._backend.get_range(meta.path, start, length)
                fetch = functools.partial(self._backend.get_range, meta.path)
                return self._cache.read((self.uri, meta.path), start, min(length, meta.size - start), meta.size, fetch)
            except OSError as error:
                if not isinstance(error, FileNotFoundError) and self._backend.size(meta.path) != meta.size:
                    raise PenstockError("OBJECT_CORRUPT", f"object {meta.path} does not have its {meta.size} bytes") from error
                raise

    def batches(self, meta: ObjectMeta, from_ts: int, to_ts: int, read_ahead: int = READ_AHEAD_BYTES) -> Iterator[ChangeBatch]:
        """Yield the object's batches with rows in ``(from_ts, to_ts]``, cut to that window, in the object's order.

        ``read_ahead`` bytes are read or mapped at once. A reader that keeps all batches maps whole objects: each mapping holds a file open.
        """
        footer = self.footer(meta)
        reader = ZoneReader(meta, footer)
        zones = [z for z in footer.zones if z.max_ts > from_ts and z.min_ts <= to_ts]
        for zone, message in self._messages(meta, zones, read_ahead):
            batch = reader.decode(zone, message)
            if zone.min_ts <= from_ts or zone.max_ts > to_ts:
                records = window_rows(batch.records, from_ts, to_ts)
                if records.num_rows == 0:
                    continue
                batch = rebatch(batch, records)
            yield batch

    def _mapped(self, meta: ObjectMeta, file: Path, start: int, length: int) -> pa.Buffer:
        with _read_errors(meta.path):
            try:
                return _map_range(file, start, length)
            except FileNotFoundError:
                # Somebody else may still give it.
                return self._range(meta, start, length)

    def _messages(self, meta: ObjectMeta, zones: Sequence[Zone], read_ahead: int) -> Iterator[tuple[Zone, pa.Buffer]]:
        file = self._backend.local_path(meta.path)
        for group in _read_groups(zones, read_ahead):
            start = group[0].offset
            length = group[-1].offset + group[-1].length - start
            chunk = self._mapped(meta, file, start, length) if file is not None else self._range(meta, start, length)
            for zone in group:
                yield zone, _part(chunk, zone.offset - start, zone.length)


def _map_range(file: Path, start: int, length: int) -> pa.Buffer:
    """Map a part of a file; what is not there is left out.

    Only what is being read is mapped, so a reader of a large object stays small; the pages are read in one go.
    """
    with file.open("rb") as source:
        length = min(length, os.fstat(source.fileno()).st_size - start)
        if length <= 0:
            return pa.py_buffer(b"")
        page_start = start - start % mmap.ALLOCATIONGRANULARITY
        size = length + start - page_start
        populate = getattr(mmap, "MAP_POPULATE", 0)
        mapped = mmap.mmap(source.fileno(), size, flags=mmap.MAP_SHARED | populate, prot=mmap.PROT_READ, offset=page_start)
    return pa.py_buffer(mapped).slice(start - page_start, length)


def _part(buffer: pa.Buffer, offset: int, length: int) -> pa.Buffer:
    """Return a part of a buffer; shorter, or empty, where the buffer ends before."""
    offset = min(offset, buffer.size)
    return buffer.slice(offset, min(length, buffer.size - offset))


def _read_groups(zones: Sequence[Zone], read_ahead: int) -> Iterator[list[Zone]]:
    """Group neighbouring zones so that one request reads several of them, and no more than the read-ahead."""
    group: list[Zone] = []
    for zone in zones:
        if group and zone.offset + zone.length - group[0].offset > read_ahead:
            yield group
            group = []
        group.append(zone)
    if group:
        yield group


@contextlib.contextmanager
def _read_errors(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise PenstockError("OBJECT_MISSING", f"object {path} is gone") from error
    except OSError as error:
        raise PenstockError("OBJECT_UNAVAILABLE", f"object {path} could not be read: {error}") from error
