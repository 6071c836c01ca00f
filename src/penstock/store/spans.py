"""The spans of an event store: by id, put together from manifests and log when it opens, and said again at the head of the log.

Invariants: what recovery gives is what was acknowledged, because the head of every segment repeats which spans there are, how far they are
resolved, and the schema log; rows of a span that nobody registered mean that the log is damaged. Runs in the log service.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterable, Sequence

from penstock.model.ddl import DdlEvent
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.store.log.schema_log import SchemaLog, read_schemas
from penstock.store.log.wal import SpanEntry, read_resolved, resolved_record, span_record
from penstock.store.log.wal_segment import RecordKind, Replayed, WalRecord
from penstock.store.objects.manifest import load_manifests
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.shared_records import SpanMark
from penstock.store.objects.span_writer import ObjectSettings
from penstock.store.span_store import SpanStore

log = logging.getLogger(__name__)


class Spans:
    """All spans of a store. Thread safe, but for ``recover``, which is done before anybody else looks."""

    def __init__(self, objects: ObjectSpace, schema_log: SchemaLog, rng: random.Random, written: ObjectSettings) -> None:
        self.written = written
        """How spans that are opened from now on write their objects."""
        self._objects = objects
        self._schema_log = schema_log
        self._rng = rng
        self._spans: dict[int, SpanStore] = {}
        self._lock = threading.Lock()

    def get(self, span_id: int) -> SpanStore | None:
        """Return a span, None where it is not known."""
        return self._spans.get(span_id)

    def of(self, span_id: int) -> SpanStore:
        """Return a span; raises ``SPAN_UNKNOWN``."""
        store = self._spans.get(span_id)
        if store is None:
            raise PenstockError("SPAN_UNKNOWN", f"the event store holds no span {span_id}")
        return store

    def all(self) -> list[SpanStore]:
        """Return every span."""
        with self._lock:
            return list(self._spans.values())

    def ids(self) -> tuple[int, ...]:
        """Return the ids of all spans."""
        with self._lock:
            return tuple(self._spans)

    def ensure(self, span_id: int, span: Span, start_ts: int) -> tuple[SpanStore, bool]:
        """Return a span, and whether it is new: then its history begins at a ts."""
        with self._lock:
            store = self._spans.get(span_id)
            if store is not None:
                return store, False
            store = self._spans[span_id] = SpanStore.create(self._objects, span_id, span, start_ts, self._rng, self.written)
            return store, True

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._spans.clear()

    def recover(self, replayed: Iterable[Replayed], taken_over: Sequence[SpanMark] = ()) -> None:
        """Put together what the manifests, the marks of an owner before, and the log hold, in this order."""
        for span_id, manifest in load_manifests(self._objects).items():
            self._spans[span_id] = store = SpanStore(self._objects, manifest, self._rng, self.written)
            removed = store.remove_orphans()
            if removed:
                log.info("objects without a manifest removed", extra={"span_id": span_id, "objects": removed})
        for mark in taken_over:
            self.ensure(mark.span_id, mark.span, mark.start_ts)[0].advance(mark.held_ts)
        for record in replayed:
            self._replay(record)

    def _replay(self, record: Replayed) -> None:
        if record.batch is not None:
            store = self._spans.get(record.span_id)
            if store is None:
                raise PenstockError("WAL_CORRUPT", f"the write-ahead log holds rows of span {record.span_id} that was never registered")
            store.add(record.batch)
        elif record.kind is RecordKind.SPAN:
            entry = decoded(record.payload, SpanEntry)
            self.ensure(record.span_id, entry.span, entry.start_ts)
        elif record.kind is RecordKind.RESOLVED:
            for span_id, ts in read_resolved(record.payload):
                if span_id in self._spans:
                    self._spans[span_id].advance(ts)
        elif record.kind is RecordKind.SCHEMAS:
            self._schema_log.put(read_schemas(record.payload))
        elif record.kind is RecordKind.DDL:
            self._schema_log.put_ddl(DdlEvent.from_json(record.payload))

    def head_records(self) -> Sequence[WalRecord]:
        """Return what a segment of the log begins with, so that those before it can go."""
        spans = self.all()
        records = [span_record(s.span_id, s.span, s.start_ts) for s in spans]
        if spans:
            records.append(resolved_record({s.span_id: s.resolved_ts for s in spans}))
        return [*records, *self._schema_log.records()]
