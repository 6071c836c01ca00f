"""Inspection of an event store from its files alone: what it holds, and whether it is sound.

Reads manifests, checkpoints and objects and changes nothing, so it may look at a store that a server uses. What it checks: checksums of
every batch, footers and manifests; the order of rows and that they lie in their zones; that flushed objects do not overlap in time and
reach to what the manifest says; that replaced objects have their replacement; that row ids are given once; that checkpoints join the
history; that each record of the write-ahead log is whole. Runs anywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import KEY, BatchKind, commit_ts_array
from penstock.model.errors import PenstockError
from penstock.store.log.wal_segment import SegmentScan, segment_files
from penstock.store.objects.checkpoints import CheckpointChain
from penstock.store.objects.manifest import Manifest, load_manifests
from penstock.store.objects.object_file import HEADER, MAGIC, ObjectKind, ObjectMeta, Zone, ZoneReader
from penstock.store.objects.objects import ObjectSpace


class Problem(msgspec.Struct, frozen=True):
    """Something that is wrong, with the code of the error that a reader would get. What is the log's has no span: its id is 0."""

    span_id: int
    path: str
    code: str
    what: str


class SpanInspection(msgspec.Struct, frozen=True):
    """What the files say of one span."""

    manifest: Manifest
    checkpoint_objects: tuple[ObjectMeta, ...]
    checkpoint_start_ts: int | None
    orphans: tuple[str, ...]
    """Object files that neither manifest nor checkpoints name: of work under way, or left by a crash."""


def inspect_store(space: ObjectSpace) -> list[SpanInspection]:
    """Return what every span holds, by table and key."""
    found = [_inspect(space, manifest) for manifest in load_manifests(space).values()]
    return sorted(found, key=lambda s: (s.manifest.span, s.manifest.span_id))


def _inspect(space: ObjectSpace, manifest: Manifest) -> SpanInspection:
    chain = CheckpointChain.load(space, manifest.span_id, clean=False)
    oldest = chain.reach(manifest.history_start_ts)
    named = {o.path for o in (*manifest.objects, *chain.objects)}
    files = space.list_names(f"spans/{manifest.span_id}/")
    orphans = tuple(f for f in files if f.endswith(".arrow") and f not in named)
    return SpanInspection(manifest, chain.objects, oldest.from_ts if oldest else None, orphans)


def check_log(directory: Path) -> Iterator[Problem]:
    """Yield what is wrong with the write-ahead log in a directory. The end of its last segment may be torn, or being written."""
    files = sorted(directory.glob("*.wal"))
    try:
        segment_files(directory)
    except PenstockError as error:
        yield Problem(0, directory.name, error.code, error.detail)
    for path in files:
        try:
            for _ in SegmentScan(path, last=path == files[-1], keep=True).read():
                pass
        except FileNotFoundError:
            # A server let it go meanwhile, because all of it is in objects.
            continue
        except PenstockError as error:
            yield Problem(0, f"{directory.name}/{path.name}", error.code, error.detail)


def check_span(space: ObjectSpace, span: SpanInspection) -> Iterator[Problem]:
    """Yield what is wrong with a span."""
    manifest = span.manifest
    objects = tuple({o.path: o for o in (*span.checkpoint_objects, *manifest.objects)}.values())
    for meta in objects:
        try:
            yield from (Problem(manifest.span_id, meta.path, "OBJECT_CORRUPT", what) for what in _check_object(space, meta))
        except PenstockError as error:
            yield Problem(manifest.span_id, meta.path, error.code, error.detail)
    yield from (Problem(manifest.span_id, path, "OBJECT_CORRUPT", what) for path, what in _check_coverage(manifest, objects))
    if span.checkpoint_objects and span.checkpoint_start_ts is None:
        yield Problem(manifest.span_id, "", "STALE_READ", "the checkpoints do not join the manifest's history")


def _check_object(space: ObjectSpace, meta: ObjectMeta) -> Iterator[str]:
    payload = space.get(meta.path)
    if payload.size != meta.size:
        yield f"it has {payload.size} bytes, the manifest says {meta.size}"
        return
    if HEADER.unpack(payload.slice(0, HEADER.size).to_pybytes())[0] != MAGIC:
        yield "it does not begin with its magic"
    footer = space.footer(meta)
    reader = ZoneReader(meta, footer)
    if sum(z.rows for z in footer.zones) != meta.rows:
        yield f"its zones hold {sum(z.rows for z in footer.zones)} rows, the manifest says {meta.rows}"
    last: tuple[int, bytes] | None = None
    for zone in footer.zones:
        records = reader.decode(zone, payload.slice(zone.offset, zone.length)).records
        yield from _check_zone(zone, records)
        ts, keys = commit_ts_array(records), records.column(KEY)
        first = (int(ts[0]), keys[0].as_py())
        if last is not None and first <= last:
            yield f"the batch at offset {zone.offset} begins at or before the end of the one before it"
        last = (int(ts[-1]), keys[-1].as_py())


def _check_zone(zone: Zone, records: pa.RecordBatch) -> Iterator[str]:
    ts, keys = commit_ts_array(records), records.column(KEY)
    if records.num_rows != zone.rows or (int(ts.min()), int(ts.max())) != (zone.min_ts, zone.max_ts):
        yield f"the batch at offset {zone.offset} does not match its zone"
    low, high = pc.min_max(keys).values()
    if (low.as_py(), high.as_py()) != (zone.min_key, zone.max_key):
        yield f"the keys of the batch at offset {zone.offset} do not match its zone"
    later = ts[1:] > ts[:-1]
    rising = pc.greater(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
    if not bool(np.all(later | ((ts[1:] == ts[:-1]) & rising))):
        yield f"the batch at offset {zone.offset} is not ordered by ts and key"


def _check_coverage(manifest: Manifest, objects: Sequence[ObjectMeta]) -> Iterator[tuple[str, str]]:
    transferred = {o.path for o in objects if o.side is BatchKind.TOMBSTONE and o.create_ts and o.create_ts == o.max_ts}
    for side in BatchKind:
        flushed = [o for o in objects if o.side is side and o.object_kind is ObjectKind.APPENDABLE and o.path not in transferred]
        for before, after in itertools.pairwise(sorted(flushed, key=lambda o: (o.min_ts, o.max_ts, o.path))):
            if before.max_ts > after.min_ts:
                yield after.path, f"it begins at ts {after.min_ts}, before {before.path} ends"
        for meta in flushed:
            if meta.max_ts > manifest.flushed_ts:
                yield meta.path, f"it reaches to ts {meta.max_ts}, the manifest is flushed to {manifest.flushed_ts}"
    merges = {o.create_ts for o in objects if o.object_kind is ObjectKind.MERGED}
    for meta in manifest.objects:
        if meta.delete_ts and merges and meta.delete_ts not in merges and meta.delete_ts > min(merges):
            yield meta.path, f"no merged objects came in its place at ts {meta.delete_ts}"
    numbered = sorted((o for o in objects if o.first_row), key=lambda o: o.first_row)
    for before, after in itertools.pairwise(numbered):
        if before.first_row + before.rows > after.first_row:
            yield after.path, f"its row ids overlap with those of {before.path}"
