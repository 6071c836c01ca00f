"""Bootstrap: the state of a span pulled from the upstream by a Spark job and committed to the event store in one step.

One task per range pulls its snapshot page by page and writes bulk objects; nothing is visible until the driver commits them. Ranges
answer at versions of their own, all at or after ``start_ts``, from which on the span's log is captured. So a row that committed after
``start_ts`` is left to the log, which has it, and the rest is committed at ``start_ts``: from the largest of the versions on, state and
log together are exactly the table. A snapshot that is lost on the way begins again, and what it had written is removed. ``bootstrap``
runs in the driver, ``pull_part`` on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from penstock.model.batch import ChangeBatch
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import SchemaHistory, TableSchema
from penstock.source.contract import RangeInfo
from penstock.source.dataserver.client import DataServerUpstream
from penstock.source.dataserver.snapshot_pull import SnapshotLostError, SnapshotPage, SnapshotPuller
from penstock.store.bulk import write_bulk
from penstock.store.object_file import ObjectMeta
from penstock.store.objects import ObjectSpace
from penstock.store.span_writer import by_size

OBJECT_BYTES = 64 * 1024 * 1024
RESTARTS_MAX = 16


class BulkTarget(Protocol):
    """The event store as a bootstrap needs it."""

    def commit_bulk(self, span_id: int, objects: Sequence[ObjectMeta], commit_ts: int, base_ts: int | None = None) -> None:
        """Make bulk objects visible in one step."""


class BootstrapPart(msgspec.Struct, frozen=True):
    """What one task pulls: ``[start_key, end_key)`` of full keys, ``b""`` as end where it is open."""

    source: str
    span: Span
    start_ts: int
    start_key: bytes
    end_key: bytes
    objects_uri: str
    storage_options: dict[str, str]
    subscriber: str
    number: int
    page_rows: int


class PulledPart(msgspec.Struct, frozen=True):
    """What a task wrote, and the largest snapshot version that it read."""

    objects: tuple[ObjectMeta, ...]
    version: int
    restarts: int


class Bootstrapped(msgspec.Struct, frozen=True):
    """What a bootstrap committed: the state is known from ``base_ts`` on."""

    base_ts: int
    objects: int
    rows: int
    restarts: int


def bootstrap(
    session: SparkSession,
    store: BulkTarget,
    source: str,
    span: Span,
    start_ts: int,
    objects_uri: str,
    storage_options: Mapping[str, str] | None = None,
    page_rows: int = 16_384,
) -> Bootstrapped:
    """Pull a span's state with one task per range and commit it.

    The span must be registered with the store at ``start_ts``, a ts that the upstream gave before, so that its log is captured from there.
    ``objects_uri`` is the store's, as executors reach it.
    """
    parts = plan_parts(source, span, start_ts, objects_uri, storage_options or {}, page_rows)
    encoded = [msgspec.json.encode(part) for part in parts]
    answers = session.sparkContext.parallelize(encoded, len(encoded)).map(_pull_encoded).collect()
    pulled = [msgspec.json.decode(answer, type=PulledPart) for answer in answers]
    objects = [o for part in pulled for o in part.objects]
    base_ts = max(start_ts, *(part.version for part in pulled))
    store.commit_bulk(span.span_id, objects, start_ts, base_ts)
    return Bootstrapped(base_ts, len(objects), sum(o.rows for o in objects), sum(p.restarts for p in pulled))


def plan_parts(
    source: str, span: Span, start_ts: int, objects_uri: str, storage_options: Mapping[str, str], page_rows: int
) -> list[BootstrapPart]:
    """Return one part per range that covers the span now."""
    with DataServerUpstream(source) as upstream:
        ranges = upstream.ranges(span)
        first, last = upstream.key_span(span)
    starts = [max(first, r.start_key) for r in ranges]
    ends = [*starts[1:], last]
    return [
        BootstrapPart(
            source=source,
            span=span,
            start_ts=start_ts,
            start_key=start,
            end_key=end,
            objects_uri=objects_uri,
            storage_options=dict(storage_options),
            subscriber=f"bootstrap-{span.span_id}-{start_ts}",
            number=number,
            page_rows=page_rows,
        )
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _pull_encoded(part: bytes) -> bytes:
    return msgspec.json.encode(pull_part(msgspec.json.decode(part, type=BootstrapPart)))


def pull_part(part: BootstrapPart) -> PulledPart:
    """Pull one part, range by range as they are now, and write its bulk objects. Runs on an executor."""
    space = ObjectSpace(part.objects_uri, options=part.storage_options)
    puller = SnapshotPuller(part.subscriber, part.page_rows)
    objects: list[ObjectMeta] = []
    version, restarts, position = part.start_ts, 0, part.start_key
    with DataServerUpstream(part.source) as upstream:
        table = SchemaHistory(part.span.table_id, upstream.schema_history(part.span.table_id)).at(part.start_ts)
        try:
            while not part.end_key or position < part.end_key:
                info = _range_at(upstream, part, position)
                try:
                    written, pulled_version = _pull_range(space, puller, upstream, part, info, position, table)
                except SnapshotLostError as lost:
                    restarts += 1
                    if restarts > RESTARTS_MAX:
                        raise PenstockError("UPSTREAM_UNREACHABLE", f"the snapshot was lost {restarts} times: {lost}") from lost
                    continue
                objects += written
                version = max(version, pulled_version)
                position = info.end_key
                if not position:
                    break
        finally:
            puller.close()
    return PulledPart(tuple(objects), version, restarts)


def _range_at(upstream: DataServerUpstream, part: BootstrapPart, position: bytes) -> RangeInfo:
    for info in upstream.list_ranges(position, part.end_key):
        if info.start_key <= position and (not info.end_key or position < info.end_key):
            return info
    raise PenstockError("REGION_NOT_FOUND", f"no range of table {part.span.table_id} covers the bootstrap's position")


def _pull_range(
    space: ObjectSpace,
    puller: SnapshotPuller,
    upstream: DataServerUpstream,
    part: BootstrapPart,
    info: RangeInfo,
    position: bytes,
    table: TableSchema,
) -> tuple[list[ObjectMeta], int]:
    """Write the rows of one range from a position on; on any failure what was written is removed."""
    written: list[ObjectMeta] = []
    versions = [part.start_ts]

    def batches() -> Iterator[ChangeBatch]:
        for page in puller.pages(info):
            versions.append(page.version)
            chosen = _rows_of(page, part, position)
            if len(chosen.keys):
                ts = np.full(len(chosen.keys), part.start_ts, dtype=np.uint64)
                yield from upstream.decoder().decode_rows(part.span.span_id, table, ts, chosen.keys, chosen.values)

    try:
        for number, piece in enumerate(by_size(batches(), OBJECT_BYTES)):
            name = f"bootstrap-{part.number:06d}-{info.range_id}-{number:06d}"
            written.append(write_bulk(space, part.span.span_id, name, piece, part.start_ts, [table]))
    except BaseException:
        for meta in written:
            space.delete(meta.path)
        raise
    return written, max(versions)


def _rows_of(page: SnapshotPage, part: BootstrapPart, position: bytes) -> SnapshotPage:
    """Return the rows that belong to the part and committed at or before its start; the log has those that came later."""
    wanted = pc.and_(pc.greater_equal(page.keys, pa.scalar(position, pa.binary())), pa.array(page.commit_ts <= np.uint64(part.start_ts)))
    if part.end_key:
        wanted = pc.and_(wanted, pc.less(page.keys, pa.scalar(part.end_key, pa.binary())))
    kept = wanted.to_numpy(zero_copy_only=False)
    return SnapshotPage(page.version, page.keys.filter(wanted), page.values.filter(wanted), page.commit_ts[kept])
