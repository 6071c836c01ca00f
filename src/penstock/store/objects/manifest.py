"""Manifests: the numbered, create-only records of which objects make up a span.

``spans/<span id>/manifest/<number>.json`` holds one; the largest number wins. A number that is taken by an owner of the same or a later
epoch means that this one is cut off; one of an earlier epoch is written over by the next number. A manifest is durable before the
write-ahead log forgets what its objects hold. Format version 1: JSON with
magic, version and the xxh3-64 checksum of the body. Runs in the log service.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pyarrow as pa
import xxhash

from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.store.objects.object_file import ObjectMeta
from penstock.store.objects.objects import ObjectSpace

Record = TypeVar("Record", bound=msgspec.Struct)
MAGIC = "penstock-manifest"
VERSION = 1
KEPT = 2
"""How many manifests of a span stay: the newest, and the one before it for inspection."""


class Manifest(msgspec.Struct, frozen=True):
    """The persistent state of a span.

    ``flushed_ts``: every row at or below it is in the objects, none above it is in an appendable one. ``history_start_ts``: changes
    above it are complete. ``base_ts``: from this ts on the whole state of the span is known; None where the capture began on a table
    that was not empty.
    """

    number: int
    span_id: int
    span: Span
    resolved_ts: int
    flushed_ts: int
    history_start_ts: int
    base_ts: int | None
    writer: str
    """Names the process that wrote it: so a writer knows its own manifest again when the answer to its put was lost."""
    objects: tuple[ObjectMeta, ...] = ()
    transfer_ts: tuple[int, ...] = ()
    """The delete ts of merges that transferred tombstones: tombstones with such a commit ts are no changes. Kept apart from the objects,
    which may be collected before the ts lies outside the history."""
    next_row: int = 1
    """The row id that the next object begins with."""
    epoch: int = 0
    """Of the owner that wrote it, where the objects are on shared storage; see ``ownership.py``."""


class _Envelope(msgspec.Struct):
    magic: str
    version: int
    checksum: int
    body: msgspec.Raw


def manifest_prefix(span_id: int) -> str:
    """Return where the manifests of a span lie."""
    return f"spans/{span_id}/manifest/"


def write_manifest(space: ObjectSpace, manifest: Manifest) -> Manifest:
    """Publish a manifest, remove those that it made old, and return the one that holds the number now.

    That is another one when an earlier attempt of this writer came through although it seemed to fail. Raises ``FENCED`` when the number
    is taken by another writer, unless that was an owner before this one, which did not know yet: then the next number is taken.
    """
    prefix = manifest_prefix(manifest.span_id)
    path = f"{prefix}{manifest.number:012d}.json"
    while not space.put_new(path, [encode_manifest(manifest)]):
        found = decode_manifest(path, space.get(path))
        if found.writer == manifest.writer:
            return found
        if found.epoch >= manifest.epoch:
            raise PenstockError("FENCED", f"manifest {manifest.number} of span {manifest.span_id} was written by another owner")
        manifest = msgspec.structs.replace(manifest, number=manifest.number + 1)
        path = f"{prefix}{manifest.number:012d}.json"
    if manifest.number > KEPT:
        space.delete(f"{prefix}{manifest.number - KEPT:012d}.json")
    return manifest


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest's bytes."""
    return seal(MAGIC, VERSION, msgspec.json.encode(manifest))


def decode_manifest(path: str, payload: bytes | pa.Buffer) -> Manifest:
    """Read a manifest's bytes; raises ``OBJECT_CORRUPT`` when they are not what was written."""
    return unseal(path, payload, MAGIC, VERSION, Manifest)


def seal(magic: str, version: int, body: bytes) -> bytes:
    """Return a record's JSON with magic, version and checksum around it."""
    return msgspec.json.encode(_Envelope(magic, version, xxhash.xxh3_64_intdigest(body), msgspec.Raw(body)))


def unseal(path: str, payload: bytes | pa.Buffer, magic: str, version: int, record: type[Record]) -> Record:
    """Read what ``seal`` wrote; raises ``OBJECT_CORRUPT`` when it is something else."""
    try:
        envelope = decoded(memoryview(payload), _Envelope)
        if envelope.magic != magic or envelope.version != version:
            raise PenstockError("OBJECT_CORRUPT", f"{path} has magic {envelope.magic!r} and version {envelope.version}")
        if xxhash.xxh3_64_intdigest(bytes(envelope.body)) != envelope.checksum:
            raise PenstockError("OBJECT_CORRUPT", f"{path} fails its checksum")
        return decoded(bytes(envelope.body), record)
    except msgspec.DecodeError as error:
        raise PenstockError("OBJECT_CORRUPT", f"{path} does not parse: {error}") from error


def load_manifests(space: ObjectSpace) -> dict[int, Manifest]:
    """Return the newest manifest of every span."""
    newest: dict[str, str] = {}
    for name in space.list_names("spans/"):
        owner, _, file = name.rpartition("/manifest/")
        if owner and file.endswith(".json"):
            newest[owner] = max(newest.get(owner, ""), name)
    manifests = (decode_manifest(name, space.get(name)) for name in newest.values())
    return {m.span_id: m for m in manifests}
