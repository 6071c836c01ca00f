"""Who writes the objects of an event store that are on shared storage.

``owner/<epoch>.json`` is created once per epoch; the largest epoch owns. Every opening begins the next one and writes every manifest anew,
so that the owner before cannot publish any more: not even one that works on a copy of the same directory. The local directory notes the
epoch that it owned last. Where nobody came in between, it goes on with its write-ahead log; otherwise that is thrown away. Then the store
goes back to what is in objects: the rest was in a log on another disk, and is pulled again. Invariants: an epoch has one owner; a log is
replayed only over manifests of the directory's own epochs. Both records carry magic, version and checksum. Runs in the log service.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from penstock.files.durable_names import sync_directory
from penstock.files.private_files import open_private
from penstock.model.errors import PenstockError
from penstock.store.objects.manifest import KEPT, Manifest, decode_manifest, encode_manifest, load_manifests, manifest_prefix, seal, unseal
from penstock.store.objects.objects import ObjectSpace

log = logging.getLogger(__name__)
MAGIC = "penstock-owner"
VERSION = 1
PREFIX = "owner/"
NOTE = "owner.json"
INTENT = "owner.json.new"
"""What a directory that goes on is about to claim, and then to note."""
_TRIES_MAX = 100
_LOCAL = ("wal", "spill")
"""What a store's directory holds that belongs to one epoch."""


class OwnerRecord(msgspec.Struct, frozen=True):
    """One epoch. ``token`` tells its owner from another that wanted the same epoch."""

    epoch: int
    token: str


class Ownership:
    """One owner's hold on a space. Thread safe."""

    def __init__(self, space: ObjectSpace, record: OwnerRecord, goes_on: bool) -> None:
        self._space = space
        self._record = record
        self.goes_on = goes_on
        """Whether the directory was the owner before this opening: it has a log to go on with."""

    @property
    def epoch(self) -> int:
        """Return the epoch, from 1 on."""
        return self._record.epoch

    @classmethod
    def claim(cls, space: ObjectSpace, directory: Path, rng: random.Random) -> Ownership:
        """Become the owner by the next epoch; with the directory's log where this directory was the owner last."""
        noted = _noted(directory)
        for _ in range(_TRIES_MAX):
            newest = _newest(space)
            goes_on = newest is not None and newest in noted
            record = OwnerRecord(1 if newest is None else newest.epoch + 1, f"{rng.getrandbits(64):016x}")
            if goes_on:
                # A crash before the epoch is noted as begun must not cost the log.
                _write(directory / INTENT, record)
            path = f"{PREFIX}{record.epoch:012d}.json"
            if space.put_new(path, [_sealed(record)]) or _read(space, path) == record:
                log.info("objects claimed", extra={"uri": space.uri, "epoch": record.epoch, "goes_on": goes_on})
                return cls(space, record, goes_on)
        raise PenstockError("STORE_FAILED", f"no epoch of {space.uri} could be claimed: others claim it all the time")

    def begin(self, directory: Path, held_ts: Mapping[int, int]) -> None:
        """Take over what there is, in a new epoch: a log of another epoch goes, every manifest is written anew.

        ``held_ts`` says of some spans up to where their rows are in objects, where that is further than their manifests say; it was read
        before, so the manifests that it relies on are there.
        """
        for name in () if self.goes_on else _LOCAL:
            _remove(directory / name)
        for manifest in self._manifests():
            self._take(manifest, held_ts.get(manifest.span_id, 0))

    def note(self, directory: Path) -> None:
        """Note in the directory that its log is of this epoch. Done last: a crash before that claims another epoch."""
        directory.mkdir(parents=True, exist_ok=True)
        _write(directory / INTENT, self._record)
        (directory / INTENT).replace(directory / NOTE)
        sync_directory(directory)

    def check(self) -> None:
        """Raise ``FENCED`` where another owner has come."""
        if self._space.exists(f"{PREFIX}{self.epoch + 1:012d}.json"):
            raise PenstockError("FENCED", f"the objects at {self._space.uri} have another owner since epoch {self.epoch}")

    def _take(self, manifest: Manifest, held_ts: int) -> None:
        """Write a manifest of this epoch that says what the newest one says; the owner before may add some until one is there."""
        for _ in range(_TRIES_MAX):
            mine = msgspec.structs.replace(
                manifest,
                number=manifest.number + 1,
                resolved_ts=max(manifest.flushed_ts, held_ts),
                writer=self._record.token,
                epoch=self.epoch,
            )
            path = f"{manifest_prefix(mine.span_id)}{mine.number:012d}.json"
            if self._space.put_new(path, [encode_manifest(mine)]):
                if mine.number > KEPT:
                    self._space.delete(f"{manifest_prefix(mine.span_id)}{mine.number - KEPT:012d}.json")
                return
            manifest = decode_manifest(path, self._space.get(path))
            if manifest.writer == mine.writer:
                return
            if manifest.epoch >= self.epoch:
                raise PenstockError("FENCED", f"span {manifest.span_id} was taken over by epoch {manifest.epoch}")
        raise PenstockError("STORE_FAILED", f"span {manifest.span_id}: the owner before writes manifests all the time")

    def _manifests(self) -> list[Manifest]:
        """Return the newest manifests; the owner before may remove one that was just listed."""
        for _ in range(_TRIES_MAX):
            try:
                return list(load_manifests(self._space).values())
            except PenstockError as error:
                if error.code != "OBJECT_MISSING":
                    raise
        raise PenstockError("STORE_FAILED", f"the owner before writes manifests at {self._space.uri} all the time")


def check_unshared(directory: Path) -> None:
    """Raise where a directory's log belongs to objects elsewhere: without them it has holes."""
    if (directory / NOTE).exists():
        raise PenstockError(
            "CONFIG_INVALID",
            f"store.objects: the objects of {directory} are on shared storage",
            "Give the same store.objects again, or remove the directory: what it holds is pulled again.",
        )


def _remove(folder: Path) -> None:
    """Remove a folder for sure: what is left of another epoch's log would be replayed over manifests that know nothing of it."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        if not folder.exists():
            return
        raise
    except OSError as error:
        hint = "Remove it by hand: what it holds is pulled again."
        raise PenstockError("STORE_FAILED", f"{folder}: the log of an earlier owner cannot be removed: {error.strerror}", hint) from error


def _sealed(record: OwnerRecord) -> bytes:
    return seal(MAGIC, VERSION, msgspec.json.encode(record))


def _read(space: ObjectSpace, path: str) -> OwnerRecord:
    return unseal(path, space.get(path), MAGIC, VERSION, OwnerRecord)


def _newest(space: ObjectSpace) -> OwnerRecord | None:
    names = [name for name in space.list_names(PREFIX) if name.endswith(".json")]
    return _read(space, names[-1]) if names else None


def _noted(directory: Path) -> list[OwnerRecord]:
    """Return what a directory owned last, and what it may have claimed since; nothing where that cannot be told."""
    found = []
    for name in (NOTE, INTENT):
        with contextlib.suppress(OSError, PenstockError):
            found.append(unseal(name, (directory / name).read_bytes(), MAGIC, VERSION, OwnerRecord))
    return found


def _write(file: Path, record: OwnerRecord) -> None:
    with open(file, "wb", opener=open_private) as sink:
        sink.write(_sealed(record))
        sink.flush()
        os.fsync(sink.fileno())
    sync_directory(file.parent)
