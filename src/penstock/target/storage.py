"""The object store behind a storage sink: create-only puts, overwrites, reads and listings below one prefix.

Owns how URIs become stores and how vendors' errors become ours. Invariants: ``put_new`` never changes an object that exists (equal bytes
count as done, different ones are SINK_CONFLICT), however large it is and whoever else writes under the name at the same time; transient
failures are retried a bounded number of times with growing pauses; no error text holds a credential. A ``TargetAddress`` is picklable, so
that each executor opens its own target. Runs on executors and the driver.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore
import xxhash
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import GCSStore, LocalStore, MemoryStore, ObjectStore

from penstock.files.buckets import BUCKET_SCHEMES, REQUEST_S_MAX, cause_of, open_bucket
from penstock.files.large_writes import WRITE_BYTES, pieces
from penstock.model.backoff import Backoff
from penstock.model.clock import Clock, SystemClock, system_random
from penstock.model.errors import PenstockError
from penstock.settings.masking import mask_uri
from penstock.target.local_tree import is_linked, walk
from penstock.target.settings import CONNECTION_SCHEME, StorageSinkSettings

MULTIPART_BYTES = 128 << 20
"""Objects of this size and more are uploaded in parts. No such upload is create-only everywhere, so the name is reserved first."""
QUICK_BYTES_MAX = 1 << 20
"""Requests that carry no more than this are soon answered, or not at all."""
SMALL_REQUEST_S_MAX = 90.0
LISTED_CHARS_MAX = 1 << 30
"""How long the paths of a list are together: those of more than ten million files."""
SMALL_BYTES_MAX = 64 << 20
"""No schema file, index or checkpoint is as large as this."""
_RESERVED = b"penstock: being uploaded in parts\n"

_T = TypeVar("_T")
Guard = Callable[[], None]
"""Asked before each write to a target; raises where none may be."""
_PUTS = frozenset({"create", "write"})
_WRITES = _PUTS | {"delete"}
_FULL = ("No space left", "Disk quota exceeded", "status code: 507", "<Code>QuotaExceeded</Code>", "<Code>XMinioStorageFull</Code>")
"""How a disk and object stores say that there is no room."""
_MEMORY_STORES: dict[str, ObjectStore] = {}
_MEMORY_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How often and how patiently a transient failure is tried again, and how long one request may take, one without many bytes too.

    A call that has lasted as long as its request may take, or ``total_s_max``, is not tried again: whoever waits for an answer waits for
    little more than that, and a target that hangs is soon known for it.
    """

    attempts_max: int = 5
    pause_s_min: float = 0.1
    pause_s_max: float = 5.0
    request_s_max: float = REQUEST_S_MAX
    small_s_max: float = SMALL_REQUEST_S_MAX
    total_s_max: float = math.inf


def retry_of(settings: StorageSinkSettings) -> RetrySettings:
    """Return the patience that a feed has with its target."""
    small_s = settings.request_timeout_ms / 1000
    return RetrySettings(request_s_max=max(REQUEST_S_MAX, small_s), small_s_max=small_s)


@dataclass(frozen=True, slots=True)
class TargetAddress:
    """Where a target is: all that an executor needs to open it."""

    uri: str
    retry: RetrySettings = RetrySettings()

    def open(self, clock: Clock | None = None, rng: random.Random | None = None, guard: Guard | None = None) -> ObjectTarget:
        """Open the target; whoever writes to it for a feed brings a guard."""
        store = _open_store(self.uri, self.retry.request_s_max)
        opened = ObjectTarget(store, mask_uri(self.uri), self.retry, clock or SystemClock(), rng or system_random())
        if guard is not None:
            opened.guard = guard
        if opened.quick_s_max < self.retry.request_s_max and urlsplit(self.uri).scheme in BUCKET_SCHEMES:
            opened.quick = _open_store(self.uri, opened.quick_s_max)
        return opened

    def __repr__(self) -> str:
        return f"TargetAddress({mask_uri(self.uri)!r})"


