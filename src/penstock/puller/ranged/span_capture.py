"""One span's way into the event store: decode raw batches, append what they hold, know what was appended.

Owns the two functions that the span pipeline calls. A raw batch counts as persisted when everything that it decoded to is; one that
decodes to nothing counts at once. Rows that were appended above the store's resolved ts are remembered by key, because a span that
fails is pulled again from that resolved ts and brings them once more. Runs in the log service, in the span's pipeline worker.
"""

from __future__ import annotations

from penstock.model.span import Span
from penstock.puller.contract import after_all
from penstock.puller.ranged.repeats import DeliveredLog, Prior, drop_replayed, relevant
from penstock.puller.span_pipeline import Finish
from penstock.source.ranged import RowDecoder
from penstock.source.raw import RawBatch
from penstock.store.contract import EventStore


class SpanCapture:
    """Decodes and appends for one span. One caller at a time: its pipeline worker, or its owner while it is not subscribed."""

    def __init__(self, span: Span, keys: tuple[bytes, bytes], decoder: RowDecoder, store: EventStore) -> None:
        self.span = span
        self.span_id = span.span_id
        self._keys = keys
        self._decoder = decoder
        self._store = store
        self._appended = DeliveredLog()
        self._priors: tuple[Prior, ...] = ()

    def resume(self, start_ts: int) -> int:
        """Register with the store and return the ts to pull from; what was appended above it will be recognised."""
        resume_ts = self._store.register_span(self.span_id, self.span, start_ts)
        own = Prior(self._keys[0], self._keys[1], resume_ts, self._appended.batches(resume_ts))
        self._priors = relevant((*self._priors, own), resume_ts)
        self._appended = DeliveredLog()
        return resume_ts

    def consume(self, raw: RawBatch, finish: Finish) -> bool:
        """Append a raw batch; see ``span_pipeline.Consume``."""
        if self._priors:
            raw = RawBatch(raw.region_id, drop_replayed(raw.entries, self._priors))
        if raw.entries.num_rows == 0:
            finish()
            return True
        decoded = self._decoder.decode(self.span_id, raw)
        parts = len(decoded.ddls) + bool(decoded.changes)
        if parts == 0:
            finish()
            return True
        part_done = after_all(parts, finish)
        for ddl in decoded.ddls:
            if not self._store.append_ddl(ddl, part_done):
                return False
        if decoded.changes and not self._store.append(self.span_id, decoded.changes, part_done):
            return False
        self._appended.add(raw.entries, int(raw.entries.column(0).to_numpy().max()))
        return True

    def advance(self, ts: int) -> None:
        """Advance the store's resolved ts."""
        self._store.advance_resolved_ts(self.span_id, ts)
        self._appended.prune(ts)
        if self._priors:
            self._priors = relevant(self._priors, ts)

    def resolved_ts(self) -> int:
        """Return the store's resolved ts of the span."""
        return self._store.resolved_ts(self.span_id)
