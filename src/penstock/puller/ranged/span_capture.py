"""One span's way into the event store where changes arrive raw: decode raw batches, append what they hold.

Owns the two functions that the span pipeline calls. A raw batch counts as persisted when everything that it decoded to is; one that
decodes to nothing counts at once. A span that fails is pulled again from the store's resolved ts and brings what is above it once more: the
store knows it, see ``repeats.py``. Runs in the log service, in the span's pipeline worker.
"""

from __future__ import annotations

from penstock.model.span import Span
from penstock.puller.contract import after_all
from penstock.puller.span_pipeline import Finish
from penstock.source.ranged import RowDecoder
from penstock.source.raw import RawBatch
from penstock.store.contract import EventStore


class SpanCapture:
    """Decodes and appends for one span. One caller at a time: its pipeline worker, or its owner while it is not subscribed."""

    def __init__(self, span: Span, decoder: RowDecoder, store: EventStore) -> None:
        self.span = span
        self.span_id = span.span_id
        self._decoder = decoder
        self._store = store

    def resume(self, start_ts: int) -> int:
        """Register with the store and return the ts to pull from."""
        return self._store.register_span(self.span_id, self.span, start_ts)

    def consume(self, raw: RawBatch, finish: Finish) -> bool:
        """Append a raw batch; see ``span_pipeline.Consume``."""
        decoded = self._decoder.decode(self.span_id, raw)
        parts = len(decoded.ddls) + bool(decoded.changes)
        if parts == 0:
            finish()
            return True
        part_done = after_all(parts, finish)
        for ddl in decoded.ddls:
            if not self._store.append_ddl(ddl, part_done):
                return False
        return not decoded.changes or self._store.append(self.span_id, decoded.changes, part_done)

    def advance(self, ts: int) -> None:
        """Advance the store's resolved ts."""
        self._store.advance_resolved_ts(self.span_id, ts)

    def resolved_ts(self) -> int:
        """Return the store's resolved ts of the span."""
        return self._store.resolved_ts(self.span_id)
