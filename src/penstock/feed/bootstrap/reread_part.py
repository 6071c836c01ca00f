"""One part of a re-read: a key range of a table as it is now, compared with the event store's state of the same range.

Rows that are equal are left out while both are read; the rest is compared in buckets. What differs is written as bulk objects, tombstones
and rows apart, one pair per bucket, so that both sides of a key stand in one pair. Nothing refers to them but the answer, so an attempt
that dies leaves orphans, which garbage collection removes. Rows are named by their row key; where the table has no key, equal rows are
counted, and a row that is gone keeps the key under which the store has it. Needs the memory of one bucket, and local disk for what
differs. Runs on executors.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.feed.bootstrap.lockstep import leave_out_equal
from penstock.feed.bootstrap.part import BootstrapPart, Pace
from penstock.feed.bootstrap.row_key_difference import RowKeyDifference
from penstock.model.batch import COMMIT_TS, KEY, OP, BatchKind, ChangeBatch
from penstock.model.clock import Clock, SystemClock
from penstock.model.decoding import decoded
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.model.timestamp import TS_ZERO
from penstock.readback.state_difference import BUCKET_BYTES, RowSpool, buckets_for
from penstock.source.catalog import open_upstream
from penstock.source.contract import Upstream
from penstock.source.single_log import has_log
from penstock.store.changes.changes import SpanView, open_changes
from penstock.store.contract import EndOfRange
from penstock.store.flight.client import FlightStoreClient
from penstock.store.objects.bulk import write_bulk
from penstock.store.objects.object_file import ObjectMeta


class RereadPart(msgspec.Struct, frozen=True):
    """What one task compares: ``read`` says how the table is read. Holds credentials: never print it."""

    read: BootstrapPart
    held_ts: int
    """The resolved ts at which the store's state is taken."""
    flight_location: str
    flight_token: str
    whole: bool = False
    """Whether rows that are equal count as changed: the store may have rows under keys that are those of others now."""

    def __repr__(self) -> str:
        return f"RereadPart(span={self.read.span.span_id}, number={self.read.number}, held_ts={self.held_ts})"


class CorrectionObjects(msgspec.Struct, frozen=True):
    """Where the two sides of some corrections are; a side without rows has no object."""

    tombstones: ObjectMeta | None
    data: ObjectMeta | None


class ComparedPart(msgspec.Struct, frozen=True):
    """What a task found: how many rows the table has in the range, and what differs."""

    rows: int
    corrections: tuple[CorrectionObjects, ...] = ()
    read_at: str = ""
    """Of rows that are counted: a place of the log at or behind the one at which they were seen, where that is not known exactly."""

    def objects(self) -> Iterator[ObjectMeta]:
        """Yield every object that was written."""
        for pair in self.corrections:
            yield from (meta for meta in (pair.tombstones, pair.data) if meta is not None)


def compare_encoded(part: bytes) -> bytes:
    """Compare a part that is JSON; return what was found as JSON."""
    return msgspec.json.encode(compare_part(decoded(part, RereadPart)))


def compare_part(part: RereadPart, clock: Clock | None = None) -> ComparedPart:
    """Read a range, compare it, and write what differs; durable when it returns."""
    read, table = part.read, part.read.table
    with tempfile.TemporaryDirectory(prefix="penstock-reread-") as name:
        directory = Path(name)
        shown = pa.schema([field for field in table.batch_schema() if field.name != COMMIT_TS])
        held, fresh = RowSpool(directory / "held.arrow", shown), RowSpool(directory / "table.arrow", shown)
        client = FlightStoreClient(part.flight_location, part.flight_token, read.storage_options)
        try:
            view = range_view(client.view(read.span.span_id, TS_ZERO, part.held_ts), read.piece)
            rows = _TableRows(read, Pace(read.rows_per_s, clock or SystemClock()))
            known = held_rows(view, read.piece, part.held_ts, table)
            if part.whole:
                _take_all(known, held)
                _take_all(rows, fresh)
            else:
                leave_out_equal(known, rows, held.add, fresh.add, unique=bool(table.key_columns))
        finally:
            client.close()
        held.finish()
        fresh.finish()
        difference = RowKeyDifference(table, directory, buckets_for(max(held.nbytes, fresh.nbytes), BUCKET_BYTES), whole=part.whole)
        difference.add_old(held.read())
        difference.add_new(fresh.read())
        return ComparedPart(rows.count, tuple(_write(read, table, difference)), rows.read_at)


