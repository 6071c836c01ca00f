"""One part of a bootstrap: reads a piece of a span from the upstream, as its ticket says, and writes it as bulk objects.

Names no source. A snapshot that is lost on the way begins again, and what it had written is removed. Rows are paced where a rate is set.
Runs on executors.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.model.batch import ChangeBatch
from penstock.model.clock import Clock, SystemClock
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.source.catalog import open_upstream
from penstock.source.contract import SnapshotTicket
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
    ticket: SnapshotTicket
    table: TableSchema
    """The version under which rows are read."""
    objects_uri: str
    storage_options: dict[str, str]
    number: int
    page_rows: int
    rows_per_s: float = 0.0
    """How many rows the task reads per second at most; 0 for as many as it can."""

    @property
    def start_ts(self) -> int:
        """Return the ts at which the rows count as committed."""
        return self.ticket.start.ts

    def objects(self) -> ObjectSpace:
        """Open the store's objects for writing; raise ``STORE_NOT_SHARED`` where they are a directory of another machine."""
        place = urlsplit(self.objects_uri)
        if place.scheme == "file" and not Path(unquote(place.path)).is_dir():
            raise PenstockError("STORE_NOT_SHARED", "the event store's objects are a directory of the server's machine")
        return ObjectSpace(self.objects_uri, options=self.storage_options)

    def __repr__(self) -> str:
        return f"BootstrapPart(span={self.span.span_id}, number={self.number}, start_ts={self.start_ts})"


def pull_encoded(part: bytes) -> bytes:
    """Pull a part that is JSON; return what was pulled as JSON."""
    return msgspec.json.encode(pull_part(decoded(part, BootstrapPart)))


def pull_part(part: BootstrapPart, clock: Clock | None = None) -> PulledPart:
    """Pull one part and write its bulk objects; durable when it returns. A snapshot that is lost on the way begins again."""
    pace = Pace(part.rows_per_s, clock or SystemClock())
    space = part.objects()
    upstream = open_upstream(part.source)
    try:
        restarts = 0
        while True:
            pages = upstream.read_snapshot(part.ticket, part.piece, part.table, part.page_rows)
            try:
                objects = _write(space, part, (_own(b, part, pace) for b in pages))
                return PulledPart(tuple(objects), part.start_ts, restarts)
            except PenstockError as error:
                if error.code != "SNAPSHOT_LOST" or restarts == RESTARTS_MAX:
                    raise
                restarts += 1
    finally:
        upstream.close()


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


def _own(batch: ChangeBatch, part: BootstrapPart, pace: Pace) -> ChangeBatch:
    """Return a batch under the id of the whole span: the source reads pieces, which it takes for spans."""
    pace.take(batch.header.rows)
    return ChangeBatch(msgspec.structs.replace(batch.header, span_id=part.span.span_id), batch.records)


def _write(space: ObjectSpace, part: BootstrapPart, batches: Iterator[ChangeBatch]) -> list[ObjectMeta]:
    """Write batches as bulk objects of bounded size; on any failure what was written is removed."""
    written: list[ObjectMeta] = []
    try:
        for number, piece in enumerate(by_size(batches, OBJECT_BYTES)):
            full = f"bootstrap-{part.start_ts:020d}-{part.number:06d}-{number:06d}"
            written.append(write_bulk(space, part.span.span_id, full, piece, part.start_ts, [part.table]))
    except BaseException:
        for meta in written:
            space.delete(meta.path)
        raise
    return written
