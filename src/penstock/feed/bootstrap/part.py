"""One part of a bootstrap: reads a piece of a span from the upstream and writes it as bulk objects.

Two ways to read: with a ticket, from an upstream whose tables share one log, page by page as the ticket says; without one, range by range
from the data server, whose ranges answer at versions of their own, all at or after ``start_ts``. There a row that committed after
``start_ts`` is left to the log, which has it. A snapshot that is lost on the way begins again, and what it had written is removed. Rows are
paced where a rate is set. Runs on executors.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.batch import ChangeBatch
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.span import Span
from penstock.model.table import SchemaHistory, TableSchema
from penstock.source.catalog import open_upstream
from penstock.source.contract import RangeInfo
from penstock.source.dataserver.client import DataServerUpstream
from penstock.source.dataserver.snapshot_pull import SnapshotLostError, SnapshotPage, SnapshotPuller
from penstock.source.single_log import SnapshotTicket, shares_one_log
from penstock.store.log.bootstrap_log import PulledPart
from penstock.store.objects.bulk import write_bulk
from penstock.store.objects.object_file import ObjectMeta
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.span_writer import by_size

OBJECT_BYTES = 64 * 1024 * 1024
RESTARTS_MAX = 16


class BootstrapPart(msgspec.Struct, frozen=True):
    """What one task pulls: ``piece`` of ``span``. Holds the source's URI, which may carry credentials: never print it."""

    source: str
    span: Span
    piece: Span
    start_ts: int
    objects_uri: str
    storage_options: dict[str, str]
    number: int
    page_rows: int
    rows_per_s: float = 0.0
    """How many rows the task reads per second at most; 0 for as many as it can."""
    ticket: SnapshotTicket | None = None
    table: TableSchema | None = None
    """The version under which rows are read; set with a ticket."""

    def __repr__(self) -> str:
        return f"BootstrapPart(span={self.span.span_id}, number={self.number}, start_ts={self.start_ts})"


def pull_encoded(part: bytes) -> bytes:
    """Pull a part that is JSON; return what was pulled as JSON."""
    return msgspec.json.encode(pull_part(msgspec.json.decode(part, type=BootstrapPart)))


def pull_part(part: BootstrapPart, clock: Clock | None = None) -> PulledPart:
    """Pull one part and write its bulk objects; durable when it returns."""
    pace = Pace(part.rows_per_s, clock or SystemClock())
    space = ObjectSpace(part.objects_uri, options=part.storage_options)
    return _pull_by_range(part, space, pace) if part.ticket is None else _pull_by_ticket(part, part.ticket, space, pace)


class Pace:
    """Holds a reader back to a rate: it is called with the rows that were read, and returns when they are due."""

    def __init__(self, rows_per_s: float, clock: Clock) -> None:
        self._rows_per_s = rows_per_s
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._rows = 0

    def take(self, rows: int) -> None:
        """Wait until so many more rows are due."""
        if self._rows_per_s <= 0:
            return
        self._rows += rows
        due_s = self._began_s + self._rows / self._rows_per_s - self._clock.monotonic_s()
        if due_s > 0:
            self._clock.wait(threading.Event(), due_s)


def _pull_by_ticket(part: BootstrapPart, ticket: SnapshotTicket, space: ObjectSpace, pace: Pace) -> PulledPart:
    upstream = open_upstream(part.source)
    try:
        if not shares_one_log(upstream) or part.table is None:
            raise InvariantError(f"{part!r} carries a ticket that its upstream does not read by")
        pages = upstream.read_snapshot(ticket, part.piece, part.table, part.page_rows)
        objects = _write(space, part, part.table, (_own(b, part, pace) for b in pages), f"{part.number:06d}")
    finally:
        upstream.close()
    return PulledPart(tuple(objects), part.start_ts)


def _own(batch: ChangeBatch, part: BootstrapPart, pace: Pace) -> ChangeBatch:
    """Return a batch under the id of the whole span: the source reads pieces, which it takes for spans."""
    pace.take(batch.header.rows)
    return ChangeBatch(msgspec.structs.replace(batch.header, span_id=part.span.span_id), batch.records)