class _TableRows:
    """The rows of a range as the table has them now, counted."""

    def __init__(self, read: BootstrapPart, pace: Pace) -> None:
        self._batches = self._read(read, pace)
        self.count = 0
        self.read_at = ""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        self.count += batch.num_rows
        return batch

    def _read(self, read: BootstrapPart, pace: Pace) -> Iterator[pa.RecordBatch]:
        table, upstream = read.table, open_upstream(read.source)
        try:
            for batch in upstream.read_snapshot(read.ticket, read.piece, table, read.page_rows):
                self._note_place(read, upstream)
                pace.take(batch.header.rows)
                yield batch.records.cast(table.batch_schema()).drop_columns([COMMIT_TS])
            self._note_place(read, upstream)
        finally:
            upstream.close()

    def _note_place(self, read: BootstrapPart, upstream: Upstream) -> None:
        """Note once, when the rows are seen already, where the log ends: rows without a key are seen at one moment."""
        if not self.read_at and not read.table.key_columns and not read.ticket.exact and has_log(upstream):
            self.read_at = upstream.log_end()


def range_view(view: SpanView, piece: Span) -> SpanView:
    """Return a picture of a span without the objects that have no key of a range; other keys may be in it still."""
    objects = tuple(o for o in view.state.objects if view.state.transferred(o) or _meets(o, piece))
    return SpanView(msgspec.structs.replace(view.state, objects=objects), view.memory, view.space)


def _meets(meta: ObjectMeta, piece: Span) -> bool:
    # Both are empty in manifests that did not say them.
    unknown = not meta.min_key and not meta.max_key
    return unknown or (meta.max_key >= piece.start_key and (not piece.end_key or meta.min_key < piece.end_key))


def _take_all(batches: Iterator[pa.RecordBatch], spool: RowSpool) -> None:
    for batch in batches:
        spool.add(batch)


def held_rows(view: SpanView, piece: Span, ts: int, table: TableSchema) -> Iterator[pa.RecordBatch]:
    """Yield the rows that the store has in a range, with their op and key."""
    names = [OP, KEY, *table.row_schema().names]
    handle = open_changes(view, TS_ZERO, ts)
    try:
        while not isinstance(step := handle.next(), EndOfRange):
            for batch in step.data:
                inside = rows_inside(batch.records, piece)
                if inside.num_rows:
                    yield inside.select(names)
    finally:
        handle.close()


def rows_inside(records: pa.RecordBatch, piece: Span) -> pa.RecordBatch:
    """Return the rows whose keys lie in a range."""
    if not piece.start_key and not piece.end_key:
        return records
    inside = np.ones(records.num_rows, dtype=np.bool_)
    if piece.start_key:
        inside &= pc.greater_equal(records.column(KEY), pa.scalar(piece.start_key, pa.binary())).to_numpy(zero_copy_only=False)
    if piece.end_key:
        inside &= pc.less(records.column(KEY), pa.scalar(piece.end_key, pa.binary())).to_numpy(zero_copy_only=False)
    return records if bool(inside.all()) else records.filter(pa.array(inside))


def _write(read: BootstrapPart, table: TableSchema, difference: RowKeyDifference) -> Iterator[CorrectionObjects]:
    """Write each step of a difference; on any failure what was written is removed."""
    space = read.objects()
    written: list[ObjectMeta] = []

    def put(number: int, side: BatchKind, batches: list[pa.RecordBatch]) -> ObjectMeta | None:
        if not batches:
            return None
        changes = [ChangeBatch.of(read.span.span_id, table, side, b) for b in batches]
        name = f"reread-{read.start_ts:020d}-{read.number:06d}-{number:06d}-{side.name.lower()}"
        written.append(write_bulk(space, read.span.span_id, name, changes, read.start_ts, [table]))
        return written[-1]

    try:
        for number, (ended, begun) in enumerate(difference.steps(read.start_ts)):
            yield CorrectionObjects(put(number, BatchKind.TOMBSTONE, ended), put(number, BatchKind.DATA, begun))
    except BaseException:
        for meta in written:
            space.delete(meta.path)
        raise
