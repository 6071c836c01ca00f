"""Places: where the spans of a store are that other processes serve, as a Flight service asks for them.

``feed/receivers/receivers.py`` implements it. Runs in the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.model.timestamp import TS_MAX
from penstock.store.contract import WindowPlan, WindowWish
from penstock.store.flight.address import FlightAddress
from penstock.store.stats import SpanStats


class Places(Protocol):
    """Knows who serves which span, and plans over all of them. Called by many threads."""

    def address_of(self, span_id: int) -> FlightAddress | None:
        """Return who serves a span, None for the store here; raises ``SPAN_UNKNOWN``, or ``STORE_UNREACHABLE`` while nobody does."""

    def plan_window(self, wish: WindowWish) -> WindowPlan:
        """Choose where a window ends; as ``ColumnarEventStore.plan_window``."""

    def plan_resnapshot(
        self, span_ids: Sequence[int], table_ids: Sequence[int], from_ts: int, patterns: Sequence[str] = (), end_ts: int = TS_MAX
    ) -> WindowPlan:
        """Choose the ts of a state; as ``ColumnarEventStore.plan_resnapshot``."""

    def span_stats(self) -> Sequence[SpanStats]:
        """Return what is known of all spans."""

    def report(self, body: bytes) -> bytes:
        """Take the report of whoever serves spans; return what that one is to do."""
