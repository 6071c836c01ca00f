"""One span's way into the event store where changes arrive decoded: from an upstream with one log.

Owns the two functions that the span pipeline calls. What a step brings counts as persisted when all of it is. Runs in the log service, in
the span's pipeline worker.
"""

from __future__ import annotations

import msgspec

from penstock.model.batch import ChangeBatch
from penstock.model.ddl import DdlEvent
from penstock.model.span import Span
from penstock.puller.contract import after_all
from penstock.puller.span_pipeline import Finish
from penstock.store.contract import EventStore


class SpanStep(msgspec.Struct, frozen=True):
    """The part of a log step that one span gets."""

    changes: tuple[ChangeBatch, ...] = ()
    ddls: tuple[DdlEvent, ...] = ()
    nbytes: int = 1


class StepCapture:
    """Appends for one span. One caller at a time: its pipeline worker, or its owner while it is not subscribed."""

    def __init__(self, span: Span, store: EventStore) -> None:
        self.span = span
        self.span_id = span.span_id
        self._store = store

    def resume(self, start_ts: int) -> int:
        """Register with the store and return the ts to pull from."""
        return self._store.register_span(self.span_id, self.span, start_ts)

    def consume(self, step: SpanStep, finish: Finish) -> bool:
        """Append what a step brings; see ``span_pipeline.Consume``."""
        parts = len(step.ddls) + bool(step.changes)
        part_done = after_all(parts, finish)
        for ddl in step.ddls:
            if not self._store.append_ddl(ddl, part_done):
                return False
        return not step.changes or self._store.append(self.span_id, step.changes, part_done)

    def advance(self, ts: int) -> None:
        """Advance the store's resolved ts."""
        self._store.advance_resolved_ts(self.span_id, ts)

    def resolved_ts(self) -> int:
        """Return the store's resolved ts of the span."""
        return self._store.resolved_ts(self.span_id)
