"""The log service of a source that receivers capture: DDLs are captured here, every other span by a receiver.

The server's parts ask it as they ask any log service. The versions of a table are in the server's own store before its span is captured,
because windows are planned with them. Runs in the server.
"""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry

from penstock.feed.receivers.receivers import Receivers
from penstock.model.clock import Clock
from penstock.model.span import DDL_SPAN, Span
from penstock.puller.log_service import LogService, LogServiceSettings, SpanStatus
from penstock.source.contract import Upstream
from penstock.store.contract import EventStore


class ReceivedLogService(LogService):
    """A log service whose rows are captured elsewhere. Thread safe."""

    def __init__(
        self,
        receivers: Receivers,
        upstream: Upstream,
        store: EventStore,
        settings: LogServiceSettings | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        super().__init__(upstream, store, settings, clock, rng, registry)
        self._receivers = receivers

    def begin(self) -> None:
        """Take the source's objects where they are another's, and look what its parts hold. Idempotent."""
        if self._store.is_taken_away():
            self._receivers.let_go()
        super().begin()
        self._receivers.find_parts()

    def ensure_span(self, span: Span, start_ts: int) -> int:
        """Have a span captured, whole: a receiver that has nothing of it begins with its state, wherever a feed begins."""
        if span == DDL_SPAN:
            return super().ensure_span(span, start_ts)
        self.begin()
        self._learn_versions(span)
        self._receivers.ensure(span)
        return span.span_id

    def remove_span(self, span_id: int) -> None:
        """Stop capturing a span; what is stored of it stays."""
        if span_id == DDL_SPAN.span_id:
            super().remove_span(span_id)
        else:
            self._receivers.remove(span_id)

    def status(self) -> list[SpanStatus]:
        """Return where each captured span stands."""
        return [*super().status(), *self._receivers.status()]