class ObjectTarget:
    """One prefix of an object store. Safe to call from many threads."""

    def __init__(self, store: ObjectStore, name: str, retry: RetrySettings, clock: Clock, rng: random.Random) -> None:
        self._store = store
        self.quick = store
        """The same for requests without many bytes, which have less time."""
        self.quick_s_max = min(retry.small_s_max, retry.request_s_max)
        self.name = name
        self._retry = retry
        self._clock = clock
        self._rng = rng
        self.guard: Guard = unfenced

    @property
    def place(self) -> str:
        """Return where the target is, without how it is entered."""
        return self.name.partition("?")[0].rstrip("/")

    @classmethod
    def open(cls, uri: str) -> ObjectTarget:
        """Open a target by its URI, with the machine's clock and the default retries."""
        return TargetAddress(uri).open()

    def put_new(self, path: str, content: bytes | memoryview) -> bool:
        """Create an object; return False where it existed with the same bytes. Different bytes are a conflict."""
        content = self._own(content)
        in_parts = len(content) >= MULTIPART_BYTES and not isinstance(self._store, LocalStore)
        first = _reservation(content) if in_parts else content
        try:
            self._run("create", path, lambda: self._create(path, first), self._time_for(first))
        except FileExistsError:
            # Whoever reserved the name for the same bytes may not have come to their end.
            if not in_parts or not self._holds(path, first):
                if not self._holds(path, content):
                    raise PenstockError("SINK_CONFLICT", f"{self.name}: {path} exists with different bytes") from None
                return False
        if in_parts:
            # Over the reservation, or over the same bytes: any other object under the name would have been found.
            self._run("write", path, lambda: obstore.put(self._store, path, content, use_multipart=True), self._retry.request_s_max)
        return True

    def put(self, path: str, content: bytes | memoryview) -> None:
        """Write an object, over whatever is there."""
        content = self._own(content)
        store, parts = self._store_for(content), len(content) >= MULTIPART_BYTES
        self._run("write", path, lambda: obstore.put(store, path, content, use_multipart=parts), self._time_for(content))

    def get(self, path: str, bytes_max: int | None = None) -> bytes:
        """Return an object's bytes; FileNotFoundError where there is none. One that is larger than it may be is not read."""
        small = bytes_max is not None and bytes_max <= SMALL_BYTES_MAX

        def read() -> bytes:
            return bytes(_small(obstore.get(self.quick if small else self._store, path), path, bytes_max).bytes())

        return self._run("read", path, read, self.quick_s_max if small else self._retry.request_s_max)

    def find(self, path: str) -> bytes | None:
        """Return the bytes of a small object, or None."""
        try:
            return self.get(path, SMALL_BYTES_MAX)
        except FileNotFoundError:
            return None

    def find_tagged(self, path: str) -> tuple[bytes, str | None] | None:
        """Return a small object's bytes and the tag of this state of it (None where the store has none), or None."""

        def read() -> tuple[bytes, str | None]:
            found = _small(obstore.get(self.quick, path), path, SMALL_BYTES_MAX)
            return bytes(found.bytes()), self._tag(found.meta)

        try:
            return self._run("read", path, read)
        except FileNotFoundError:
            return None

    def put_over(self, path: str, content: bytes, tag: str | None) -> str | None:
        """Write an object in the place of the state that has this tag, or of nothing (None); return the new tag.

        FileExistsError where another state is there, which may be what an earlier try wrote. A store that cannot compare writes anyway
        and has no tags: whoever asks it reads first.
        """

        def write() -> str | None:
            local = isinstance(self._store, LocalStore)
            mode: Any = "create" if tag is None else "overwrite" if local else {"e_tag": tag, "version": tag}
            try:
                written = self._tag(obstore.put(self.quick, path, content, mode=mode, use_multipart=False))
            except (AlreadyExistsError, PreconditionError) as error:
                raise FileExistsError(path) from error
            except NotSupportedError:
                obstore.put(self.quick, path, content, use_multipart=False)
                return None
            return None if local else written

        return self._run("write", path, write)

    def _tag(self, state: Mapping[str, Any]) -> str | None:
        """Return what tells one state of an object from another: Google Cloud Storage compares generations, all others tags."""
        found: str | None = state["version" if isinstance(self._store, GCSStore) else "e_tag"]
        return found

    def exists(self, path: str) -> bool:
        """Return whether an object is there."""
        try:
            self._run("look at", path, lambda: obstore.head(self.quick, path))
        except FileNotFoundError:
            return False
        return True

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Yield the paths of all objects in a directory and below, in no particular order."""
        yield from self._run("list", prefix or "/", lambda: _listed(page for page in obstore.list(self.quick, prefix or None)))

    def own_paths(self) -> tuple[list[str], list[tuple[str, str]]]:
        """Return the paths of all objects that lie in the target itself, and what is there besides: where, and what it is.

        In a directory of this machine nothing behind a link counts; ``paths``, for readers, follows links.
        """
        if isinstance(self._store, LocalStore):
            return self._run("list", "/", lambda: walk(Path(str(self._store.prefix))))
        return sorted(self.paths()), []

    def is_empty(self) -> bool:
        """Return whether nothing is there; of a bucket only the beginning of its list is read, because it may have no end."""

        def look() -> bool:
            if isinstance(self._store, LocalStore):
                found = obstore.list_with_delimiter(self.quick)
                return not (found["common_prefixes"] or found["objects"])
            return asyncio.run(asyncio.wait_for(_lists_nothing(self.quick), self._retry.request_s_max))

        return self._run("list", "/", look)

    def delete(self, path: str) -> None:
        """Delete an object; one that is gone already counts as deleted."""
        if isinstance(self._store, LocalStore) and is_linked(Path(str(self._store.prefix)), path):
            raise PenstockError("SINK_UNWRITABLE", f"{self.name}: {path} lies behind a link, and nothing outside of a target is deleted")
        try:
            self._run("delete", path, lambda: obstore.delete(self.quick, path))
        except FileNotFoundError:
            return

    def _own(self, content: bytes | memoryview) -> bytes | memoryview:
        # The memory store keeps what it was given; all others have sent it when they return, and the caller uses its buffer again.
        return bytes(content) if isinstance(self._store, MemoryStore) else content

    def _pieces(self, content: bytes | memoryview) -> bytes | memoryview | Iterator[memoryview]:
        return pieces(content) if isinstance(self._store, LocalStore) and len(content) > WRITE_BYTES else content

    def _create(self, path: str, content: bytes | memoryview) -> None:
        try:
            obstore.put(self._store_for(content), path, self._pieces(content), mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            raise FileExistsError(path) from error

    def _holds(self, path: str, content: bytes | memoryview) -> bool:
        """Return whether an object has these bytes; one of another length is not read."""

        def read() -> bool:
            found = obstore.get(self._store_for(content), path)
            return found.meta["size"] == len(content) and bytes(found.bytes()) == content

        return self._run("read", path, read, self._time_for(content))

    def _store_for(self, content: bytes | memoryview) -> ObjectStore:
        return self.quick if len(content) <= QUICK_BYTES_MAX else self._store

    def _time_for(self, content: bytes | memoryview) -> float:
        return self.quick_s_max if len(content) <= QUICK_BYTES_MAX else self._retry.request_s_max

    def _run(self, verb: str, path: str, call: Callable[[], _T], request_s_max: float | None = None) -> _T:
        """Do something to an object, again where that may help; a request without many bytes has the time of such a one."""
        attempt, until_s = 0, self._clock.monotonic_s() + min(self._retry.total_s_max, request_s_max or self.quick_s_max)
        while True:
            attempt += 1
            try:
                if verb in _WRITES:
                    self.guard()
                return call()
            except (FileExistsError, PenstockError):
                raise
            except (BaseError, OSError, ValueError) as error:
                if isinstance(error, FileNotFoundError) and verb not in _PUTS:
                    raise FileNotFoundError(path) from None
                failure = _classify(error, f"{self.name}: cannot {verb} {path}")
                spent = attempt >= self._retry.attempts_max or self._clock.monotonic_s() >= until_s
                if failure.code != "SINK_UNAVAILABLE" or spent:
                    raise failure from None
            self._clock.wait(threading.Event(), Backoff(self._retry.pause_s_min, self._retry.pause_s_max).pause_s(attempt, self._rng))


def _reservation(content: bytes | memoryview) -> bytes:
    """Return what stands under an object's name until all its parts are there: no data file begins like this, and no index names it."""
    return _RESERVED + f"{len(content)} {xxhash.xxh3_128_hexdigest(content)}\n".encode()


