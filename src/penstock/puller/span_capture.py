"""One span's way into the event store: make changes of what a puller gives, and append them.

Owns the two functions that the span pipeline calls. A payload counts as persisted when everything in it is; one that holds nothing counts
at once. A span that fails is pulled again from the store's resolved ts and brings what is above it once more: the store knows it, see
``ranged/repeats.py``. Runs in the log service, in the span's pipeline worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from penstock.model.batch import ChangeBatch
from penstock.model.ddl import DdlEvent
from penstock.model.span import Span
from penstock.puller.span_pipeline import Finish
from penstock.store.contract import EventStore


class SpanEvents(Protocol):
    """What a payload holds for one span."""

    @property
    def changes(self) -> tuple[ChangeBatch, ...]:
        """Return rows, under the span's id."""

    @property
    def ddls(self) -> tuple[DdlEvent, ...]:
        """Return DDL events, of the DDL span only."""


Decode = Callable[[int, Any], SpanEvents]
"""Make events of a span's payload. Called for many spans at once, for one span one at a time."""


def as_given(span_id: int, events: SpanEvents) -> SpanEvents:
    """Return the payload of a puller whose source decodes where it reads."""
    return events


class SpanCapture:
    """Appends for one span. One caller at a time: its pipeline worker, or its owner while it is not subscribed."""

    def __init__(self, span: Span, store: EventStore, decode: Decode) -> None:
        self.span = span
        self.span_id = span.span_id
        self._store = store
        self._decode = decode

    def resume(self, start_ts: int) -> int:
        """Register with the store and return the ts to pull from."""
        return self._store.register_span(self.span_id, self.span, start_ts)

    def consume(self, payload: Any, finish: Finish) -> bool:
        """Append a payload; see ``span_pipeline.Consume``."""
        events = self._decode(self.span_id, payload)
        parts = len(events.ddls) + bool(events.changes)
        if parts == 0:
            finish()
            return True
        part_done = after_all(parts, finish)
        for ddl in events.ddls:
            if not self._store.append_ddl(ddl, part_done):
                return False
        return not events.changes or self._store.append(self.span_id, events.changes, part_done)

    def advance(self, ts: int) -> None:
        """Advance the store's resolved ts."""
        self._store.advance_resolved_ts(self.span_id, ts)

    def resolved_ts(self) -> int:
        """Return the store's resolved ts of the span."""
        return self._store.resolved_ts(self.span_id)


def after_all(parts: int, finish: Finish) -> Finish:
    """Return a callback that calls ``finish`` on its last of so many calls."""
    if parts == 1:
        return finish
    lock = threading.Lock()
    left = parts

    def part_done() -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            finish()

    return part_done
