"""Which spans are being read whole, by any feed of a server: two feeds that read one at once would take each other's parts away.

Invariant: a span is read by one feed at a time; whoever waited looks again whether there is anything left to read. Runs in the server.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Set
from contextlib import contextmanager

from penstock.model.errors import PenstockError


class SpanReads:
    """The reads under way. Thread safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._spans: set[int] = set()

    @contextmanager
    def alone(self, span_ids: Set[int], cancelled: threading.Event) -> Iterator[None]:
        """Wait until nobody else reads any of these spans, and keep others from them; raise ``CANCELLED`` where waiting is ended."""
        with self._changed:
            # All of them or none, so that nobody waits for somebody who waits.
            self._changed.wait_for(lambda: cancelled.is_set() or self._spans.isdisjoint(span_ids))
            if cancelled.is_set():
                raise PenstockError("CANCELLED", "the feed was stopped while another one read its tables")
            self._spans |= span_ids
        try:
            yield
        finally:
            with self._changed:
                self._spans -= span_ids
                self._changed.notify_all()

    def cancel(self, cancelled: threading.Event) -> None:
        """End the waiting of whoever waits with this event."""
        with self._changed:
            cancelled.set()
            self._changed.notify_all()