async def _lists_nothing(store: ObjectStore) -> bool:
    # In a loop of its own, because nothing else ends a client that a store leads from one empty page to the next.
    async for page in obstore.list(store, chunk_size=1):
        if page:
            return False
    return True


def _listed(pages: Iterable[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the paths of a list; raise where a store makes one that has no end, by which it would fill the memory."""
    found: dict[str, None] = {}
    chars = 0
    for page in pages:
        before = len(found)
        found.update((entry["path"], None) for entry in page)
        chars += sum(len(entry["path"]) for entry in page)
        if len(found) - before < len(page) or chars > LISTED_CHARS_MAX:
            raise ValueError("the list has an object twice" if chars <= LISTED_CHARS_MAX else "the list is longer than one can be")
    return list(found)


def _small(found: Any, path: str, bytes_max: int | None) -> Any:
    """Return what was found unless it is larger than it may be."""
    if bytes_max is not None and found.meta["size"] > bytes_max:
        raise PenstockError("FILE_MALFORMED", f"{path}: {found.meta['size']} bytes, which is more than such an object has")
    return found


def unfenced() -> None:
    """Let every write pass: for those who write before a feed has an owner, or outside of any feed."""


def _classify(error: Exception, what: str) -> PenstockError:
    cause = cause_of(error)
    if any(mark in f"{error}" for mark in _FULL):
        return PenstockError("SINK_FULL", f"{what}: {cause}")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError | NotADirectoryError | IsADirectoryError):
        return PenstockError("SINK_UNWRITABLE", f"{what}: {cause}")
    if isinstance(error, NotSupportedError | InvalidPathError | UnknownConfigurationKeyError | ValueError):
        return PenstockError("SINK_UNWRITABLE", f"{what}: {cause}")
    text = str(error)
    if any(
        mark in text for mark in ("Permission denied", "Read-only file system", "Not a directory", "NoSuchBucket", "File name too long")
    ):
        return PenstockError("SINK_UNWRITABLE", f"{what}: {cause}")
    return PenstockError("SINK_UNAVAILABLE", f"{what}: {cause}")


def _open_store(uri: str, request_s_max: float = REQUEST_S_MAX) -> ObjectStore:
    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query))
    prefix = unquote(parts.path).strip("/")
    if parts.scheme == "file" and os.path.isfile(f"/{prefix}"):
        raise PenstockError("SINK_UNWRITABLE", f"{mask_uri(uri)}: it is a file, and not a directory", "Move it away.")
    try:
        return _open_scheme(parts.scheme, parts.netloc, prefix, options, request_s_max)
    except (BaseError, OSError, ValueError, TypeError) as error:
        failure = _classify(error, f"{mask_uri(uri)}: cannot open")
        code = "SINK_UNWRITABLE" if isinstance(error, OSError) else "SINK_URI_INVALID"
        raise PenstockError(code, failure.detail) from None


def _open_scheme(scheme: str, host: str, prefix: str, options: dict[str, str], request_s_max: float) -> ObjectStore:
    if scheme == "file":
        return LocalStore(f"/{prefix}", mkdir=True, automatic_cleanup=True)
    if scheme == "memory":
        with _MEMORY_LOCK:
            return _MEMORY_STORES.setdefault(f"{host}/{prefix}", MemoryStore())
    if scheme == CONNECTION_SCHEME:
        raise ValueError(f"the connection {host!r} is known to its server alone; give what it stands for")
    return open_bucket(scheme, host, prefix, options, 2, request_s_max)