def _pull_by_range(part: BootstrapPart, space: ObjectSpace, pace: Pace) -> PulledPart:
    """Pull a piece range by range as they are now."""
    puller = SnapshotPuller(f"bootstrap-{part.span.span_id}-{part.start_ts}-{part.number}", part.page_rows)
    objects: list[ObjectMeta] = []
    version, restarts = part.start_ts, 0
    with DataServerUpstream(part.source) as upstream:
        position, end_key = upstream.key_span(part.piece)
        table = SchemaHistory(part.span.table_id, upstream.schema_history(part.span.table_id)).at(part.start_ts)
        try:
            while not end_key or position < end_key:
                info = _range_at(upstream, part, position, end_key)
                try:
                    written, pulled_version = _pull_range(space, puller, upstream, part, info, (position, end_key), table, pace)
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
        except BaseException:
            _remove(space, objects)
            raise
        finally:
            puller.close()
    return PulledPart(tuple(objects), version, restarts)


def _range_at(upstream: DataServerUpstream, part: BootstrapPart, position: bytes, end_key: bytes) -> RangeInfo:
    for info in upstream.list_ranges(position, end_key):
        if info.start_key <= position and (not info.end_key or position < info.end_key):
            return info
    raise PenstockError("REGION_NOT_FOUND", f"no range of table {part.span.table_id} covers the bootstrap's position")


def _pull_range(
    space: ObjectSpace,
    puller: SnapshotPuller,
    upstream: DataServerUpstream,
    part: BootstrapPart,
    info: RangeInfo,
    keys: tuple[bytes, bytes],
    table: TableSchema,
    pace: Pace,
) -> tuple[list[ObjectMeta], int]:
    """Write the rows of one range between two keys; return the objects and the version that the range answered at."""
    versions = [part.start_ts]

    def batches() -> Iterator[ChangeBatch]:
        for page in puller.pages(info):
            versions.append(page.version)
            pace.take(len(page.keys))
            chosen = _rows_of(page, part.start_ts, keys)
            if len(chosen.keys):
                ts = np.full(len(chosen.keys), part.start_ts, dtype=np.uint64)
                yield from upstream.decoder().decode_rows(part.span.span_id, table, ts, chosen.keys, chosen.values)

    written = _write(space, part, table, batches(), f"{part.number:06d}-{info.range_id}")
    return written, max(versions)


def _rows_of(page: SnapshotPage, start_ts: int, keys: tuple[bytes, bytes]) -> SnapshotPage:
    """Return the rows that belong to the part and committed at or before its start; the log has those that came later."""
    first, last = keys
    wanted = pc.and_(pc.greater_equal(page.keys, pa.scalar(first, pa.binary())), pa.array(page.commit_ts <= np.uint64(start_ts)))
    if last:
        wanted = pc.and_(wanted, pc.less(page.keys, pa.scalar(last, pa.binary())))
    kept = wanted.to_numpy(zero_copy_only=False)
    return SnapshotPage(page.version, page.keys.filter(wanted), page.values.filter(wanted), page.commit_ts[kept])


def _write(space: ObjectSpace, part: BootstrapPart, table: TableSchema, batches: Iterator[ChangeBatch], name: str) -> list[ObjectMeta]:
    """Write batches as bulk objects of bounded size; on any failure what was written is removed."""
    written: list[ObjectMeta] = []
    try:
        for number, piece in enumerate(by_size(batches, OBJECT_BYTES)):
            full = f"bootstrap-{part.start_ts:020d}-{name}-{number:06d}"
            written.append(write_bulk(space, part.span.span_id, full, piece, part.start_ts, [table]))
    except BaseException:
        _remove(space, written)
        raise
    return written


def _remove(space: ObjectSpace, objects: list[ObjectMeta]) -> None:
    for meta in objects:
        space.delete(meta.path)
